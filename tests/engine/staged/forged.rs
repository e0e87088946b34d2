//! Messages about staged memory that no engine of ours would send, lists of many peers at once, and
//! what the first engine alone does: words that join, and those of its own PE.

use engine::atomic::{Atomic, AtomicOp, Width};
use engine::ids::{Pe, RailId};
use engine::port::Access;
use engine::port::copies::MOST_WORDS;
use engine::request::PutSignalRequest;
use engine::wire::message::{Body, Message, Packet, RequestId, Spot};
use engine::wire::staged::{
    Exposure, LIST_ENTRY, ListEntry, ListedSignal, MAX_PAYLOAD, MOST_LISTED, Staged,
};
use engine::wire::window::Seq;
use sim_fabric::{Call, Event, Script};

use super::gathered::{LEN, end, iterate, job, posts, shape};
use super::{ALL, fill, pattern};
use crate::job::{FIRST_REGION, Job, Shape, seal};
use crate::signals::{Targets, race};

/// From PE 0 to PE 1: so many puts in so many bytes, whose list is at the start of PE 0's bounce
/// memory.
fn forge(job: &Job, count: usize, len: usize, in_order: bool) {
    forge_next(job, 0, (count, len, in_order));
}

/// The same, behind so many messages.
fn forge_next(job: &Job, number: u32, (count, len, in_order): (usize, usize, bool)) {
    let (from, ack) = (Exposure::in_bounce(0), Seq(u32::MAX - 99));
    let request_id = RequestId { slot: 3, seq: Seq(0) };
    let (to, len) = (Spot::listed(count, in_order), len as u32);
    let body = Body::Staged(Staged::Pull { to, from, len, request_id, brought: None });
    let mut packet = Packet::EMPTY;
    let seq = Seq(ack.0.wrapping_add(number));
    seal(&Message { from: Pe(0), seq, ack, behind: 0, body }, 1, &mut packet);
    job.fabric.forge_message(Pe(1), RailId(0), packet.bytes());
}

#[test]
fn a_list_that_leads_outside_moves_nothing() {
    let region = FIRST_REGION;
    let signal = |op, at| {
        let atomic = Atomic { op, width: Width::Eight, float: false, operand: 3, compare: 0 };
        Some(ListedSignal { at, atomic })
    };
    let entry = |slot, offset, len, at| ListEntry {
        to: Spot { slot, offset },
        len,
        at,
        signal: None,
        behind: false,
    };
    let good = entry(region, 0, 100, 128);
    let signals =
        |op, slot, offset| ListEntry { signal: signal(op, Spot { slot, offset }), ..good };
    let whole = 1024;
    let far = 1 << 40;
    let add = AtomicOp::SignalAdd;
    for (listed, count, len, copies) in [
        (vec![good], 1, whole, 1),
        (vec![good, entry(region, 500, 100, 228)], 2, whole, 2),
        (vec![signals(add, region, 800)], 1, whole, 1),
        (vec![good], 0, whole, 0),
        (vec![good], MOST_LISTED + 1, whole, 0),
        (vec![good], usize::MAX >> 20, whole, 0),
        (vec![good], 1, LIST_ENTRY, 0),
        (vec![good, good], 2, 2 * LIST_ENTRY, 0),
        (vec![entry(region, 0, 100, 0)], 1, whole, 0),
        (vec![entry(region, 0, 100, LIST_ENTRY as u32 - 1)], 1, whole, 0),
        (vec![entry(region, 0, 100, 925)], 1, whole, 0),
        (vec![entry(region, 0, 100, u32::MAX)], 1, whole, 0),
        (vec![entry(region, 0, u32::MAX, 128)], 1, whole, 0),
        (vec![entry(region, 0, 0, 128)], 1, whole, 0),
        (vec![entry(region, far, 100, 128)], 1, whole, 0),
        (vec![entry(region, u64::MAX, 100, 128)], 1, whole, 0),
        (vec![entry(region + 900, 0, 100, 128)], 1, whole, 0),
        (vec![good, entry(region, far, 100, 228)], 2, whole, 0),
        (vec![signals(add, region, far)], 1, whole, 0),
        (vec![signals(add, region + 900, 800)], 1, whole, 0),
        (vec![signals(add, region, 804)], 1, whole, 0),
        (vec![signals(AtomicOp::FetchAdd, region, 800)], 1, whole, 0),
    ] {
        let job = &mut Job::new(5, &shape(true), Script::default());
        let bytes: Vec<u8> = listed.iter().flat_map(ListEntry::encode).collect();
        job.fabric.store(Pe(0), job.fabric.bounce_memory(Pe(0)), &bytes);
        forge(job, count, len, false);
        for _ in 0..100 {
            let _ = job.members[1].lane.progress();
            job.fabric.pass_time(1000);
        }
        let events = job.fabric.events();
        let copied = |event: &&Event| matches!(event, Event::Copied { pe: Pe(1), .. });
        assert_eq!(events.iter().filter(copied).count(), copies, "{listed:?} {count} {len}");
        let applied = events.iter().any(|event| matches!(event, Event::Applied { pe: Pe(1), .. }));
        let signals = listed[0].signal.is_some() && copies != 0;
        assert_eq!(applied, signals, "{listed:?}");
    }
}

#[test]
fn released_region_of_a_waiting_list() {
    let mut waited = 0;
    for (seed, in_order) in (1..=40).flat_map(|seed| [(seed, false), (seed, true)]) {
        let script = Script { again_percent: 80, ..Script::default() };
        let mut job = Job::new(seed, &shape(true), script);
        let handle = job.members[1].handle;
        // Its heap comes right behind the bounce memory.
        let to = Spot { slot: 2 * FIRST_REGION + 1, offset: 0 };
        let put = ListEntry { to, len: 100, at: 200, signal: None, behind: false };
        job.fabric.store(Pe(0), job.fabric.bounce_memory(Pe(0)), &put.encode());
        job.fabric.trace_calls();
        let has_copied = |job: &Job| job.fabric.calls().contains(&Call::Copy(Pe(1)));
        forge(&job, 1, 1024, in_order);
        job.fabric.pass_time(1_000_000);
        job.members[1].lane.progress().unwrap();
        if has_copied(&job) {
            continue;
        }
        waited += 1;
        let (base, is_released) = (job.members[1].base, seed % 4 != 0);
        if is_released {
            job.members[1].lane.check_unused(base, job.heap).unwrap();
            job.members[1].regions.release(&handle).unwrap();
        }
        for _ in 0..300 {
            let _ = job.members[1].lane.progress();
            job.fabric.pass_time(1000);
        }
        let is_put = |event: &Event| matches!(event, Event::Copied { addr, .. } if *addr == base);
        let is_there = job.fabric.events().iter().any(is_put);
        assert_eq!((has_copied(&job), is_there), (!is_released, !is_released), "seed {seed}");
    }
    assert!(waited > 20, "{waited}");
}

/// As many as there are lists, which go on group by group: all of them end, and so does what comes
/// behind them and has no list yet.
#[test]
fn lists_that_are_executed_by_groups_end() {
    const LISTS: u32 = 64;
    // The other one's is here before the first group of any was copied.
    let slow_rails = vec![(RailId(u8::MAX), 100)];
    let script = Script { delay: (1000, 10_000), slow_rails, ..Script::default() };
    let mut job = Job::new(5, &Shape { n_pes: 3, shared: 3, ..shape(true) }, script);
    let targets = Targets::of(&job);
    let parts = [targets.part(job.members[2].scratch, 1, 1000, LEN)];
    let signal = targets.atomic(1, 2000, AtomicOp::SignalAdd, 1);
    job.members[2].lane.put_signal(&PutSignalRequest { parts: &parts, signal }).unwrap();
    for _ in 0..1000 {
        job.members[2].lane.progress().unwrap();
        job.fabric.pass_time(10_000);
    }
    let to = Spot { slot: FIRST_REGION, offset: 0 };
    let put = ListEntry { to, len: 100, at: 200, signal: None, behind: false };
    let listed = [put, ListEntry { behind: true, ..put }];
    let bytes: Vec<u8> = listed.iter().flat_map(ListEntry::encode).collect();
    job.fabric.store(Pe(0), job.fabric.bounce_memory(Pe(0)), &bytes);
    (0..LISTS).for_each(|number| forge_next(&job, number, (2, 1000, true)));
    for _ in 0..20_000 {
        if job.members[2].lane.is_quiet(Pe(1)).unwrap() {
            return;
        }
        job.members[1..].iter_mut().for_each(|member| {
            member.lane.progress().unwrap();
        });
        job.fabric.pass_time(10_000);
    }
    panic!("what has no list waits for ever");
}

/// Signals by themselves come behind puts, and no more in order than a device stores at once.
#[test]
fn a_list_in_order_that_cannot_be_executed_moves_nothing() {
    let region = FIRST_REGION;
    let (op, width) = (AtomicOp::SignalAdd, Width::Eight);
    let atomic = Atomic { op, width, float: false, operand: 3, compare: 0 };
    let at = Spot { slot: region, offset: 800 };
    let to = Spot { slot: region, offset: 0 };
    let put = ListEntry { to, len: 100, at: 8000, signal: None, behind: false };
    let signal = Some(ListedSignal { at, atomic });
    let alone = ListEntry { len: 0, at: 0, signal, behind: true, ..put };
    let with_words = |count| [vec![put], vec![alone; count]].concat();
    for (listed, in_order, words) in [
        (with_words(1), true, 1),
        (with_words(MOST_WORDS), true, MOST_WORDS),
        (with_words(MOST_WORDS + 1), true, 0),
        (with_words(1), false, 0),
        (vec![alone, put], true, 0),
        (vec![alone], true, 0),
    ] {
        let job = &mut Job::new(5, &shape(true), Script::default());
        let bytes: Vec<u8> = listed.iter().flat_map(ListEntry::encode).collect();
        job.fabric.store(Pe(0), job.fabric.bounce_memory(Pe(0)), &bytes);
        forge(job, listed.len(), 10_000, in_order);
        for _ in 0..100 {
            let _ = job.members[1].lane.progress();
            job.fabric.pass_time(1000);
        }
        let count =
            |what: fn(&Event) -> bool| job.fabric.events().iter().filter(|e| what(e)).count();
        let copied = count(|event| matches!(event, Event::Copied { pe: Pe(1), .. }));
        let applied = count(|event| matches!(event, Event::Applied { pe: Pe(1), .. }));
        assert_eq!((copied, applied), (words.min(1), words), "{in_order} {}", listed.len());
    }
}

/// From PE 0 to PE 1.
fn forge_staged(job: &Job, seq: Seq, body: Staged<'_>) {
    let mut packet = Packet::EMPTY;
    let (from, ack) = (Pe(0), Seq(u32::MAX - 99));
    let message = Message { from, seq, ack, behind: 0, body: Body::Staged(body) };
    seal(&message, 1, &mut packet);
    job.fabric.forge_message(Pe(1), RailId(0), packet.bytes());
}

/// What PE 1 has copied into its heap.
fn copied(job: &Job) -> usize {
    let events = job.fabric.events();
    events.iter().filter(|event| matches!(event, Event::Copied { pe: Pe(1), .. })).count()
}

#[test]
fn nothing_outside_of_the_bounce_memory_can_be_named() {
    // Bounce buffers of 1 KiB, two each way.
    let all = 4 * 1024;
    let places = [
        (0, 1000, 1),
        (all - 1000, 1000, 1),
        (all, 1, 0),
        (all - 999, 1000, 0),
        (all + 1, 1, 0),
        (usize::MAX, 1000, 0),
        (1 << 62, 8, 0),
        (0, u32::MAX as usize, 0),
    ];
    for (offset, len, copies) in places {
        let mut job = Job::new(5, &neighbours(), Script::default());
        let (from, request_id) =
            (Exposure::in_bounce(offset as u64), RequestId { slot: 3, seq: Seq(0) });
        let (to, len) = (Spot { slot: FIRST_REGION, offset: 0 }, len as u32);
        forge_staged(
            &job,
            Seq(u32::MAX - 99),
            Staged::Pull { to, from, len, request_id, brought: None },
        );
        (0..100).for_each(|_| {
            let _ = job.members[1].lane.progress();
            job.fabric.pass_time(1000);
        });
        assert_eq!(copied(&job), copies, "{len} bytes at {offset}");
    }
}

#[test]
fn a_peer_that_does_not_share_cannot_name_a_place() {
    let mut job = Job::new(5, &Shape { shared: 0b10, ..neighbours() }, Script::default());
    let (from, request_id) = (Exposure::in_bounce(0), RequestId { slot: 3, seq: Seq(0) });
    let to = Spot { slot: FIRST_REGION, offset: 0 };
    forge_staged(
        &job,
        Seq(u32::MAX - 99),
        Staged::Pull { to, from, len: 1000, request_id, brought: None },
    );
    (0..100).for_each(|_| {
        let _ = job.members[1].lane.progress();
        job.fabric.pass_time(1000);
    });
    assert_eq!(copied(&job), 0);
}

#[test]
fn a_refusal_of_what_has_ended_is_late_news() {
    let mut job = Job::new(4, &Shape { staged: ALL, ..Shape::default() }, Script::default());
    let request_id = RequestId { slot: 5, seq: Seq(7) };
    forge_staged(&job, Seq(0), Staged::Refused { request_id, why: "it is too late" });
    for _ in 0..10 {
        job.members[1].lane.progress().unwrap();
    }
    assert!(job.members[1].lane.is_quiet(Pe(0)).unwrap());
}

/// A peer that keeps the rules has so many requests under way at most.
#[test]
fn a_peer_that_asks_for_too_much_at_once_is_refused() {
    const CHUNKS: u16 = 2;
    const WAIT: usize = 64;
    let shape = Shape { staged: ALL, bounce: (1024, CHUNKS, 2), ..Shape::default() };
    let mut job = Job::new(4, &shape, Script::default());
    job.fabric.trace_calls();
    let mut answers = Vec::new();
    for number in 0..100 {
        let seq = Seq((u32::MAX - 99).wrapping_add(number));
        let request_id = RequestId { slot: number, seq };
        forge_staged(
            &job,
            seq,
            Staged::Ask { from: Spot { slot: FIRST_REGION, offset: 0 }, len: 1000, request_id },
        );
        let before = job.fabric.calls().len();
        for _ in 0..100 {
            job.members[1].lane.progress().unwrap();
            job.fabric.pass_time(1000);
        }
        let calls = job.fabric.calls();
        let posts = calls[before..].iter().filter(|call| matches!(call, Call::Post(Pe(1), _)));
        answers.push(posts.count());
    }
    let exposed = usize::from(CHUNKS);
    let waits: Vec<usize> = (0..100).filter(|at| answers[*at] == 0).collect();
    assert_eq!(waits, (exposed..exposed + WAIT).collect::<Vec<_>>(), "{answers:?}");
}

fn neighbours() -> Shape {
    Shape { staged: ALL, shared: u32::MAX, rails: 1, ..Shape::default() }
}

#[test]
fn keys_of_a_region_in_a_used_slot_are_told_anew() {
    const HALF: u64 = 1 << 31;
    const WHOLE: u64 = 1 << 32;
    // The first ones are just below 2^31. Then there are steps by which 32 bits would take the new
    // one for older, or for the one before it.
    let skipped = [HALF - 16, 0, 16, 0, HALF, HALF + 1, 0, WHOLE - 1, 5, WHOLE - 1, HALF, 1 << 62];
    let shape = Shape { staged: 0b0100, needs_desc: false, ..Shape::default() };
    let job = Job::new(4, &shape, Script::default());
    let fabric = job.fabric.clone();
    let base = job.members[1].base;
    race(job, 4, |me, member, targets| {
        if me == 1 {
            return Ok(());
        }
        for (round, skipped) in (0..).zip(skipped.into_iter().chain([0; 20])) {
            member.regions.skip_stamps(skipped);
            let addr = fabric.alloc(Pe(0), 1000);
            let byte: u8 = round + 1;
            fabric.store(Pe(0), addr, &[byte; 1000]);
            let handle = member.regions.register(addr, 1000, Access::Local)?;
            member.lane.complete(&targets.part(addr, 1, 0, 1000))?;
            assert_eq!(fabric.load(Pe(1), base, 1000), [byte; 1000]);
            member.regions.release(&handle)?;
        }
        Ok(())
    });
}

/// Values that are put one behind the other, of 1 to 8 bytes.
#[test]
fn words_side_by_side_are_one_message() {
    for width in [1, 2, 4, 8] {
        let mut job = job(&shape(true), 5, Script::default());
        job.fabric.trace_calls();
        let value = |at: usize| 0x0101_0101_0101_0101 * (at as u64 % 255 + 1);
        const WORDS: usize = 100;
        (0..WORDS).for_each(|at| job.put_value(0, 1, 8 + at * width, value(at), width).unwrap());
        end(&mut job, 0);
        let expected: Vec<u8> =
            (0..WORDS).flat_map(|at| value(at).to_le_bytes().into_iter().take(width)).collect();
        assert!(job.heap(1, 8, WORDS * width) == expected, "{width}");
        let most = (WORDS * width).div_ceil(MAX_PAYLOAD / 8 * 8) + 1;
        assert!((1..=most).contains(&posts(&job)), "{} messages, {width}", posts(&job));
    }
}

#[test]
fn atomics_of_a_pe_on_its_own_words_are_executed_at_once() {
    for staged in [ALL, 0] {
        let mut job = Job::new(7, &Shape { staged, ..shape(true) }, Script::default());
        fill(&job, 2);
        let targets = Targets::of(&job);
        job.fabric.trace_calls();
        let word = |job: &Job| job.fabric.load(Pe(0), targets.word(0, 64), 8);
        for operand in 1..=5 {
            job.members[0].lane.atomic(&targets.atomic(0, 64, AtomicOp::Add, operand)).unwrap();
        }
        job.members[0].lane.quiet(Pe(0)).unwrap();
        assert_eq!(word(&job), 15_u64.to_le_bytes());
        assert!(!job.fabric.calls().iter().any(|call| matches!(call, Call::Post(..))));
        // Behind a put to itself.
        let from = job.members[0].scratch;
        job.members[0].lane.start(&targets.part(from, 0, 1024, 4096)).unwrap();
        job.members[0].lane.atomic(&targets.atomic(0, 64, AtomicOp::SignalAdd, 1)).unwrap();
        while word(&job) != 16_u64.to_le_bytes() {
            iterate(&mut job);
        }
        let expected: Vec<u8> = (0..4096).map(|at| pattern(0, at)).collect();
        assert!(job.heap(0, 1024, 4096) == expected);
    }
}
