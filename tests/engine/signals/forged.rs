//! Messages that no lane has sent: of strangers, and of PEs that break the rules.

use engine::atomic::{Atomic, AtomicOp, Width};
use engine::error::EngineError;
use engine::ids::{Pe, RailId};
use engine::port::packet::MAX_LONG_MESSAGE;
use engine::wire::handle::Handle;
use engine::wire::message::{
    Body, Frame, MAX_EAGER, Numbers, Sealing, Seq, Spot, WINDOW, eager_in,
};
use engine::wire::seal::Seal;
use sim_fabric::Script;

use super::Targets;
use crate::job::{FIRST_REGION, Job, Shape, cookie};

/// A message as `from` would send it to PE 1.
fn message(from: u32, numbers: (Seq, Seq), mark: u16, body: &Body<'_>) -> Vec<u8> {
    message_to((from, 1), numbers, mark, body)
}

/// A message as one PE would send it to another.
pub(crate) fn message_to(
    (from, to): (u32, u32),
    (seq, ack): (Seq, Seq),
    mark: u16,
    body: &Body<'_>,
) -> Vec<u8> {
    let seal = Seal::new(cookie(), Pe(from));
    let receiver = seal.receiver(Pe(to));
    let sealing = Sealing { seal: &seal, from: Pe(from), receiver: &receiver };
    let mask = seal.mask(Pe(from), Pe(to), seq.high());
    let mut frame = Frame::EMPTY;
    frame.encode(&sealing, &Numbers { seq, ack, mark, mask }, body);
    frame.bytes().to_vec()
}

fn atomic_at(slot: u32, offset: u64, operand: u64) -> Body<'static> {
    let (op, width) = (AtomicOp::Set, Width::Eight);
    let atomic = Atomic { op, width, float: false, operand, compare: 0 };
    Body::Word { at: Spot { slot, offset }, atomic }
}

pub(crate) fn ahead(count: u64) -> Seq {
    Seq(Seq::FIRST.0 + count)
}

fn iterate(job: &mut Job, pe: usize, times: u32) {
    for _ in 0..times {
        job.members[pe].lane.progress().unwrap();
    }
}

/// They are counted, and the job goes on: a genuine message is not taken for a duplicate.
#[test]
fn foreign_messages_are_dropped() {
    let first = (Seq::FIRST, Seq::FIRST);
    let word = atomic_at(FIRST_REGION, 0, 7);
    let genuine = message(0, first, 0, &word);
    let others = Seal::new(engine::wire::cookie::Cookie::of([[7; 16]]), Pe(0));
    let mut unsealed = Frame::EMPTY;
    let receiver = others.receiver(Pe(1));
    let sealing = Sealing { seal: &others, from: Pe(0), receiver: &receiver };
    let numbers = Numbers { seq: Seq::FIRST, ack: Seq::FIRST, mark: 0, mask: 0 };
    unsealed.encode(&sealing, &numbers, &word);
    let mut altered = genuine.clone();
    altered[24] ^= 1;
    let forged: [(&str, Vec<u8>); 10] = [
        ("empty", Vec::new()),
        ("short", vec![0; 15]),
        ("noise", vec![0xff; 40]),
        ("cut", genuine[..31].to_vec()),
        ("of another job", unsealed.bytes().to_vec()),
        ("altered", altered),
        ("of no PE", message(9, first, 0, &word)),
        ("beyond the window", message(0, (ahead(WINDOW), Seq::FIRST), 0, &word)),
        ("acknowledges what was not sent", message(0, (Seq::FIRST, ahead(1)), 0, &word)),
        ("of another round", message(0, (ahead(1 << 32), Seq::FIRST), 0, &word)),
    ];
    let mut job = Job::new(3, &Shape::default(), Script::default());
    let targets = Targets::of(&job);
    let heap = job.heap(1, 0, job.heap);
    for (number, (what, bytes)) in forged.iter().enumerate() {
        job.fabric.forge_message(Pe(1), RailId(1), bytes);
        for _ in 0..10 {
            job.members[1].lane.progress().unwrap_or_else(|error| panic!("{what}: {error}"));
        }
        assert_eq!(job.heap(1, 0, job.heap), heap, "{what}");
        let foreign: Vec<u64> = job.members[1].lane.counters().map(|rail| rail.foreign).collect();
        assert_eq!(foreign, [0, number as u64 + 1], "{what}");
    }
    job.members[0].lane.atomic(&targets.atomic(1, 0, AtomicOp::Inc, 0)).unwrap();
    while !job.members[0].lane.is_quiet(Pe(1)).unwrap() {
        iterate(&mut job, 1, 1);
        iterate(&mut job, 0, 1);
    }
    assert_ne!(job.heap(1, 0, 8), heap[..8]);
}

/// A message can be sent again by whoever has it, and changes nothing: nor does any other made of
/// it.
#[test]
fn overheard_messages_are_executed_once() {
    let mut job = Job::new(3, &Shape { n_pes: 3, ..Shape::default() }, Script::default());
    let targets = Targets::of(&job);
    job.fabric.overhear();
    for _ in 0..3 {
        job.members[0].lane.atomic(&targets.atomic(1, 0, AtomicOp::Add, 1)).unwrap();
    }
    while !job.members[0].lane.is_quiet(Pe(1)).unwrap() {
        (0..3).for_each(|pe| iterate(&mut job, pe, 1));
    }
    let heaps = [0, 1, 2].map(|pe| job.heap(pe, 0, job.heap));
    assert_eq!(heaps[1][..8], 3_u64.to_le_bytes());
    for (to, rail, bytes) in job.fabric.overheard() {
        for pe in [0, 1, 2] {
            job.fabric.forge_message(Pe(pe), rail, &bytes);
        }
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << (at % 8);
            job.fabric.forge_message(to, rail, &changed);
        }
        for pe in 0..3 {
            iterate(&mut job, pe, 10);
        }
    }
    assert_eq!([0, 1, 2].map(|pe| job.heap(pe, 0, job.heap)), heaps);
}

/// The sender is told by name, the target says whose message it was, and nothing changes.
#[test]
fn impossible_messages_are_refused() {
    let heap_end = Shape::default().heap as u64;
    let counted = |tag, segments| {
        let Body::Word { at, atomic } = atomic_at(FIRST_REGION, 0, 7) else { panic!() };
        Body::Beside { at, atomic, tag, segments }
    };
    let first = engine::wire::message::Tag::FIRST;
    let impossible = [
        ("a region that is gone", atomic_at(FIRST_REGION * 5, 0, 7)),
        ("beyond the region", atomic_at(FIRST_REGION, heap_end, 7)),
        ("not aligned", atomic_at(FIRST_REGION, 4, 7)),
        ("a tag of another use", counted(engine::wire::message::Tag(first.0 + 16), 1)),
    ];
    for (what, body) in impossible {
        let mut job = Job::new(3, &Shape::default(), Script::default());
        let heap = job.heap(1, 0, job.heap);
        let bytes = message(0, (Seq::FIRST, Seq::FIRST), 0, &body);
        job.fabric.forge_message(Pe(1), RailId(0), &bytes);
        let failed = (0..100).find_map(|_| job.members[1].lane.progress().err());
        assert!(
            matches!(failed.as_deref(), Some(EngineError::BadMessage { pe: Pe(0), .. })),
            "{what}: {failed:?}"
        );
        for _ in 0..1000 {
            let _ = job.members[0].lane.progress();
            let _ = job.members[1].lane.progress();
        }
        let told = job.members[0].lane.is_quiet(Pe(1));
        assert!(
            matches!(told, Err(EngineError::PeerRefused { pe: Pe(1), .. })),
            "{what}: {told:?}"
        );
        assert_eq!(job.heap(1, 0, job.heap), heap, "{what}");
    }
}

/// A reply that nobody has asked for, or that names another fetch, stores nothing.
#[test]
fn replies_to_other_fetches_are_dropped() {
    let mut job = Job::new(3, &Shape::default(), Script::default());
    let targets = Targets::of(&job);
    job.members[1].lane.atomic(&targets.atomic(0, 0, AtomicOp::Inc, 0)).unwrap();
    let mut fetch = targets.atomic(0, 8, AtomicOp::FetchAdd, 1);
    let addr = job.members[1].base + 64;
    fetch.result = Some(engine::request::ResultPlace { addr, flag: None });
    job.members[1].lane.atomic(&fetch).unwrap();
    // The fetch is the second message.
    let numbers = (Seq::FIRST, Seq::FIRST);
    for (place, of) in [(0, ahead(0)), (0, ahead(2)), (1, ahead(1)), (16, ahead(1))] {
        let body = Body::Reply { place, of: of.low(), value: 99 };
        job.fabric.forge_message(Pe(1), RailId(0), &message(0, numbers, 0, &body));
    }
    iterate(&mut job, 1, 100);
    assert_eq!(job.heap(1, 64, 8), [0; 8]);
    while !job.members[1].lane.is_quiet(Pe(0)).unwrap() {
        iterate(&mut job, 0, 1);
        iterate(&mut job, 1, 1);
    }
    assert_eq!(job.heap(1, 64, 8), [0; 8], "the word was zero");
}

/// A sender that puts into memory of a device what its handle says it must not: nothing is written.
#[test]
fn long_messages_for_devices_are_refused() {
    const MOST: usize = eager_in(MAX_LONG_MESSAGE);
    let Body::Word { atomic, .. } = atomic_at(0, 0, 7) else { panic!() };
    let cases = [
        (0, MOST, true),
        (0, MAX_EAGER, true),
        (0b0100, MAX_EAGER, true),
        (0b0100, MAX_EAGER + 1, false),
        (0b0100, MOST, false),
    ];
    for (staged, len, is_taken) in cases {
        let longest_message = MAX_LONG_MESSAGE;
        let shape = Shape { staged, longest_message, ..Shape::default() };
        let mut job = Job::new(9, &shape, Script::default());
        let slot = Handle::decode(&job.members[1].handle).unwrap().slot;
        let (at, to) = (Spot { slot, offset: 0 }, Spot { slot, offset: 64 });
        let seal = Seal::new(cookie(), Pe(0));
        let receiver = seal.receiver(Pe(1));
        let sealing = Sealing { seal: &seal, from: Pe(0), receiver: &receiver };
        let mask = seal.mask(Pe(0), Pe(1), Seq::FIRST.high());
        let numbers = Numbers { seq: Seq::FIRST, ack: Seq::FIRST, mark: 0, mask };
        let mut frame = Frame::EMPTY;
        frame.put_signal_long(&sealing, &numbers, (at, &atomic), to, len);
        let payload = vec![0x5a; len];
        job.fabric.forge_message(Pe(1), RailId(0), &[frame.bytes(), &payload].concat());
        let failed = (0..1000).find_map(|_| {
            job.fabric.pass_time(10_000);
            job.members[1].lane.progress().err()
        });
        assert_eq!(failed.is_none(), is_taken, "{staged:b} {len}: {failed:?}");
        let expected = if is_taken { payload } else { vec![0; len] };
        assert_eq!(job.heap(1, 64, len), expected, "{staged:b} {len}");
        assert_eq!(job.heap(1, 0, 8) != [0; 8], is_taken, "{staged:b} {len}");
    }
}
