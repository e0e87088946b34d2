//! The way that a signal goes with its data, at the bounds between the ways: told by what reaches
//! the peer while the fabric keeps something back.

use engine::atomic::AtomicOp;
use engine::ids::Pe;
use engine::lane::SignalEngine;
use engine::port::Direction;
use engine::request::PutSignalRequest;
use engine::wire::message::MAX_EAGER;
use sim_fabric::{Call, Event, Script};

use super::Targets;
use crate::job::{Job, Member, Shape};

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
        for _ in 0..2_000 {
            job.members.iter_mut().for_each(|member| {
                member.lane.progress().unwrap();
            });
        }
        (posted, job.heap(1, 0, 8) == 1_u64.to_le_bytes())
    };
    let (posted, is_applied) = applied(|job| job.fabric.lose_next_completions(1));
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
fn each_way_ends_where_the_next_begins() {
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
    for immediate_data in [true, false] {
        let expected = if immediate_data { Way::Counted } else { Way::Chained };
        let one_rail = Shape { rails: 1, immediate_data, ..shape(Auto) };
        assert_eq!(way(&one_rail, &[long]), expected, "immediate data: {immediate_data}");
    }
}

/// Where a peer has its data and where its words, of every two kinds of memory, and by every way:
/// the signal comes last. Many come in at one look, when what is for a device waits for the rest.
#[test]
fn a_signal_comes_behind_data_in_memory_of_another_kind() {
    use SignalEngine::{Auto, Chained, Counted, Eager};
    const MANY: usize = 16;
    const SLOT: usize = 512;
    let data = [(0, 0), (0b100, 0), (0b100, 0b100)];
    let cases = data.into_iter().flat_map(|data| (0..4).map(move |words| (data, words << 2)));
    let ways = [Auto, Eager, Counted, Chained];
    for (((staged, by_fabric), words), signals) in
        cases.flat_map(|case| ways.map(|signals| (case, signals)))
    {
        for len in [1, MAX_EAGER, 2 * MAX_EAGER] {
            let what = format!("{len} bytes {signals:?}, {staged:b} {by_fabric:b} {words:b}");
            let shape = Shape { signals, staged, by_fabric, words, ..Shape::default() };
            let mut job = Job::new(5, &shape, Script::default());
            let targets = Targets::of(&job);
            let base = job.members[1].base;
            let mut submit = |at: usize| {
                let Member { lane, scratch, .. } = &mut job.members[0];
                let parts = [targets.part(*scratch, 1, at + 8, len)];
                let signal = targets.atomic(1, at, AtomicOp::SignalAdd, 1);
                lane.put_signal(&PutSignalRequest { parts: &parts, signal }).unwrap();
            };
            (0..MANY).map(|number| number * SLOT).for_each(&mut submit);
            job.fabric.pass_time(1_000_000_000);
            while !job.members[0].lane.is_quiet(Pe(1)).unwrap() {
                job.members.iter_mut().rev().for_each(|member| drop(member.lane.progress()));
                job.fabric.pass_time(1_000_000);
            }
            let mut last = [(0, 0); MANY];
            for (moment, event) in (1..).zip(targets.in_heaps(shape.heap, job.fabric.events())) {
                let at = match event {
                    Event::Applied { pe: Pe(1), addr } | Event::Copied { pe: Pe(1), addr, .. } => {
                        addr - base
                    }
                    Event::Delivered(d) if d.to == Pe(1) && d.direction == Direction::Write => {
                        d.remote as usize
                    }
                    _ => continue,
                };
                let (data, word) = &mut last[at / SLOT];
                *if at % SLOT == 0 { word } else { data } = moment;
            }
            assert!(last.iter().all(|(data, word)| 0 < *data && data < word), "{what}: {last:?}");
        }
    }
}
