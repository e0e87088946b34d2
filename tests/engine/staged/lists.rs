//! Forged lists and places that lead outside: they move nothing.

use engine::port::copies::MAX_WORDS;
use engine::wire::staging::{MAX_RECORDS, RECORD};

use super::gathered::shape;
use super::{ALL, same_host_shape};
use crate::forge::{ahead, atomic, forge, message};
use crate::job::FIRST_REGION;
use crate::prelude::*;

/// Slots of a staged heap, which comes behind the bounce memory, and of scratch memory.
const HEAP: u32 = 2 * FIRST_REGION + 1;
const SCRATCH: u32 = 3 * FIRST_REGION + 2;

fn forge_pull(job: &Job, number: u64, target: PullTarget, len: usize, source: PullSource<'_>) {
    let pull = Pull { target, len: len as u32, source, payload: &[] };
    forge(job, (0, 1), ahead(number), 0, &Body::Pull(pull));
}

fn put(region: u32, offset: u64, len: u32, at: u32) -> WireRecord {
    WireRecord {
        to: RegionAddr { region, offset },
        len,
        offset: at,
        signal: None,
        is_ordered: false,
    }
}

fn signal(op: AtomicOp, region: u32, offset: u64) -> Option<(RegionAddr, engine::atomic::Atomic)> {
    Some((RegionAddr { region, offset }, atomic(op, 3)))
}

/// Writes a list to the start of PE 0's bounce memory.
fn list(job: &Job, records: &[WireRecord]) {
    let bytes: Vec<u8> = records.iter().flat_map(WireRecord::encode).collect();
    job.fabric.store(Pe(0), job.fabric.bounce_memory(Pe(0)), &bytes);
}

/// PE 1's copies into its memory, and its changed words.
fn moved(job: &mut Job) -> (usize, usize) {
    for _ in 0..100 {
        let _ = job.members[1].lane.progress();
        job.fabric.pass_time(1000);
    }
    let events = job.fabric.events();
    let count = |is: fn(&&Event) -> bool| events.iter().filter(is).count();
    (
        count(|event| matches!(event, Event::Copied { pe: Pe(1), .. })),
        count(|event| matches!(event, Event::Applied { pe: Pe(1), .. })),
    )
}

#[test]
fn puts_that_lead_outside_move_nothing() {
    const ADD: AtomicOp = AtomicOp::SignalAdd;
    let good = put(HEAP, 0, 100, 128);
    let with = |op, region, offset| WireRecord { signal: signal(op, region, offset), ..good };
    let alone = WireRecord { len: 0, offset: 0, is_ordered: true, ..with(ADD, HEAP, 800) };
    let behind = WireRecord { is_ordered: true, offset: 200, ..good };
    let words = |count| [vec![put(HEAP, 0, 100, 8000)], vec![alone; count]].concat();
    let whole = 1024;
    let (far, heap) = (1 << 40, shape(true).heap as u64);
    let whole_put = |word| WireRecord { offset: 0, ..with(ADD, HEAP, word) };
    for (listed, count, len, expected) in [
        (vec![good, put(HEAP, 500, 100, 228)], 2, whole, (2, 0)),
        (vec![good, with(ADD, HEAP, 800)], 2, whole, (2, 1)),
        (vec![put(HEAP, 0, 100, 8000); MAX_RECORDS], MAX_RECORDS as u16, 10_000, (MAX_RECORDS, 0)),
        (vec![good, good], MAX_RECORDS as u16 + 1, 10_000, (0, 0)),
        (vec![good, good], u16::MAX, 10_000, (0, 0)),
        (vec![good, good], 2, 2 * RECORD, (0, 0)),
        (vec![good, put(HEAP, 0, 100, 0)], 2, whole, (0, 0)),
        (vec![good, put(HEAP, 0, 100, 2 * RECORD as u32 - 1)], 2, whole, (0, 0)),
        (vec![good, put(HEAP, 0, 100, 925)], 2, whole, (0, 0)),
        (vec![good, put(HEAP, 0, 100, u32::MAX)], 2, whole, (0, 0)),
        (vec![good, put(HEAP, 0, u32::MAX, 128)], 2, whole, (0, 0)),
        (vec![good, put(HEAP, 0, 0, 128)], 2, whole, (0, 0)),
        (vec![good, put(HEAP, far, 100, 128)], 2, whole, (0, 0)),
        (vec![good, put(HEAP, u64::MAX, 100, 128)], 2, whole, (0, 0)),
        (vec![good, put(HEAP + 900, 0, 100, 128)], 2, whole, (0, 0)),
        (vec![good, put(SCRATCH, 0, 100, 128)], 2, whole, (0, 0)),
        (vec![good, with(ADD, HEAP, far)], 2, whole, (0, 0)),
        (vec![good, with(ADD, HEAP + 900, 800)], 2, whole, (0, 0)),
        (vec![good, with(ADD, HEAP, 804)], 2, whole, (0, 0)),
        (vec![good, with(AtomicOp::FetchAdd, HEAP, 800)], 2, whole, (0, 0)),
        // No more signals in an order than a device stores at once.
        (words(1), 2, 10_000, (1, 1)),
        (words(MAX_WORDS), 1 + MAX_WORDS as u16, 10_000, (1, MAX_WORDS)),
        (words(MAX_WORDS + 1), 2 + MAX_WORDS as u16, 10_000, (0, 0)),
        (vec![alone, good], 2, whole, (1, 1)),
        (vec![alone, behind, alone], 3, whole, (1, 2)),
        (vec![alone, alone], 2, 2 * RECORD, (0, 2)),
        (vec![alone, alone], 2, 2 * RECORD - 1, (0, 0)),
        // Puts by themselves, up to the end of the heap.
        (vec![put(HEAP, heap - 100, 100, 0)], 1, 100, (1, 0)),
        (vec![whole_put(heap - 8)], 1, 100, (1, 1)),
        (vec![put(HEAP, heap - 99, 100, 0)], 1, 100, (0, 0)),
        (vec![put(HEAP, (1 << 48) - 1, 100, 0)], 1, 100, (0, 0)),
        (vec![put(5 * FIRST_REGION, 0, 100, 0)], 1, 100, (0, 0)),
        (vec![put(SCRATCH, 0, 100, 0)], 1, 100, (0, 0)),
        (vec![whole_put(heap)], 1, 100, (0, 0)),
        (vec![whole_put(4)], 1, 100, (0, 0)),
    ] {
        let job = &mut Job::new(5, &shape(true), CALM);
        list(job, &listed);
        let target = if count == 1 { PullTarget::One(listed[0]) } else { PullTarget::List(count) };
        forge_pull(job, 0, target, len, PullSource::Bounce(0));
        assert_eq!(moved(job), expected, "{listed:?} {count} {len}");
    }
}

#[test]
fn sources_outside_bounce_memory_are_refused() {
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
        let job = &mut Job::new(5, &same_host_shape(), CALM);
        let target = PullTarget::One(put(HEAP, 0, len, 0));
        forge_pull(job, 0, target, len as usize, PullSource::Bounce(offset));
        assert_eq!(moved(job), (copies, 0), "{len} bytes at {offset}");
        assert_eq!(job.members[1].lane.failure().is_some(), copies == 0, "{len} at {offset}");
    }
    // The list of puts itself.
    let job = &mut Job::new(5, &same_host_shape(), CALM);
    forge_pull(job, 0, PullTarget::List(2), 60, PullSource::Bounce(all - 60));
    assert_eq!(moved(job), (0, 0));
    assert!(job.members[1].lane.failure().is_some());
    // Of a peer that shares nothing.
    let job = &mut Job::with(Shape { shared: 0b10, ..same_host_shape() });
    forge_pull(job, 0, PullTarget::One(put(HEAP, 0, 100, 0)), 100, PullSource::Bounce(0));
    assert_eq!(moved(job), (0, 0));
}

/// They would be read for ever, or into no buffer.
#[test]
fn unreadable_bytes_are_refused() {
    let keys = [1; 8];
    let one = |len: u32, source| {
        let target = PullTarget::One(put(HEAP, 0, len, 0));
        message((0, 1), Seq::FIRST, 0, &Body::Pull(Pull { target, len, source, payload: &[] }))
    };
    let from = RegionAddr { region: HEAP, offset: 0 };
    let ask = Body::GetRequest { from, len: 1025, get: 0, more: &[] };
    let (at, payload) = (RegionAddr { region: HEAP, offset: 0 }, &[7; 1000]);
    let long = Body::PutSignal { addr: at, atomic: atomic(AtomicOp::Set, 7), to: at, payload };
    for (what, bytes) in [
        ("no key", one(100, PullSource::Fabric(0, &[]))),
        ("beyond all addresses", one(100, PullSource::Fabric(u64::MAX - 99, &keys))),
        ("longer than a buffer", one(1025, PullSource::Fabric(0, &keys))),
        ("asked for more than a buffer", message((0, 1), Seq::FIRST, 0, &ask)),
        ("too long for a device", message((0, 1), Seq::FIRST, 0, &long)),
    ] {
        let mut job = Job::new(5, &same_host_shape(), CALM);
        job.fabric.forge_message(Pe(1), RailId(0), &bytes);
        let failed = (0..10).find_map(|_| job.lane(1).progress().err());
        let refused = matches!(failed.as_deref(), Some(EngineError::BadMessage { pe: Pe(0), .. }));
        assert!(refused, "{what}: {failed:?}");
    }
}

#[test]
fn lists_of_released_regions_move_nothing() {
    let mut waited = 0;
    for seed in 1..=40 {
        let mut job = Job::new(seed, &shape(true), Script { again_percent: 80, ..CALM });
        let handle = job.members[1].handle;
        list(&job, &[put(HEAP, 0, 100, 200), put(HEAP, 200, 100, 300)]);
        job.fabric.trace_calls();
        forge_pull(&job, 0, PullTarget::List(2), 1024, PullSource::Bounce(0));
        job.fabric.pass_time(1_000_000);
        job.members[1].lane.progress().unwrap();
        if job.fabric.calls().contains(&Call::Copy(Pe(1))) {
            continue;
        }
        waited += 1;
        let is_released = seed % 4 != 0;
        if is_released {
            job.members[1].regions.release(&handle).unwrap();
        }
        let (copies, _) = moved(&mut job);
        assert_eq!(copies, if is_released { 0 } else { 2 }, "seed {seed}");
    }
    assert!(waited > 20, "{waited}");
}

/// An error of words within a list concerns every receive whose words it had.
#[test]
fn words_lost_within_list_are_refused() {
    let mut job = Job::new(5, &Shape { n_pes: 3, ..shape(true) }, CALM);
    let first =
        WireRecord { signal: signal(AtomicOp::SignalAdd, HEAP, 800), ..put(HEAP, 0, 9, 99) };
    list(&job, &[first, WireRecord { is_ordered: true, ..first }]);
    job.fabric.trace_calls();
    job.put_signal(2, 1, &[(4096, 1000)], 2048).unwrap();
    job.progress_until(&[1, 2], |job| job.copies(1) == 1);
    forge_pull(&job, 0, PullTarget::List(2), 1000, PullSource::Bounce(0));
    job.progress_until(&[1], |job| job.copies(1) == 2);
    job.fabric.world().fail_settling = true;
    // Both copies have ended when PE 1 looks.
    job.fabric.pass_time(1_000_000);
    let told = job.settle(&[1, 2], (2, 1), 1000);
    assert!(matches!(told, Err(EngineError::PeerRefused { .. })), "{told:?}");
}

/// A word of the host, or of a device, that follows one of a device, which is stored later: each in
/// a message, or both in a list.
#[test]
fn words_of_both_memories_keep_order() {
    let host = 4 * FIRST_REGION + 3;
    for (region, is_list) in [(host, false), (HEAP, false), (host, true), (HEAP, true)] {
        let mut job = Job::new(5, &shape(true), CALM);
        let base = job.fabric.alloc_reached(Pe(1), 4096, Reach::Direct);
        job.members[1].regions.register(base, 4096, Access::LocalAndRemote).unwrap();
        let words = [(HEAP, 800), (region, 808)].map(|at| signal(AtomicOp::SignalAdd, at.0, at.1));
        if is_list {
            let records = words.map(|signal| WireRecord { signal, ..put(HEAP, 0, 0, 0) });
            list(&job, &[WireRecord { is_ordered: true, ..records[0] }, records[1]]);
            forge_pull(&job, 0, PullTarget::List(2), 2 * RECORD, PullSource::Bounce(0));
        }
        for (number, word) in (0..).zip(words).filter(|_| !is_list) {
            let (addr, atomic) = word.unwrap();
            forge(&job, (0, 1), ahead(number), number as u16, &Body::Word { addr, atomic });
        }
        assert_eq!(moved(&mut job).1, 2);
        let events = job.fabric.events();
        let first = job.members[1].base + 800;
        let is = |event: &Event| matches!(*event, Event::Applied { addr, .. } if addr == first);
        assert_eq!(events.iter().position(is), Some(0), "{region} {is_list}");
    }
}

/// A rail brings a word, which is lost, and a put behind it; the next rail a get of another PE,
/// whose answer starts copies.
#[test]
fn nothing_follows_a_lost_word() {
    for is_lost in [false, true] {
        let mut job = Job::new(5, &Shape { n_pes: 3, rails: 2, ..shape(true) }, CALM);
        let (addr, atomic) = signal(AtomicOp::SignalAdd, HEAP, 800).unwrap();
        forge(&job, (0, 1), ahead(0), 0, &Body::Word { addr, atomic });
        let target = PullTarget::One(put(HEAP, 0, 100, 0));
        let pull = Pull { target, len: 100, source: PullSource::Bounce(0), payload: &[] };
        forge(&job, (0, 1), ahead(1), 1, &Body::Pull(pull));
        let from = RegionAddr { region: HEAP, offset: 4096 };
        let get =
            message((2, 1), ahead(0), 0, &Body::GetRequest { from, len: 1000, get: 0, more: &[] });
        job.fabric.forge_message(Pe(1), RailId(1), &get);
        job.fabric.world().fail_settling = is_lost;
        assert_eq!(moved(&mut job), if is_lost { (0, 0) } else { (1, 1) });
    }
}

/// A peer that acknowledges no answers has as many as it may have asked for, and no more.
#[test]
fn asks_are_bounded() {
    let mut job = Job::with(Shape { staged: ALL, ..PLAIN });
    let from = RegionAddr { region: HEAP, offset: 0 };
    let asked = (0..2000).find(|number| {
        forge(
            &job,
            (0, 1),
            ahead(*number),
            0,
            &Body::GetRequest { from, len: 1000, get: 0, more: &[] },
        );
        job.fabric.pass_time(1000);
        job.members[1].lane.progress().is_err()
    });
    let failed = job.members[1].lane.failure();
    assert!(matches!(failed, Some(EngineError::BadMessage { pe: Pe(0), .. })), "{failed:?}");
    // Those under way, and a window of answers that the peer has not acknowledged.
    assert_eq!(asked, Some(64 + WINDOW));
}
