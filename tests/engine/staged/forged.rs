//! Lists of gathered puts that no engine of ours would send, and lists of many peers at once.

use engine::atomic::{Atomic, AtomicOp, Width};
use engine::ids::{Pe, RailId};
use engine::port::copies::MOST_WORDS;
use engine::request::PutSignalRequest;
use engine::wire::message::{Body, Message, Packet, RequestId, Spot};
use engine::wire::staged::{Exposure, LIST_ENTRY, ListEntry, ListedSignal, MOST_LISTED, Staged};
use engine::wire::window::Seq;
use sim_fabric::{Call, Event, Script};

use super::gathered::{LEN, shape};
use crate::job::{FIRST_REGION, Job, Shape, seal};
use crate::signals::Targets;

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
