//! Messages that no lane has sent: of strangers, and of PEs that break the rules.

use engine::wire::cookie::Cookie;
use engine::wire::immediate::ImmediateCodec;
use engine::wire::message::{Message, Numbers};
use engine::wire::probe::probe;
use engine::wire::seal::Seal;
use engine::wire::staging::PullTarget as To;

use crate::forge::{ahead, atomic, forge, masked, message, sealed};
use crate::job::{FIRST_REGION, cookie};
use crate::prelude::*;

/// Messages of these tests go from PE 0 to PE 1.
const PES: (u32, u32) = (0, 1);

fn word(op: AtomicOp, region: u32, offset: u64, operand: u64) -> Body<'static> {
    Body::Word { addr: RegionAddr { region, offset }, atomic: atomic(op, operand) }
}

fn atomic_at(region: u32, offset: u64, operand: u64) -> Body<'static> {
    word(AtomicOp::Set, region, offset, operand)
}

/// They are counted, and the job goes on: a genuine message is not taken for a duplicate.
#[test]
fn foreign_messages_are_dropped() {
    let word = atomic_at(FIRST_REGION, 0, 7);
    let genuine = message(PES, Seq::FIRST, 0, &word);
    let numbers = Numbers { seq: Seq::FIRST, ack: Seq::FIRST, mark: 0, mask: 0 };
    let unsealed = sealed(PES, Cookie::of([[7; 16]]), |_| numbers, &word);
    let mut altered = genuine.clone();
    altered[24] ^= 1;
    let get = GetId { number: 0, low: Seq::FIRST.low() };
    let loaded = Body::GetReply { get, payload: &[1] };
    let pull = Pull { target: To::Get(get), len: 9, source: PullSource::Bounce(0), payload: &[] };
    let of_round = |body| masked(PES, (Seq::FIRST, Seq::FIRST, 0), 5, body);
    let forged: [(&str, Vec<u8>); 14] = [
        ("empty", Vec::new()),
        ("short", vec![0; 15]),
        ("noise", vec![0xff; 40]),
        ("cut", genuine[..31].to_vec()),
        ("of another job", unsealed),
        ("altered", altered),
        ("of no PE", message((9, 1), Seq::FIRST, 0, &word)),
        ("beyond the window", message(PES, ahead(WINDOW), 0, &word)),
        ("acknowledges what was not sent", {
            masked(PES, (Seq::FIRST, ahead(1), 0), Seq::FIRST.high(), &word)
        }),
        ("of another round", of_round(&word)),
        ("of another round, about a get", of_round(&loaded)),
        ("of another round, to read for a get", of_round(&Body::Pull(pull))),
        ("of another round, without a number", of_round(&Body::AckRequest)),
        ("a refusal of another round", of_round(&Body::Refusal { low: 0, why: "no" })),
    ];
    let mut job = Job::with(PLAIN);
    let heap = job.heap(1, 0, job.heap);
    for (number, (what, bytes)) in forged.iter().enumerate() {
        job.fabric.forge_message(Pe(1), RailId(1), bytes);
        for _ in 0..10 {
            job.lane(1).progress().unwrap_or_else(|error| panic!("{what}: {error}"));
        }
        assert_eq!(job.heap(1, 0, job.heap), heap, "{what}");
        let foreign: Vec<u64> = job.members[1].lane.counters().map(|rail| rail.foreign).collect();
        assert_eq!(foreign, [0, number as u64 + 1], "{what}");
    }
    assert!(!job.lane(1).has_work() && job.fabric.in_flight() == 0, "nobody is answered");
    // What the fabric cannot receive, whatever its reason is.
    for code in [265, 125, 104, 5, 22] {
        job.fabric.break_message(Pe(1), RailId(1), code);
    }
    job.inc(0, 1, 0);
    job.until_quiet(0, 1);
    assert_ne!(job.heap(1, 0, 8), heap[..8]);
    forge(&job, PES, ahead(1 + WINDOW), 0, &word);
    // That is no stranger's, but late.
    let late = probe(&Seal::new(cookie(), Pe(PES.0)), Pe(PES.1), RailId(31));
    job.fabric.forge_message(Pe(1), RailId(0), late.bytes());
    job.progress(1, 10);
    let foreign = job.counted(1, |rail| rail.foreign);
    assert_eq!((foreign, job.word(1, 0)), (forged.len() as u64 + 6, 1), "beyond, once known");
}

/// A message of any kind acknowledges what its head says.
#[test]
fn messages_acknowledge_on_their_way() {
    let mut job = Job::with(PLAIN);
    let add = word(AtomicOp::Add, FIRST_REGION, 0, 1);
    for number in 0..3 {
        job.inc(1, 0, 0);
        assert_eq!(job.is_quiet(1, 0), Ok(false));
        let numbers = (ahead(number), ahead(number + 1), 0);
        let bytes = masked(PES, numbers, Seq::FIRST.high(), &add);
        job.fabric.forge_message(Pe(1), RailId(0), &bytes);
        job.progress(1, 1);
        assert_eq!(job.is_quiet(1, 0), Ok(true));
        assert_eq!(job.word(1, 0), number + 1);
    }
}

fn acknowledge(job: &Job, ack: u64, body: &Body<'_>) {
    let numbers = (Seq::FIRST, ahead(ack), 0);
    let bytes = masked(PES, numbers, Seq::FIRST.high(), body);
    job.fabric.forge_message(Pe(1), RailId(0), &bytes);
}

/// By now later messages have the window entries that its bits name.
#[test]
fn old_acknowledgements_end_nothing() {
    let mut job = Job::with(Shape { depth: 1024, ..PLAIN });
    (0..20).for_each(|_| job.inc(1, 0, 0));
    job.until_quiet(1, 0);
    job.fabric.stall(Pe(0));
    (0..WINDOW).for_each(|_| job.inc(1, 0, 0));
    let map = Body::Ack(Some(&[0xff; MAP_BYTES]));
    // The last one leaves some of the messages.
    for (ack, body) in [(0, map), (20, Body::Ack(None)), (WINDOW, Body::Ack(None))] {
        acknowledge(&job, ack, &body);
        job.progress(1, 10);
        assert_eq!(job.is_quiet(1, 0), Ok(false), "{ack}");
    }
    job.fabric.resume(Pe(0));
    job.until_quiet(1, 0);
    assert_eq!(job.heap(0, 0, 8), (20 + WINDOW).to_le_bytes());
}

/// The sender is told by name, the target says whose message it was, and nothing changes.
#[test]
fn impossible_messages_are_refused() {
    let heap_end = PLAIN.heap as u64;
    let counted = |tag, segments| {
        let at = RegionAddr { region: FIRST_REGION, offset: 0 };
        Body::CountedSignal { addr: at, atomic: atomic(AtomicOp::Set, 7), tag, segments }
    };
    let data = |region, offset, payload| {
        let (at, to) =
            (RegionAddr { region: FIRST_REGION, offset: 0 }, RegionAddr { region, offset });
        Body::PutSignal { addr: at, atomic: atomic(AtomicOp::Set, 7), to, payload }
    };
    let impossible = [
        ("a region that is gone", atomic_at(FIRST_REGION * 5, 0, 7)),
        ("a region of no peers", atomic_at(FIRST_REGION * 2 + 1, 0, 7)),
        ("beyond the region", atomic_at(FIRST_REGION, heap_end, 7)),
        ("beyond all regions", atomic_at(FIRST_REGION, (1 << 48) - 8, 7)),
        ("not aligned", atomic_at(FIRST_REGION, 4, 7)),
        ("data of a region of no peers", data(FIRST_REGION * 2 + 1, 0, &[1; 9])),
        ("data beyond the region", data(FIRST_REGION, heap_end - 8, &[1; 9])),
        ("data of nowhere", data(FIRST_REGION, u64::MAX, &[1; 9])),
        ("a tag of another use", counted(Tag(Tag::FIRST.0 + 16), 1)),
    ];
    // What comes behind another message may take the short way.
    for (what, body, before) in
        impossible.iter().flat_map(|(what, body)| [(what, body, 0), (what, body, 1)])
    {
        let mut job = Job::with(PLAIN);
        for _ in 0..before {
            job.inc(0, 1, 128);
            job.until_quiet(0, 1);
        }
        let heap = job.heap(1, 0, job.heap);
        forge(&job, PES, ahead(before), 0, body);
        let failed = (0..100).find_map(|_| job.lane(1).progress().err());
        assert!(
            matches!(failed.as_deref(), Some(EngineError::BadMessage { pe: Pe(0), .. })),
            "{what}: {failed:?}"
        );
        // The port need not look at this.
        let why = failed.unwrap().to_string();
        assert!(*what != "not aligned" || why.contains(what), "{why}");
        // Nothing of its sender is executed any more.
        let later = [(0, atomic_at(FIRST_REGION, 8, 7)), (2, atomic_at(FIRST_REGION, 16, 7))];
        for (number, (mark, later)) in (1..).zip(later) {
            forge(&job, PES, ahead(before + number), mark, &later);
        }
        job.iterate_some(&[0, 1], 1000);
        let told = job.is_quiet(0, 1);
        assert!(
            matches!(told, Err(EngineError::PeerRefused { pe: Pe(1), .. })),
            "{what}: {told:?}"
        );
        assert_eq!(job.heap(1, 0, job.heap), heap, "{what}");
    }
}

/// Executed once; a fetch that waits has not the reply of the one that had its place before.
#[test]
fn repeated_messages_are_answered_again() {
    let mut job = Job::with(Shape { rails: 1, ..PLAIN });
    job.fabric.stall(Pe(0));
    let seal = Seal::new(cookie(), Pe(0));
    let at = RegionAddr { region: FIRST_REGION, offset: 0 };
    let fetch = Body::Fetch { addr: at, atomic: atomic(AtomicOp::FetchAdd, 1), reply_slot: 3 };
    let add = word(AtomicOp::Add, FIRST_REGION, 0, 10);
    // PE 1's replies to each message, and whether it sent anything.
    let said = |job: &mut Job, number: u64, mark: u16, body: &Body<'_>| {
        let before = job.fabric.messages_to(Pe(0)).len();
        forge(job, PES, ahead(number), mark, body);
        for _ in 0..10 {
            job.progress(1, 1);
            job.fabric.pass_time(100_000);
        }
        let heard = job.fabric.messages_to(Pe(0)).split_off(before);
        let replies = heard.iter().filter_map(|bytes| {
            let head = seal.open(bytes).unwrap();
            let word = head.word ^ seal.mask(Pe(1), Pe(0), Seq::FIRST.high());
            match Message::decode(head, word, bytes).unwrap().body {
                Body::Reply { reply_slot: 3, low: of, value } => {
                    Some((of - Seq::FIRST.low(), value))
                }
                _ => None,
            }
        });
        (replies.collect::<Vec<_>>(), !heard.is_empty())
    };
    assert_eq!(said(&mut job, 0, 0, &add), (vec![], false), "nobody has asked");
    for _ in 0..3 {
        assert_eq!(said(&mut job, 0, 0, &add), (vec![], true));
    }
    assert_eq!(said(&mut job, 1, 0, &fetch), (vec![(1, 10)], true));
    assert_eq!(said(&mut job, 1, 0, &fetch), (vec![(1, 10)], true));
    assert_eq!(said(&mut job, 3, 1, &fetch), (vec![], false));
    assert_eq!(said(&mut job, 3, 1, &fetch), (vec![], true));
    assert_eq!(said(&mut job, 2, 0, &add), (vec![(3, 21)], true));
    assert_eq!(said(&mut job, 3, 1, &fetch), (vec![(3, 21)], true));
    assert_eq!(said(&mut job, 1, 0, &fetch), (vec![], true), "its place is another's");
    assert_eq!(job.word(1, 0), 22);
}

#[test]
fn waiting_messages_are_bounded() {
    let mut job = Job::with(PLAIN);
    let deliver = |job: &mut Job, number, mark, body: &Body<'_>| {
        forge(job, PES, ahead(number), mark, body);
        job.progress(1, 1);
        job.fabric.pass_time(1000);
    };
    let found = |job: &Job| {
        let foreign = job.counted(1, |rail| rail.foreign);
        (foreign, job.word(1, 16))
    };
    // Nothing has come of its data.
    let at = RegionAddr { region: FIRST_REGION, offset: 8 };
    let (atomic, tag) = (atomic(AtomicOp::Set, 7), Tag::FIRST);
    deliver(&mut job, 0, 0, &Body::CountedSignal { addr: at, atomic, tag, segments: 1 });
    let add = word(AtomicOp::Add, FIRST_REGION, 16, 1);
    (1..3 * WINDOW).for_each(|number| deliver(&mut job, number, 1, &add));
    assert_eq!(found(&job), (2 * WINDOW, 0));
    let marks = ImmediateCodec::new(cookie(), Pe(0), 2, 8);
    job.fabric.forge_immediate_data(Pe(1), RailId(0), marks.encode(Pe(1), tag));
    job.progress(1, 1);
    assert_eq!(found(&job), (2 * WINDOW, WINDOW - 1));
    (1..3 * WINDOW).for_each(|number| deliver(&mut job, number, 1, &add));
    assert_eq!(found(&job), (2 * WINDOW, 3 * WINDOW - 1));
}

/// By then another message has its window entry.
#[test]
fn replies_may_come_a_window_later() {
    let mut job = Job::with(Shape { depth: 1024, ..PLAIN });
    job.fabric.stall(Pe(0));
    job.fetch(1, 0, 64).unwrap();
    for acked in [1, WINDOW] {
        acknowledge(&job, acked, &Body::Ack(None));
        job.progress(1, 1);
        let more = if acked == 1 { WINDOW - 1 } else { 1 };
        (0..more).for_each(|_| job.inc(1, 0, 0));
    }
    acknowledge(&job, WINDOW, &Body::Reply { reply_slot: 0, low: Seq::FIRST.low(), value: 99 });
    job.progress(1, 1);
    assert_eq!((job.scratch(1, 64, 1), job.is_quiet(1, 0)), (vec![99], Ok(false)));
    acknowledge(&job, WINDOW + 1, &Body::Ack(None));
    job.progress(1, 1);
    assert_eq!(job.is_quiet(1, 0), Ok(true));
}

/// By what staging has sent, and not by what is under way beside it.
#[test]
fn refusals_name_what_they_refuse() {
    for (of, named) in [(0, "get of 300"), (1, "message"), (2, "put"), (2 + WINDOW, "message")] {
        let mut job = Job::with(Shape { staged: 0b01, ..PLAIN });
        job.fabric.stall(Pe(0));
        job.get(1, 0, 0, 300).unwrap();
        job.inc(1, 0, 8192);
        job.put(1, 0, 4096, 8).unwrap();
        forge(&job, PES, Seq::FIRST, 0, &Body::Refusal { low: ahead(of).low(), why: "no" });
        let failed = job.settle(&[1], (1, 0), 0).unwrap_err().to_string();
        assert!(failed.starts_with(named), "{of}: {failed}");
    }
}
