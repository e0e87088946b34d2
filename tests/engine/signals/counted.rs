//! Puts whose segments the target counts.

use engine::atomic::AtomicOp;
use engine::channel::counts::TAGS;
use engine::error::EngineError;
use engine::ids::{Pe, RailId};
use engine::lane::SignalEngine;
use engine::request::PutSignalRequest;
use engine::wire::cookie::Cookie;
use engine::wire::marks::Marks;
use engine::wire::message::Tag;
use engine::wire::message::WINDOW;
use sim_fabric::{Event, Script};
use test_support::seeds::for_seeds;

use super::{Targets, race, random_script};
use crate::job::{Job, Member, Random, Shape};

fn shape() -> Shape {
    Shape { signals: SignalEngine::Counted, max_segment: 64, ..Shape::default() }
}

/// Puts `len` bytes from PE 0 to `at + 8` of PE 1's heap, with a signal that adds one at `at`.
fn put_signal(
    member: &mut Member,
    targets: &Targets,
    at: usize,
    len: usize,
) -> Result<(), EngineError> {
    let parts = [targets.part(member.scratch, 1, at + 8, len)];
    let signal = targets.atomic(1, at, AtomicOp::SignalAdd, 1);
    member.lane.put_signal(&PutSignalRequest { parts: &parts, signal })
}

fn word(job: &Job, at: usize) -> u64 {
    u64::from_le_bytes(job.heap(1, at, 8).try_into().unwrap())
}

fn iterate(job: &mut Job, pe: usize, times: u32) {
    for _ in 0..times {
        job.members[pe].lane.progress().unwrap();
    }
}

#[test]
fn a_signal_costs_its_sender_no_turn() {
    let mut job = Job::new(1, &shape(), Script::default());
    job.fill_scratch(0, &[0x5a; 600]);
    let targets = Targets::of(&job);
    put_signal(&mut job.members[0], &targets, 0, 600).unwrap();
    // The sender learns of no completion, and the signal comes all the same.
    iterate(&mut job, 1, 10_000);
    assert_eq!(word(&job, 0), 1);
    assert_eq!(job.heap(1, 8, 600), [0x5a; 600]);

    // Chained, it does not.
    let chained = Shape { signals: SignalEngine::Chained, ..shape() };
    let mut job = Job::new(1, &chained, Script::default());
    let targets = Targets::of(&job);
    put_signal(&mut job.members[0], &targets, 0, 600).unwrap();
    iterate(&mut job, 1, 10_000);
    assert_eq!(word(&job, 0), 0);
}

#[test]
fn counting_saves_a_way() {
    // Polls take next to nothing beside it.
    const WAY: u64 = 1_000_000_000;
    let ways = |signals: SignalEngine, len: usize| {
        let script = Script { delay: (WAY, WAY), ..Script::default() };
        let shape = Shape { signals, max_segment: 1 << 10, ..shape() };
        let mut job = Job::new(1, &shape, script);
        let targets = Targets::of(&job);
        put_signal(&mut job.members[0], &targets, 0, len).unwrap();
        while word(&job, 0) == 0 {
            // As a loop that waits: towards what comes next.
            job.fabric.pass_time(WAY / 1000);
            iterate(&mut job, 0, 1);
            iterate(&mut job, 1, 1);
        }
        job.fabric.now() / WAY
    };
    assert_eq!(ways(SignalEngine::Eager, 100), 1);
    // There with the data, and told of it a way later, as the fake does; a NIC tells at once.
    assert_eq!(ways(SignalEngine::Counted, 600), 2);
    // There, back, and there.
    assert_eq!(ways(SignalEngine::Chained, 600), 3);
}

#[test]
fn a_stuck_signal_delays_no_other_and_is_not_acknowledged() {
    let mut job = Job::new(2, &shape(), Script::default());
    let targets = Targets::of(&job);
    // The target is never told of one of these segments, as long as we please.
    job.fabric.hold_immediate_data(true);
    put_signal(&mut job.members[0], &targets, 0, 100).unwrap();
    iterate(&mut job, 1, 2000);
    for _ in 0..300 {
        job.members[0].lane.atomic(&targets.atomic(1, 4096, AtomicOp::Inc, 0)).unwrap();
    }
    for _ in 0..2000 {
        iterate(&mut job, 0, 1);
        assert!(!job.members[0].lane.is_quiet(Pe(1)).unwrap(), "the signal was not applied");
        iterate(&mut job, 1, 1);
    }
    assert_eq!((word(&job, 0), word(&job, 4096)), (0, 300));
    job.fabric.hold_immediate_data(false);
    while !job.members[0].lane.is_quiet(Pe(1)).unwrap() {
        iterate(&mut job, 0, 1);
        iterate(&mut job, 1, 1);
    }
    assert_eq!((word(&job, 0), word(&job, 4096)), (1, 300));
}

#[test]
fn a_slow_rail_delays_only_the_signals_whose_data_it_carries() {
    let slow_rails = vec![(RailId(0), 1000)];
    let script = Script { delay: (1_000, 1_000), slow_rails, ..Script::default() };
    // With two rails all data would take the one, and all signals the other.
    let job = Job::new(3, &Shape { rails: 3, ..shape() }, script);
    let base = job.members[1].base;
    let (fabric, _) = race(job, 3, |me, member, targets| {
        if me == 1 {
            return Ok(());
        }
        for number in 0..8 {
            put_signal(member, targets, number * 1024, 60)?;
        }
        member.lane.quiet(Pe(1))
    });
    let applied = |event: &Event| match event {
        Event::Applied { pe: Pe(1), addr } => Some((addr - base) / 1024),
        _ => None,
    };
    let mut order: Vec<usize> = fabric.events().iter().filter_map(applied).collect();
    assert!(!order.is_sorted(), "the fast ones overtake the slow ones: {order:?}");
    order.sort_unstable();
    assert_eq!(order, [0, 1, 2, 3, 4, 5, 6, 7]);
}

/// A signal that waits takes a place in the window. With the window full behind it, and every tag
/// in use, the sender waits, and goes on when the data is told of.
#[test]
fn a_full_window_behind_a_signal_that_waits_opens_again() {
    for counted in [1, 2, TAGS] {
        let shape = Shape { counted, depth: 1, ..shape() };
        let job = Job::new(4, &shape, Script { duplicate_percent: 30, ..Script::default() });
        let (fabric, base) = (job.fabric.clone(), job.members[1].base);
        let watched = fabric.clone();
        watched.hold_immediate_data(true);
        let (fabric, _) = race(job, 4, |me, member, targets| {
            if me == 0 {
                for number in 0..usize::from(counted) {
                    put_signal(member, targets, number * 256, 200)?;
                }
                for _ in 0..600 {
                    member.lane.atomic(&targets.atomic(1, 8192, AtomicOp::Inc, 0))?;
                }
                for number in 0..40 {
                    put_signal(member, targets, 16384 + number * 256, 200)?;
                }
                return member.lane.quiet(Pe(1));
            }
            // As much as the window lets pass.
            let passes = WINDOW - u64::from(counted);
            let applied = || {
                let word = watched.load(Pe(1), base + 8192, 8);
                u64::from_le_bytes(word.try_into().unwrap())
            };
            while applied() < passes {
                member.lane.progress()?;
                watched.step();
            }
            watched.hold_immediate_data(false);
            Ok(())
        });
        let word = |at| u64::from_le_bytes(fabric.load(Pe(1), base + at, 8).try_into().unwrap());
        assert_eq!(word(8192), 600);
        assert!((0..usize::from(counted)).all(|number| word(number * 256) == 1));
        assert!((0..40).all(|number| word(16384 + number * 256) == 1));
    }
}

#[test]
fn tags_are_used_again_across_their_wrap() {
    let shape = Shape { counted: 1, ..shape() };
    let job = Job::new(5, &shape, Script { duplicate_percent: 20, ..Script::default() });
    let base = job.members[1].base;
    let (fabric, _) = race(job, 5, |me, member, targets| {
        for _ in 0..if me == 0 { 4500 } else { 0 } {
            put_signal(member, targets, 0, 70)?;
        }
        member.lane.quiet(Pe(1))
    });
    assert_eq!(fabric.load(Pe(1), base, 8), 4500u64.to_le_bytes());
    for_seeds("tags_are_used_again_across_their_wrap", &[], 60, |seed| {
        let mut random = Random(seed * 0x9e37_79b9 + 17);
        let shape = Shape {
            rails: 1 + random.below(4) as u8,
            depth: [1, 1, 2, 16][random.below(4)],
            counted: [1, 2, 3, TAGS][random.below(4)],
            ..self::shape()
        };
        let job = Job::new(seed, &shape, random_script(&mut random));
        let base = job.members[1].base;
        let (fabric, members) = race(job, seed, |me, member, targets| {
            // Both send, the second to itself.
            for number in 0..60 {
                put_signal(member, targets, 4096 * me as usize, 1 + number * 3)?;
            }
            member.lane.quiet(Pe(1))
        });
        for me in 0..2 {
            assert_eq!(fabric.load(Pe(1), base + 4096 * me, 8), 60u64.to_le_bytes());
        }
        assert!(members.iter().all(|member| !member.lane.has_work()));
    });
}

#[test]
fn data_that_never_comes_is_named_at_both_ends() {
    let mut job = Job::new(6, &shape(), Script::default());
    let targets = Targets::of(&job);
    job.fabric.lose_next_immediate_data(1);
    put_signal(&mut job.members[0], &targets, 0, 150).unwrap();
    let failed = loop {
        if let Err(failed) = job.members[1].lane.progress() {
            break failed;
        }
        // Time passes faster than by polling.
        job.fabric.pass_time(10_000_000);
    };
    match *failed {
        EngineError::DataMissing { pe: Pe(0), arrived: 2, segments: 3, waiting: 1, seconds } => {
            assert!((60..70).contains(&seconds), "{seconds}");
        }
        other => panic!("{other}"),
    }
    let text = failed.to_string();
    assert!(text.contains("PE 0") && text.contains("2 of its 3 segments"), "{text}");
    let text = job.quiet(0, 1).unwrap_err().to_string();
    assert!(text.contains("PE 1") && text.contains("not acknowledged"), "{text}");
    assert_eq!(word(&job, 0), 0, "never without its data");
}

#[test]
fn a_failed_segment_leaves_the_signal_waiting_and_tells_the_sender() {
    let mut job = Job::new(7, &shape(), Script::default());
    let targets = Targets::of(&job);
    job.fabric.fail_next(1);
    put_signal(&mut job.members[0], &targets, 0, 150).unwrap();
    let text = job.quiet(0, 1).unwrap_err().to_string();
    assert!(text.contains("put of") && text.contains("failed by the script"), "{text}");
    iterate(&mut job, 1, 5000);
    assert_eq!(word(&job, 0), 0);
}

/// A put whose second part is refused leaves segments without a signal behind, and its tag in use.
#[test]
fn after_a_put_that_was_refused_halfway_signals_are_still_right() {
    let job = Job::new(8, &shape(), Script::default());
    let (base, heap) = (job.members[1].base, job.heap);
    let (fabric, members) = race(job, 8, |me, member, targets| {
        if me == 1 {
            return Ok(());
        }
        for _ in 0..=TAGS {
            let local = member.scratch;
            let parts = [targets.part(local, 1, 1024, 100), targets.part(local, 1, heap - 50, 100)];
            let signal = targets.atomic(1, 0, AtomicOp::SignalAdd, 1);
            let refused = member.lane.put_signal(&PutSignalRequest { parts: &parts, signal });
            assert!(matches!(refused, Err(EngineError::Refused { .. })), "{refused:?}");
            for _ in 0..4 {
                put_signal(member, targets, 64, 100)?;
            }
        }
        member.lane.quiet(Pe(1))
    });
    assert_eq!(fabric.load(Pe(1), base + 64, 8), (4 * u64::from(TAGS + 1)).to_le_bytes());
    assert_eq!(fabric.load(Pe(1), base, 8), [0; 8]);
    assert!(!members[0].lane.has_work());
}

#[test]
fn without_immediate_data_on_every_rail_of_the_job_signals_are_chained() {
    for shape in [Shape { counted: 0, ..shape() }, Shape { immediate_data: false, ..shape() }] {
        let mut job = Job::new(9, &shape, Script::default());
        let targets = Targets::of(&job);
        put_signal(&mut job.members[0], &targets, 0, 600).unwrap();
        iterate(&mut job, 1, 5000);
        assert_eq!(word(&job, 0), 0, "it waits for the completion");
        while !job.members[0].lane.is_quiet(Pe(1)).unwrap() {
            iterate(&mut job, 0, 1);
            iterate(&mut job, 1, 1);
        }
        assert_eq!(word(&job, 0), 1);
    }
}

#[test]
fn auto_counts_what_is_too_long_for_one_message() {
    // What is counted waits for immediate data.
    for (len, rails) in [(600, 1), (600, 2), (100_000, 2)] {
        let shape = Shape {
            signals: SignalEngine::Auto,
            max_segment: 1 << 20,
            heap: 1 << 18,
            rails,
            ..shape()
        };
        let mut job = Job::new(10, &shape, Script::default());
        let targets = Targets::of(&job);
        job.fabric.hold_immediate_data(true);
        put_signal(&mut job.members[0], &targets, 0, len).unwrap();
        iterate(&mut job, 1, 5000);
        assert_eq!(word(&job, 0), 0, "{len} bytes are counted");
        job.fabric.hold_immediate_data(false);
        iterate(&mut job, 1, 5000);
        assert_eq!(word(&job, 0), 1, "{len} bytes, {rails} rails");
    }
    let shape = Shape { signals: SignalEngine::Auto, max_segment: 1 << 20, ..shape() };
    let mut job = Job::new(10, &shape, Script::default());
    let targets = Targets::of(&job);
    job.fabric.hold_immediate_data(true);
    put_signal(&mut job.members[0], &targets, 0, 100).unwrap();
    iterate(&mut job, 1, 5000);
    assert_eq!(word(&job, 0), 1, "100 bytes are not counted");
}

/// Whoever reaches a rail can tell it anything: a write of no bytes needs no key.
#[test]
fn immediate_data_that_no_lane_has_sent_is_dropped() {
    let early = Tag(Tag::FIRST.0.wrapping_add(TAGS));
    for (mark_bytes, n_pes) in [(8, 2), (4, 2), (8, 5)] {
        let shape = Shape { mark_bytes, n_pes, ..shape() };
        let marks = |share, pe| Marks::new(Cookie::of([share]), Pe(pe), n_pes, mark_bytes);
        let mark = |pe, to, tag| marks(*b"0123456789abcdef", pe).of_mine(Pe(to), tag);
        let forged = [
            ("as it was without a cookie", u64::from(Tag::FIRST.0)),
            ("a PE that there is not", mark(0, 1, Tag::FIRST) | 7 << 4),
            ("a put that is not next", mark(0, 1, early)),
            ("a put of long ago", mark(0, 1, Tag(0))),
            ("for another PE", mark(0, 0, Tag::FIRST)),
            ("of another PE", mark(1, 1, Tag::FIRST) & !0x7f),
            ("of another job", marks([7; 16], 0).of_mine(Pe(1), Tag::FIRST)),
            ("a bit", mark(0, 1, Tag::FIRST) ^ 1 << (8 * mark_bytes - 1)),
            ("nothing", 0),
            ("all", u64::MAX),
        ];
        let mut job = Job::new(11, &shape, Script::default());
        let targets = Targets::of(&job);
        for (number, (what, data)) in forged.into_iter().enumerate() {
            job.fabric.forge_immediate_data(Pe(1), RailId(0), data);
            let lane = &mut job.members[1].lane;
            lane.progress().unwrap_or_else(|error| panic!("{what}: {error}"));
            let foreign: u64 = lane.counters().map(|rail| rail.foreign).sum();
            assert_eq!(foreign, number as u64 + 1, "{what}");
            assert_eq!(job.heap(1, 0, job.heap), vec![0; job.heap], "{what}");
        }
        // The genuine signal waits for all of its data, as if there had been nothing.
        job.fabric.hold_immediate_data(true);
        put_signal(&mut job.members[0], &targets, 0, 64).unwrap();
        iterate(&mut job, 1, 1000);
        assert_eq!(word(&job, 0), 0, "before its data");
        job.fabric.forge_immediate_data(Pe(1), RailId(0), u64::from(Tag::FIRST.0));
        iterate(&mut job, 1, 1000);
        assert_eq!(word(&job, 0), 0, "by a mark that was made up");
        job.fabric.hold_immediate_data(false);
        iterate(&mut job, 1, 10_000);
        assert_eq!(word(&job, 0), 1);
    }
}
