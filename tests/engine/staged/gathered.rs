//! Puts that wait for a bounce buffer leave together: in few copies and messages, ordered as each
//! would be alone.

use engine::atomic::AtomicOp;
use engine::error::EngineError;
use engine::ids::{Pe, RailId};
use engine::request::PutSignalRequest;
use sim_fabric::{Call, Event, Script};

use super::{ALL, fill, pattern};
use crate::job::Targets;
use crate::job::{Job, Shape};
use crate::race::Random;

pub(super) fn shape(shared: bool) -> Shape {
    let shared = if shared { u32::MAX } else { 0 };
    let bounce = (65_536, 4, 4);
    Shape { n_pes: 2, staged: ALL, shared, rails: 1, bounce, heap: 1 << 17, ..Shape::default() }
}

pub(super) fn job(shape: &Shape, seed: u64, script: Script) -> Job {
    let mut job = Job::new(seed, shape, script);
    fill(&job, 2);
    for (me, pe) in [(0, 1), (1, 0)] {
        job.put(me, pe, job.heap - 16 - 8 * me as usize, 8).unwrap();
        end(&mut job, me);
    }
    job
}

pub(super) fn end(job: &mut Job, me: u32) {
    while !job.members[me as usize].lane.is_quiet(Pe(1 - me)).unwrap() {
        job.iterate();
    }
}

const TOKENS: usize = 64;
pub(super) const LEN: usize = 500;

fn place(token: usize) -> usize {
    let slot = token * 29 % TOKENS;
    slot * LEN + slot / 3 * 100
}

fn put_tokens(job: &mut Job) {
    (0..TOKENS).for_each(|token| job.put(0, 1, place(token), LEN).unwrap());
}

fn are_there(job: &Job) {
    for token in 0..TOKENS {
        let expected: Vec<u8> = (place(token)..).take(LEN).map(|at| pattern(0, at)).collect();
        assert!(job.heap(1, place(token), LEN) == expected, "token {token}");
    }
}

/// The first two leave by themselves, at once; what comes meanwhile together.
#[test]
fn waiting_tokens_take_few_messages() {
    const EXPERTS: usize = 8;
    const WORDS: usize = 100_000;
    for shared in [true, false] {
        for seed in 1..=40 {
            let script = Script { delay: (1, 3000), ..Script::default() };
            let mut job = job(&shape(shared), seed, script);
            let targets = Targets::of(&job);
            job.fabric.trace_calls();
            let before = job.fabric.events().len();
            for token in 0..TOKENS {
                let from = job.members[0].scratch + place(token);
                let parts = [targets.part(from, 1, place(token), LEN)];
                let signal =
                    targets.atomic(1, WORDS + 8 * (token % EXPERTS), AtomicOp::SignalAdd, 1);
                let put = PutSignalRequest { parts: &parts, signal };
                job.members[0].lane.put_signal(&put).unwrap();
            }
            end(&mut job, 0);
            are_there(&job);
            for expert in 0..EXPERTS {
                let word = job.fabric.load(Pe(1), targets.word(1, WORDS + 8 * expert), 8);
                assert_eq!(word, (TOKENS / EXPERTS).to_le_bytes(), "expert {expert}");
            }
            let events = job.fabric.events().split_off(before);
            let is_copy = |event: &&Event| matches!(event, Event::Copied { pe: Pe(1), .. });
            assert_eq!(events.iter().filter(is_copy).count(), TOKENS);
            let mut copied = 0;
            let mut applied = 0;
            for event in &events {
                copied += usize::from(is_copy(&event));
                applied += usize::from(matches!(event, Event::Applied { pe: Pe(1), .. }));
                assert!(applied <= copied, "seed {seed}: a signal came before its token");
            }
            let calls = job.fabric.calls();
            let count = |what: &dyn Fn(&Call) -> bool| calls.iter().filter(|c| what(c)).count();
            for pe in [Pe(0), Pe(1)] {
                let copies = count(&|call| matches!(call, Call::Copy(of) if *of == pe));
                let messages = count(&|call| matches!(call, Call::Post(of, _) if *of == pe));
                assert!((1..=4).contains(&copies), "{copies} calls with copies of {pe}, {shared}");
                assert!((1..=TOKENS / 5).contains(&messages), "{messages} posts of {pe}, {shared}");
            }
        }
    }
}

/// Asserts that PE 1 has seen all that was asked for, each an address and how many fences it is
/// behind, and nothing before what is behind fewer of them.
fn check_order(job: &Job, before: usize, mut asked: Vec<(usize, usize)>, seed: u64) {
    let mut last = 0;
    for event in job.fabric.events().split_off(before) {
        let (Event::Copied { pe: Pe(1), addr, .. } | Event::Applied { pe: Pe(1), addr }) = event
        else {
            continue;
        };
        let at = asked.iter().position(|(of, _)| *of == addr).expect("it was asked for");
        let (_, behind) = asked.remove(at);
        assert!(behind >= last, "seed {seed}: what is behind {behind} fences, after {last}");
        last = behind;
    }
    assert!(asked.is_empty(), "seed {seed}: {asked:?}");
}

/// What warps of a kernel hand over before layout 4, each a put, a fence and a signal, one behind
/// the other but at the same time as the others: it takes few messages, and what comes behind a
/// fence is seen behind all before it.
#[test]
fn warps_at_once_take_few_messages() {
    const WORDS: usize = 100_000;
    for seed in 1..=200_u64 {
        let warps = [1, 2, 5, 16][seed as usize % 4];
        let takes_lists = seed % 3 == 0;
        let script = Script { delay: (1, 3000), takes_lists, ..Script::default() };
        let mut job = job(&shape(seed % 2 == 0), seed, script);
        let targets = Targets::of(&job);
        let mut random = Random(seed);
        job.fabric.trace_calls();
        let before = job.fabric.events().len();
        let (mut asked, mut fences, mut next) = (Vec::new(), 0, 0);
        // The token of each warp, and what it does next with it.
        let mut at = vec![None; warps];
        loop {
            let warp = random.below(warps);
            let Some((token, step)) = at[warp] else {
                if next == TOKENS {
                    if at.iter().all(Option::is_none) {
                        break;
                    }
                    continue;
                }
                at[warp] = Some((next, 0));
                next += 1;
                continue;
            };
            let (base, from) = (job.members[1].base, job.members[0].scratch + token * LEN);
            let lane = &mut job.members[0].lane;
            match step {
                0 => {
                    lane.start(&targets.part(from, 1, token * LEN, LEN)).unwrap();
                    asked.push((base + token * LEN, fences));
                }
                1 => {
                    lane.fence(Pe(1)).unwrap();
                    fences += 1;
                }
                _ => {
                    let word = WORDS + 8 * (token % 8);
                    lane.atomic(&targets.atomic(1, word, AtomicOp::SignalAdd, 1)).unwrap();
                    asked.push((targets.word(1, word), fences));
                }
            }
            at[warp] = (step < 2).then_some((token, step + 1));
        }
        end(&mut job, 0);
        check_order(&job, before, asked, seed);
        let expected: Vec<u8> = (0..TOKENS * LEN).map(|at| pattern(0, at)).collect();
        assert!(job.heap(1, 0, TOKENS * LEN) == expected, "seed {seed}");
        for word in 0..8 {
            let word = job.fabric.load(Pe(1), targets.word(1, WORDS + 8 * word), 8);
            assert_eq!(word, (TOKENS / 8).to_le_bytes(), "seed {seed}");
        }
        let most = if warps == 1 { TOKENS / 5 } else { 6 };
        assert!(posts(&job) <= most, "seed {seed}: {} posts", posts(&job));
    }
}

/// A token for several experts is copied out once, and is at all of its places.
#[test]
fn repeated_bytes_are_copied_once() {
    const EXPERTS: usize = 4;
    for seed in 1..=20 {
        let mut job = job(&shape(seed % 2 == 0), seed, Script::default());
        let targets = Targets::of(&job);
        let before = job.fabric.world().copies_out;
        for token in 0..TOKENS / EXPERTS {
            for expert in 0..EXPERTS {
                let from = job.members[0].scratch + token * LEN;
                let place = place(token * EXPERTS + expert);
                job.members[0].lane.start(&targets.part(from, 1, place, LEN)).unwrap();
            }
        }
        end(&mut job, 0);
        for number in 0..TOKENS {
            let token = number / EXPERTS;
            let expected: Vec<u8> = (token * LEN..).take(LEN).map(|at| pattern(0, at)).collect();
            assert!(job.heap(1, place(number), LEN) == expected, "seed {seed}: put {number}");
        }
        // The first ones left alone, before others came.
        let out = job.fabric.world().copies_out - before;
        assert!(out <= TOKENS / EXPERTS + 4, "seed {seed}: {out} copies out");
    }
}

#[test]
fn lost_listed_signal_is_reported() {
    let mut job = job(&shape(true), 5, Script::default());
    let targets = Targets::of(&job);
    job.fabric.world().fail_settling = true;
    let parts = [targets.part(job.members[0].scratch, 1, 0, LEN)];
    let signal = targets.atomic(1, 0, AtomicOp::SignalAdd, 1);
    job.members[0].lane.put_signal(&PutSignalRequest { parts: &parts, signal }).unwrap();
    let failed = loop {
        match job.members[0].lane.is_quiet(Pe(1)) {
            Ok(quiet) => assert!(!quiet),
            Err(error) => break error.to_string(),
        }
        let _ = job.members.iter_mut().map(|member| member.lane.progress()).collect::<Vec<_>>();
        job.fabric.pass_time(1000);
    };
    assert!(failed.contains("failed by the script"), "{failed}");
}

#[test]
fn waiting_puts_keep_their_memory() {
    let mut job = job(&shape(true), 5, Script::default());
    put_tokens(&mut job);
    let member = &mut job.members[0];
    for token in [0, 1, 2, TOKENS - 1] {
        let from = member.scratch + place(token);
        assert!(member.lane.check_unused(from, LEN).is_err(), "token {token}");
    }
    for _ in 0..100 {
        // Behind the third one, of three side by side.
        let member = &mut job.members[0];
        member.lane.check_unused(member.scratch + 3 * LEN, 100).unwrap();
        member.lane.progress().unwrap();
        job.fabric.pass_time(1000);
    }
    end(&mut job, 0);
    let member = &mut job.members[0];
    member.lane.check_unused(member.scratch, TOKENS * LEN).unwrap();
}

#[test]
fn copied_memory_stays_registered() {
    // To copy takes longer than anybody waits.
    let slow_rails = vec![(RailId(u8::MAX), 1_000_000_000)];
    let script = Script { delay: (1000, 1000), slow_rails, ..Script::default() };
    let mut job = job(&shape(true), 5, script);
    let targets = Targets::of(&job);
    let member = &mut job.members[0];
    for (number, from) in [member.scratch, member.base].into_iter().enumerate() {
        member.lane.start(&targets.part(from, 1, number * 1000, LEN)).unwrap();
    }
    job.quiet(0, 1).unwrap_err();
    let member = &mut job.members[0];
    for handle in [member.scratch_handle, member.handle] {
        let released = member.regions.release(&handle);
        assert!(matches!(released, Err(EngineError::InUse { .. })), "{released:?}");
    }
}

/// Messages and reads that PE 0 has posted.
pub(super) fn posts(job: &Job) -> usize {
    let calls = job.fabric.calls();
    calls.iter().filter(|call| matches!(call, Call::Post(Pe(0), _))).count()
}

#[test]
fn fenced_words_do_not_join() {
    let mut job = job(&shape(true), 5, Script::default());
    job.fabric.trace_calls();
    for at in 0..10 {
        job.put_value(0, 1, at * 8, 1).unwrap();
        job.fence(0, 1);
    }
    end(&mut job, 0);
    job.put_value(0, 1, 496, 1).unwrap();
    job.put_value(0, 1, 512, 1).unwrap();
    job.iterate();
    job.put_value(0, 1, 520, 1).unwrap();
    end(&mut job, 0);
    assert!(posts(&job) >= 13, "{} messages", posts(&job));
    let words = (0..10).map(|at| at * 8).chain([496, 512, 520]);
    words.for_each(|at| assert_eq!(job.word(1, at), 1, "{at}"));
}
