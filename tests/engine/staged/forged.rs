//! Messages about staged memory that no lane has sent, of a PE that breaks the rules.

use engine::atomic::{Atomic, AtomicOp, Width};
use engine::error::EngineError;
use engine::ids::{Pe, RailId};
use engine::port::Access;
use engine::wire::message::{Body, Seq, Spot};
use engine::wire::staged::{Get, MOST_RECORDS, Pull, RECORD, Record, Source, Target};
use sim_fabric::{Call, Event, Script};

use super::ALL;
use super::gathered::shape;
use crate::job::{FIRST_REGION, Job, Shape};
use crate::signals::forged::{ahead, message_to};
use crate::signals::race;

/// The heap of a PE: bounce memory is its first region.
const HEAP: u32 = 2 * FIRST_REGION + 1;

fn spot(slot: u32, offset: u64) -> Spot {
    Spot { slot, offset }
}

fn put(to: Spot, len: u32, at: u32) -> Record {
    Record { to, len, at, signal: None, behind: false }
}

/// Has PE 1 pull `len` bytes of PE 0's bounce memory. `number`: messages of PE 0 before it.
fn forge(job: &Job, number: u64, target: Target, (offset, len): (u64, u32)) {
    let body = Body::Pull(Pull { target, len, source: Source::Bounce(offset), brought: &[] });
    let bytes = message_to((0, 1), (ahead(number), Seq::FIRST), 0, &body);
    job.fabric.forge_message(Pe(1), RailId(0), &bytes);
}

/// Puts a list at the start of PE 0's bounce memory.
fn store_list(job: &Job, listed: &[Record]) {
    let bytes: Vec<u8> = listed.iter().flat_map(Record::encode).collect();
    job.fabric.store(Pe(0), job.fabric.bounce_memory(Pe(0)), &bytes);
}

/// Lets PE 1 go on, and counts what it has copied and which words it has changed.
fn outcome(job: &mut Job) -> (usize, usize) {
    for _ in 0..100 {
        let _ = job.members[1].lane.progress();
        job.fabric.pass_time(1000);
    }
    let events = job.fabric.events();
    let count = |is: fn(&Event) -> bool| events.iter().filter(|event| is(event)).count();
    let copied = count(|event| matches!(event, Event::Copied { pe: Pe(1), .. }));
    (copied, count(|event| matches!(event, Event::Applied { pe: Pe(1), .. })))
}

#[test]
fn lists_that_lead_outside_move_nothing() {
    let add = Atomic {
        op: AtomicOp::SignalAdd,
        width: Width::Eight,
        float: false,
        operand: 3,
        compare: 0,
    };
    let fetch = Atomic { op: AtomicOp::FetchAdd, ..add };
    let (good, other) = (put(spot(HEAP, 0), 100, 128), put(spot(HEAP, 500), 100, 228));
    let signals = |atomic, at| Record { signal: Some((at, atomic)), ..good };
    let (whole, far) = (1024, 1 << 40);
    let begin = 2 * RECORD as u32;
    for (first, count, len, moved) in [
        (good, 2, whole, (2, 0)),
        (signals(add, spot(HEAP, 800)), 2, whole, (2, 1)),
        (good, MOST_RECORDS as u16 + 1, whole, (0, 0)),
        (good, u16::MAX, whole, (0, 0)),
        (good, 2, begin, (0, 0)),
        (put(spot(HEAP, 0), 100, 0), 2, whole, (0, 0)),
        (put(spot(HEAP, 0), 100, begin - 1), 2, whole, (0, 0)),
        (put(spot(HEAP, 0), 100, 925), 2, whole, (0, 0)),
        (put(spot(HEAP, 0), 100, u32::MAX), 2, whole, (0, 0)),
        (put(spot(HEAP, 0), u32::MAX, 128), 2, whole, (0, 0)),
        (put(spot(HEAP, far), 100, 128), 2, whole, (0, 0)),
        (put(spot(HEAP, u64::MAX), 100, 128), 2, whole, (0, 0)),
        (put(spot(HEAP + 900, 0), 100, 128), 2, whole, (0, 0)),
        (signals(add, spot(HEAP, far)), 2, whole, (0, 0)),
        (signals(add, spot(HEAP + 900, 800)), 2, whole, (0, 0)),
        (signals(add, spot(HEAP, 804)), 2, whole, (0, 0)),
        (signals(fetch, spot(HEAP, 800)), 2, whole, (0, 0)),
    ] {
        let job = &mut Job::new(5, &shape(true), Script::default());
        for listed in [[first, other], [other, first]] {
            store_list(job, &listed);
        }
        forge(job, 0, Target::List(count), (0, len));
        assert_eq!(outcome(job), moved, "{first:?} {count} {len}");
    }
}

#[test]
fn released_regions_of_waiting_lists_are_not_written() {
    let mut waited = 0;
    for seed in 1..=80 {
        let script = Script { again_percent: 80, ..Script::default() };
        let mut job = Job::new(seed, &shape(true), script);
        let handle = job.members[1].handle;
        store_list(&job, &[put(spot(HEAP, 0), 100, 200), put(spot(HEAP, 500), 100, 300)]);
        job.fabric.trace_calls();
        let has_copied = |job: &Job| job.fabric.calls().contains(&Call::Copy(Pe(1)));
        forge(&job, 0, Target::List(2), (0, 1024));
        job.fabric.pass_time(1_000_000);
        job.members[1].lane.progress().unwrap();
        if has_copied(&job) {
            continue;
        }
        let (base, len) = (job.members[1].base, job.heap);
        // From when the list is read the memory is in use.
        let is_released = seed % 4 != 0 && job.members[1].lane.check_unused(base, len).is_ok();
        waited += u32::from(is_released);
        if is_released {
            job.members[1].regions.release(&handle).unwrap();
        }
        for _ in 0..300 {
            let _ = job.members[1].lane.progress();
            job.fabric.pass_time(1000);
        }
        let copied = outcome(&mut job).0;
        assert_eq!((has_copied(&job), copied > 0), (!is_released, !is_released), "seed {seed}");
    }
    assert!(waited > 20, "{waited}");
}

/// Many at once, which go on by groups: all of them end.
#[test]
fn lists_that_are_executed_by_groups_end() {
    const LISTS: u64 = 64;
    let script = Script { delay: (1000, 10_000), ..Script::default() };
    let mut job = Job::new(5, &shape(true), script);
    let first = put(spot(HEAP, 0), 100, 200);
    store_list(&job, &[first, Record { behind: true, ..first }]);
    (0..LISTS).for_each(|number| forge(&job, number, Target::List(2), (0, 1000)));
    for _ in 0..200 {
        outcome(&mut job);
    }
    assert_eq!(outcome(&mut job).0, 2 * LISTS as usize);
    assert!(!job.members[1].lane.has_work());
}

fn neighbours() -> Shape {
    Shape { staged: ALL, shared: u32::MAX, rails: 1, ..Shape::default() }
}

#[test]
fn nothing_outside_of_bounce_memory_can_be_named() {
    // Bounce buffers of 1 KiB, two each way.
    let all = 4 * 1024;
    for (offset, len, copies) in [
        (0, 1000, 1),
        (all - 1000, 1000, 1),
        (all, 1, 0),
        (all - 999, 1000, 0),
        (all + 1, 1, 0),
        (u64::MAX, 1000, 0),
        (1 << 62, 8, 0),
        (0, u32::MAX, 0),
    ] {
        let mut job = Job::new(5, &neighbours(), Script::default());
        forge(&job, 0, Target::One(put(spot(HEAP, 0), len, 0)), (offset, len));
        assert_eq!(outcome(&mut job).0, copies, "{len} bytes at {offset}");
    }
}

#[test]
fn peers_that_do_not_share_name_no_place() {
    let mut job = Job::new(5, &Shape { shared: 0b10, ..neighbours() }, Script::default());
    forge(&job, 0, Target::One(put(spot(HEAP, 0), 1000, 0)), (0, 1000));
    assert_eq!(outcome(&mut job).0, 0);
}

/// A get is answered once: the place of its entry is the next get's afterwards, which is of other
/// memory.
#[test]
fn gets_are_answered_once() {
    let mut job = Job::new(5, &neighbours(), Script::default());
    job.get(1, 0, 0, 1000).unwrap();
    let get = Get { number: 0, of: Seq::FIRST.low() };
    (0..2).for_each(|number| forge(&job, number, Target::Get(get), (0, 1000)));
    let failed = (0..100).find_map(|_| job.members[1].lane.progress().err());
    assert!(
        matches!(failed.as_deref(), Some(EngineError::BadMessage { pe: Pe(0), .. })),
        "{failed:?}"
    );
}

#[test]
fn keys_of_reused_regions_are_told_anew() {
    let shape = Shape { staged: 0b0100, needs_desc: false, ..Shape::default() };
    let job = Job::new(4, &shape, Script::default());
    let fabric = job.fabric.clone();
    let base = job.members[1].base;
    race(job, 4, |me, member, targets| {
        if me == 1 {
            return Ok(());
        }
        for byte in 1..=30_u8 {
            let addr = fabric.alloc(Pe(0), 1000);
            fabric.store(Pe(0), addr, &[byte; 1000]);
            let handle = member.regions.register(addr, 1000, Access::Local)?;
            member.lane.complete(&targets.part(addr, 1, 0, 1000))?;
            assert_eq!(fabric.load(Pe(1), base, 1000), [byte; 1000]);
            member.regions.release(&handle)?;
        }
        Ok(())
    });
}

/// A PE that keeps the rules has so many gets under way at most.
#[test]
fn asking_for_too_much_is_refused() {
    const MOST: u64 = 64 + 512;
    let shape = Shape { staged: ALL, bounce: (1024, 2, 2), rails: 1, ..Shape::default() };
    let mut job = Job::new(4, &shape, Script::default());
    let mut refused = None;
    for number in 0..2 * MOST {
        let body = Body::Ask { from: spot(HEAP, 0), len: 1000, get: number as u32 };
        let bytes = message_to((0, 1), (ahead(number), Seq::FIRST), 0, &body);
        job.fabric.forge_message(Pe(1), RailId(0), &bytes);
        if let Err(error) = job.members[1].lane.progress() {
            refused = Some((number, error));
            break;
        }
    }
    let (number, error) = refused.unwrap();
    assert!(number <= MOST, "{number}: {error}");
}
