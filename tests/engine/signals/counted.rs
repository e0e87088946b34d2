//! Puts whose segments the target counts.

use engine::atomic::AtomicOp;
use engine::channel::counts::TAGS;
use engine::error::EngineError;
use engine::ids::{Pe, RailId};
use engine::lane::SignalEngine;
use engine::request::PutSignalRequest;
use engine::wire::cookie::Cookie;
use engine::wire::immediate::ImmediateCodec;
use engine::wire::message::Tag;
use engine::wire::message::WINDOW;
use sim_fabric::Script;

use super::race;
use crate::job::{Job, Shape};

fn shape() -> Shape {
    Shape { signals: SignalEngine::Counted, max_segment: 64, ..Shape::default() }
}

fn iterate(job: &mut Job, pe: usize, times: u32) {
    for _ in 0..times {
        job.members[pe].lane.progress().unwrap();
    }
}

#[test]
fn stuck_signal_delays_no_other() {
    let mut job = Job::new(2, &shape(), Script::default());
    // The target is never told of one of these segments, as long as we please.
    job.fabric.hold_immediate_data(true);
    job.put_signal(0, 1, (8, 100), 0).unwrap();
    iterate(&mut job, 1, 2000);
    for _ in 0..300 {
        job.inc(0, 1, 4096);
    }
    for _ in 0..2000 {
        iterate(&mut job, 0, 1);
        assert!(!job.members[0].lane.is_quiet(Pe(1)).unwrap(), "the signal was not applied");
        iterate(&mut job, 1, 1);
    }
    assert_eq!((job.word(1, 0), job.word(1, 4096)), (0, 300));
    job.fabric.hold_immediate_data(false);
    job.until_quiet(0, 1);
    assert_eq!((job.word(1, 0), job.word(1, 4096)), (1, 300));
}

/// A signal that waits takes a place in the window. With the window full behind it, and every tag
/// in use, the sender waits, and goes on when the data is told of.
#[test]
fn full_window_opens_again() {
    for counted in [1, 2, TAGS] {
        let shape = Shape { counted, depth: 1, ..shape() };
        let job = Job::new(4, &shape, Script { duplicate_percent: 30, ..Script::default() });
        let (fabric, base) = (job.fabric.clone(), job.members[1].base);
        let watched = fabric.clone();
        watched.hold_immediate_data(true);
        let (fabric, _) = race(job, 4, |me, member, targets| {
            if me == 0 {
                for number in 0..usize::from(counted) {
                    member.put_signal(targets, 1, (number * 256 + 8, 200), number * 256)?;
                }
                for _ in 0..600 {
                    member.lane.atomic(&targets.atomic(1, 8192, AtomicOp::Inc, 0))?;
                }
                for number in 0..40 {
                    member.put_signal(
                        targets,
                        1,
                        (16384 + number * 256 + 8, 200),
                        16384 + number * 256,
                    )?;
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
fn tags_wrap_around() {
    let shape = Shape { counted: 1, ..shape() };
    let job = Job::new(5, &shape, Script { duplicate_percent: 20, ..Script::default() });
    let base = job.members[1].base;
    let (fabric, _) = race(job, 5, |me, member, targets| {
        for _ in 0..if me == 0 { 4500 } else { 0 } {
            member.put_signal(targets, 1, (8, 70), 0)?;
        }
        member.lane.quiet(Pe(1))
    });
    assert_eq!(fabric.load(Pe(1), base, 8), 4500u64.to_le_bytes());
}

#[test]
fn missing_data_is_reported() {
    let mut job = Job::new(6, &shape(), Script::default());
    job.fabric.world().lose_next_data = 1;
    job.put_signal(0, 1, (8, 150), 0).unwrap();
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
    assert_eq!(job.word(1, 0), 0, "never without its data");
}

#[test]
fn failed_segment_holds_its_signal() {
    let mut job = Job::new(7, &shape(), Script::default());
    job.fabric.fail_next(1);
    job.put_signal(0, 1, (8, 150), 0).unwrap();
    let text = job.quiet(0, 1).unwrap_err().to_string();
    assert!(text.contains("put of") && text.contains("failed by the script"), "{text}");
    iterate(&mut job, 1, 5000);
    assert_eq!(job.word(1, 0), 0);
}

/// A put whose second part is refused leaves segments without a signal behind, and its tag in use.
#[test]
fn half_refused_put_spoils_no_signal() {
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
                member.put_signal(targets, 1, (72, 100), 64)?;
            }
        }
        member.lane.quiet(Pe(1))
    });
    assert_eq!(fabric.load(Pe(1), base + 64, 8), (4 * u64::from(TAGS + 1)).to_le_bytes());
    assert_eq!(fabric.load(Pe(1), base, 8), [0; 8]);
    assert!(!members[0].lane.has_work());
}

/// Whoever reaches a rail can tell it anything: a write of no bytes needs no key.
#[test]
fn forged_immediate_data_is_dropped() {
    let early = Tag(Tag::FIRST.0.wrapping_add(TAGS));
    for (immediate_bytes, n_pes) in [(8, 2), (4, 2), (8, 5)] {
        let shape = Shape { immediate_bytes, n_pes, ..shape() };
        let codec =
            |share, pe| ImmediateCodec::new(Cookie::of([share]), Pe(pe), n_pes, immediate_bytes);
        let mark = |pe, to, tag| codec(*b"0123456789abcdef", pe).encode(Pe(to), tag);
        let forged = [
            ("as it was without a cookie", u64::from(Tag::FIRST.0)),
            ("a PE that there is not", mark(0, 1, Tag::FIRST) | 7 << 4),
            ("a put that is not next", mark(0, 1, early)),
            ("a put of long ago", mark(0, 1, Tag(0))),
            ("for another PE", mark(0, 0, Tag::FIRST)),
            ("of another PE", mark(1, 1, Tag::FIRST) & !0x7f),
            ("of another job", codec([7; 16], 0).encode(Pe(1), Tag::FIRST)),
            ("a bit", mark(0, 1, Tag::FIRST) ^ 1 << (8 * immediate_bytes - 1)),
            ("nothing", 0),
            ("all", u64::MAX),
        ];
        let mut job = Job::new(11, &shape, Script::default());
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
        job.put_signal(0, 1, (8, 64), 0).unwrap();
        iterate(&mut job, 1, 1000);
        assert_eq!(job.word(1, 0), 0, "before its data");
        job.fabric.forge_immediate_data(Pe(1), RailId(0), u64::from(Tag::FIRST.0));
        iterate(&mut job, 1, 1000);
        assert_eq!(job.word(1, 0), 0, "by a mark that was made up");
        job.fabric.hold_immediate_data(false);
        iterate(&mut job, 1, 10_000);
        assert_eq!(job.word(1, 0), 1);
    }
}
