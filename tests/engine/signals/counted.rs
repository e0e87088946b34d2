//! Puts whose segments the target counts.

use engine::wire::cookie::Cookie;
use engine::wire::immediate::ImmediateCodec;

use crate::prelude::*;

fn shape() -> Shape {
    Shape { signals: SignalChoice::Counted, max_segment: 64, ..PLAIN }
}

/// A signal that waits takes a place in the window, and delays no other. With the window full
/// behind it, and every tag in use, the sender waits, and goes on when the data is told of.
#[test]
fn full_window_opens_again() {
    for counted in [1, 2, TAGS] {
        let shape = Shape { counted, depth: 1, ..shape() };
        let job = Job::new(4, &shape, Script { duplicate_percent: 30, ..CALM });
        let (watched, base) = (job.fabric.clone(), job.members[1].base);
        let word = |at| u64::from_le_bytes(watched.load(Pe(1), base + at, 8).try_into().unwrap());
        watched.hold_immediate_data(true);
        race(job, 4, |me, member, targets| {
            if me == 0 {
                for at in (0..usize::from(counted)).map(|number| number * 256) {
                    member.put_signal(targets, 1, &[(at + 8, 200)], at).unwrap();
                }
                let inc = targets.atomic(1, 8192, engine::atomic::AtomicOp::Inc, 0);
                (0..600).for_each(|_| member.lane.atomic(&inc).unwrap());
                for at in (64..104).map(|number| number * 256) {
                    member.put_signal(targets, 1, &[(at + 8, 200)], at).unwrap();
                }
                return member.lane.quiet(Pe(1)).unwrap();
            }
            while word(8192) < WINDOW - u64::from(counted) {
                member.lane.progress().unwrap();
                watched.step();
            }
            assert_eq!(word(0), 0, "before its data");
            watched.hold_immediate_data(false);
        });
        assert_eq!(word(8192), 600);
        let all = (0..usize::from(counted)).chain(64..104);
        all.for_each(|number| assert_eq!(word(number * 256), 1, "signal {number}"));
    }
}

/// A refused second part leaves segments without a signal, and a tag in use.
#[test]
fn tags_wrap_around() {
    for (counted, puts, refused) in [(1, 4500, 0), (TAGS, 4 * (TAGS + 1), TAGS + 1)] {
        let shape = Shape { counted, ..shape() };
        let job = Job::new(5, &shape, Script { duplicate_percent: 20, ..CALM });
        let (base, heap) = (job.members[1].base, job.heap);
        let (fabric, members) = race(job, 5, |me, member, targets| {
            for number in 0..if me == 0 { puts } else { 0 } {
                if number < refused {
                    let parts = [(1024, 100), (heap - 50, 100)];
                    let refused = member.put_signal(targets, 1, &parts, 0);
                    assert!(matches!(refused, Err(EngineError::Refused { .. })), "{refused:?}");
                }
                member.put_signal(targets, 1, &[(72, 100)], 64).unwrap();
            }
            member.lane.quiet(Pe(1)).unwrap();
        });
        assert_eq!(fabric.load(Pe(1), base + 64, 8), u64::from(puts).to_le_bytes());
        assert_eq!(fabric.load(Pe(1), base, 8), [0; 8]);
        assert!(!members[0].0.lane.has_work());
    }
}

#[test]
fn missing_data_is_reported() {
    let mut job = Job::new(6, &shape(), CALM);
    job.fabric.world().lose_next_data = 1;
    job.put_signal(0, 1, &[(8, 150)], 0).unwrap();
    job.iterate_some(&[0, 1], 100);
    job.fabric.world().lose_next_data = 1;
    job.put_signal(0, 1, &[(1032, 60)], 1024).unwrap();
    let failed = loop {
        if let Err(failed) = job.lane(1).progress() {
            break failed;
        }
        // Time passes faster than by polling.
        job.fabric.pass_time(10_000_000);
    };
    match *failed {
        EngineError::DataMissing { pe: Pe(0), arrived: 2, segments: 3, waiting: 2, seconds } => {
            assert!((60..70).contains(&seconds), "{seconds}");
        }
        other => panic!("{other}"),
    }
    let text = failed.to_string();
    assert!(text.contains("PE 0") && text.contains("2 of its 3 segments"), "{text}");
    let text = job.quiet(0, 1).unwrap_err().to_string();
    assert!(
        text.contains("signal of 40 bytes, PE 1") && text.contains("not acknowledged"),
        "{text}"
    );
    assert_eq!(job.word(1, 0), 0, "never without its data");
}

/// Whoever reaches a rail can tell it anything: a write of no bytes needs no key.
#[test]
fn forged_immediate_data_is_dropped() {
    let early = Tag(Tag::FIRST.0.wrapping_add(TAGS));
    for (immediate_bytes, n_pes) in [(8, 2), (4, 2), (8, 5)] {
        let codec =
            |share, pe| ImmediateCodec::new(Cookie::of([share]), Pe(pe), n_pes, immediate_bytes);
        let mark = |pe, to, tag| codec(*b"0123456789abcdef", pe).encode(Pe(to), tag);
        let forged = [
            ("as it was without a cookie", u64::from(Tag::FIRST.0)),
            ("a PE that there is not", mark(0, 1, Tag::FIRST) | 7 << 4),
            ("a put that is not next", mark(0, 1, early)),
            ("a put of long ago", mark(0, 1, Tag(0))),
            ("of another PE", mark(1, 1, Tag::FIRST) & !0x7f),
            ("of another job", codec([7; 16], 0).encode(Pe(1), Tag::FIRST)),
            ("nothing", 0),
            ("all", u64::MAX),
        ];
        let mut job = Job::with(Shape { immediate_bytes, n_pes, ..shape() });
        for (number, (what, data)) in forged.into_iter().enumerate() {
            job.fabric.forge_immediate_data(Pe(1), RailId(0), data);
            job.lane(1).progress().unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(job.counted(1, |rail| rail.foreign), number as u64 + 1, "{what}");
            assert_eq!(job.heap(1, 0, job.heap), vec![0; job.heap], "{what}");
        }
        // The genuine signal waits for all of its data, as if there had been nothing.
        job.fabric.hold_immediate_data(true);
        job.put_signal(0, 1, &[(8, 64)], 0).unwrap();
        job.progress(1, 1000);
        assert_eq!(job.word(1, 0), 0, "before its data");
        job.fabric.forge_immediate_data(Pe(1), RailId(0), u64::from(Tag::FIRST.0));
        job.progress(1, 1000);
        assert_eq!(job.word(1, 0), 0, "by a mark that was made up");
        job.fabric.hold_immediate_data(false);
        job.progress_until(&[1], |job| job.word(1, 0) == 1);
    }
}
