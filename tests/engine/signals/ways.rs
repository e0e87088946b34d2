//! The way that a signal goes with its data, at the bounds between the ways: told by what reaches
//! the peer while the sender does nothing more, or the fabric keeps something back.

use engine::atomic::AtomicOp;
use engine::ids::Pe;
use engine::lane::SignalEngine;
use engine::request::PutSignalRequest;
use engine::wire::message::MAX_EAGER;
use sim_fabric::{Call, Script};

use super::Targets;
use crate::job::{Job, Shape};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Eager,
    Counted,
    Chained,
}

/// The way of a signal with parts of these lengths.
fn way(shape: &Shape, lens: &[usize]) -> Way {
    let applied = |hold: fn(&Job)| {
        let mut job = Job::new(5, shape, Script::default());
        let targets = Targets::of(&job);
        hold(&job);
        job.fabric.trace_calls();
        let first = &mut job.members[0];
        let local = first.scratch;
        let mut at = 64;
        let part = |len: &usize| {
            at += len;
            targets.part(local, 1, at - len, *len)
        };
        let parts: Vec<_> = lens.iter().map(part).collect();
        let signal = targets.atomic(1, 0, AtomicOp::SignalAdd, 1);
        first.lane.put_signal(&PutSignalRequest { parts: &parts, signal }).unwrap();
        let posted = |call: &&Call| matches!(call, Call::Post(Pe(0), _));
        let posted = job.fabric.calls().iter().filter(posted).count();
        for _ in 0..10_000 {
            job.members[1].lane.progress().unwrap();
        }
        (posted, job.word(1, 0) == 1)
    };
    let (posted, is_applied) = applied(|_| ());
    if posted == 1 && is_applied {
        return Way::Eager;
    }
    if !is_applied {
        return Way::Chained;
    }
    let (_, is_applied) = applied(|job| job.fabric.hold_immediate_data(true));
    assert!(!is_applied, "nothing else keeps it behind its data");
    Way::Counted
}

#[test]
fn signal_paths_depend_on_length() {
    use SignalEngine::{Auto, Chained, Counted, Eager};
    let shape = |signals| Shape { signals, heap: 1 << 18, ..Shape::default() };
    let long = 64 << 10;
    for (signals, lens, expected) in [
        (Auto, &[MAX_EAGER][..], Way::Eager),
        (Auto, &[MAX_EAGER + 1], Way::Counted),
        // The signal of several parts is behind everything before it.
        (Auto, &[8, 8], Way::Chained),
        (Auto, &[long], Way::Counted),
        (Eager, &[MAX_EAGER], Way::Eager),
        (Eager, &[MAX_EAGER + 1], Way::Chained),
        (Counted, &[8], Way::Counted),
        (Chained, &[8], Way::Chained),
    ] {
        assert_eq!(way(&shape(signals), lens), expected, "{signals:?} {lens:?}");
    }
    for (immediate_data, counted) in [(true, 8), (true, 0), (false, 8)] {
        let expected = if immediate_data && counted > 0 { Way::Counted } else { Way::Chained };
        for shape in [Shape { rails: 1, ..shape(Auto) }, shape(Auto), shape(Counted)] {
            let shape = Shape { immediate_data, counted, ..shape };
            assert_eq!(way(&shape, &[long]), expected, "{shape:?}");
        }
    }
}
