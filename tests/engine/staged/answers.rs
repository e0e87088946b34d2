//! Forged answers: each kind of them about each state of an operation.

use self::Answer::{Ack, AckOfLater, AckRequest, Loaded, PullOfShared, Refusal, Reply};
use super::{ALL, same_host_shape};
use crate::forge::{ahead, masked};
use crate::prelude::*;

const LONG: usize = 1000;
const SHORT: usize = 100;

/// Where a get puts its bytes, and a fetch its word, in the local memory.
const LANDING: usize = 8192;

/// Numbers of forged messages: in the window, and none of a real one.
const FORGED: u64 = 20;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answer {
    /// Of so many messages, or of whatever comes behind the first.
    Ack(u64),
    AckOfLater,
    AckRequest,
    Reply,
    Refusal,
    Loaded(usize),
    Pull(usize),
    PullOfShared(usize),
}

const ANSWERS: [Answer; 13] = [
    Ack(0),
    Ack(1),
    Ack(99),
    AckOfLater,
    AckRequest,
    Reply,
    Refusal,
    Loaded(SHORT),
    Loaded(SHORT - 1),
    Answer::Pull(LONG),
    Answer::Pull(LONG + 1),
    PullOfShared(LONG),
    PullOfShared(SHORT),
];

/// What an answer names: the message that asked, and the get or the place of the fetch.
type About = (u64, u32);

/// The first message and get of a lane, and others.
const RIGHT: About = (0, 0);
const ABOUT: [About; 4] = [RIGHT, (1, 0), (0, 1), (99, 99)];

impl Answer {
    fn send(self, job: &Job, from: u32, number: u64, (of, named): About) {
        let payload = [0xee; SHORT];
        let of = ahead(of).low();
        let get = GetId { number: named, low: of };
        let pull = |len: usize, source| {
            let (target, len) = (PullTarget::Get(get), len as u32);
            Body::Pull(Pull { target, len, source, payload: &[] })
        };
        let (ack, body) = match self {
            Ack(count) => (count, Body::Ack(None)),
            AckOfLater => (0, Body::Ack(Some(&[0xff; MAP_BYTES]))),
            AckRequest => (0, Body::AckRequest),
            Reply => (0, Body::Reply { reply_slot: named, low: of, value: 0xeeee_eeee }),
            Refusal => (0, Body::Refusal { low: of, why: "forged" }),
            Loaded(len) => (0, Body::GetReply { get, payload: &payload[..len] }),
            Answer::Pull(len) => (0, pull(len, PullSource::Fabric(0, &[1; 8]))),
            PullOfShared(len) => (0, pull(len, PullSource::Bounce(0))),
        };
        let numbers = (ahead(FORGED + number), ahead(ack), 0);
        let bytes = masked((from, 0), numbers, Seq::FIRST.high(), &body);
        job.fabric.forge_message(Pe(0), RailId(0), &bytes);
    }
}

/// An operation of PE 0: its name, how many bytes land, and what PE 1 might answer.
type Operation = (&'static str, usize, &'static [Answer], fn(&mut Job) -> Outcome);

const OPERATIONS: [Operation; 7] = [
    ("nothing", 0, &[], |_| Ok(())),
    ("a put", 0, &[], |job| job.put(0, 1, 0, LONG)),
    ("a get", LONG, &[Answer::Pull(LONG), PullOfShared(LONG)], |job| job.get(0, 1, LANDING, LONG)),
    ("a short get", SHORT, &[Loaded(SHORT), PullOfShared(SHORT)], |job| {
        job.get(0, 1, LANDING, SHORT)
    }),
    // One answer is for both.
    ("a shared get", SHORT, &[PullOfShared(SHORT)], |job| {
        job.get(0, 1, LANDING, 48)?;
        job.get(0, 1, LANDING + 48, SHORT - 48)
    }),
    ("a fetch", 8, &[Reply], |job| job.fetch(0, 1, LANDING)),
    ("a signal", 0, &[], |job| job.amo(0, 1, 4096, AtomicOp::SignalAdd, 1)),
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Moment {
    /// The fabric takes nothing to the peer.
    Refused,
    /// It has left, and the peer does not look.
    Sent,
    Ended,
}

fn job(shared: u32) -> Job {
    let shape = Shape {
        n_pes: 3,
        rails: 1,
        staged: ALL,
        shared,
        heap: 1 << 14,
        bounce: (4096, 2, 2),
        deadline: Some(Duration::from_secs(1)),
        ..PLAIN
    };
    let job = Job::new(3, &shape, Script { delay: (2000, 2000), ..CALM });
    for pe in 0..3 {
        job.fill_scratch(pe, &[0x11 * (pe as u8 + 1); LANDING]);
    }
    job
}

fn iterate(job: &mut Job, iterations: u32) {
    job.iterate_slowly(&[0, 1, 2], iterations, 500);
}

/// Runs an operation up to a moment, sends PE 0 the answer from a peer, and goes on to the end.
fn check(
    (name, landed, right, start): Operation,
    (shared, moment): (u32, Moment),
    (answer, about, from): (Answer, About, u32),
) {
    let mut job = job(shared);
    match moment {
        Moment::Refused => job.fabric.refuse(Pe(1), true),
        Moment::Sent => job.fabric.stall(Pe(1)),
        Moment::Ended => {}
    }
    start(&mut job).unwrap();
    match moment {
        Moment::Ended => job.settle(&[0, 1, 2], (0, 1), 500).unwrap(),
        _ => iterate(&mut job, 40),
    }
    answer.send(&job, from, 0, about);
    iterate(&mut job, 1);
    let failed = job.lane(0).failure().map(ToString::to_string);
    job.fabric.resume(Pe(1));
    job.fabric.refuse(Pe(1), false);
    let error = job.settle(&[0, 1, 2], (0, 1), 100_000).err().map(|error| error.to_string());
    // What nobody was asked to write to stays as it was.
    assert_eq!(job.scratch(0, 0, LANDING), [0x11; LANDING], "the source of a put");
    let rest = job.scratch(0, LANDING + landed, LANDING - landed);
    assert_eq!(rest, [0; LANDING][landed..], "beside where a get puts its bytes");
    assert_eq!(job.heap(0, 0, LANDING), [0; LANDING], "the heap");

    let case = format!(
        "{answer:?} {about:?} of PE {from} to {name} ({shared}) {moment:?}: {failed:?}, {error:?}"
    );
    let is_right = from == 1 && right.contains(&answer) && about == RIGHT && moment == Moment::Sent;
    let is_about_get = matches!(answer, Loaded(_) | Answer::Pull(_) | PullOfShared(_));
    let contradicts = name.ends_with("get") && is_about_get && about.1 == 0 && !is_right;
    let is_error = answer == Refusal || contradicts;
    match failed {
        Some(failed) if is_error => assert!(failed.contains(&format!("PE {from}")), "{case}"),
        // What its bytes are read from is the peer's fault.
        Some(failed) => assert!(is_right && failed.contains("PE 1"), "{case}"),
        None => assert!(!is_error, "{case}"),
    }
    // Messages that a peer says it has executed are over.
    let may_fail = from == 1 && (is_error || is_right);
    assert!(may_fail || error.is_none(), "{case}");
    assert!(error.as_ref().is_none_or(|error| error.contains("PE 1")), "{case}");
    // What PE 1 has is all zero.
    let stored = job.scratch(0, LANDING, landed);
    assert!(is_right || error.is_some() || stored == vec![0; landed], "{case}");
}

/// Contradictions and refusals are errors that name their sender; others change nothing.
#[test]
fn answers_fit_what_was_asked() {
    // Whoever was not asked has nothing to be right or wrong about.
    let abouts = || ABOUT.into_iter().map(|about| (about, 1)).chain([(RIGHT, 2)]);
    for (operation, shared) in OPERATIONS.into_iter().flat_map(|of| [(of, 0), (of, 0b111)]) {
        for moment in [Moment::Refused, Moment::Sent, Moment::Ended] {
            for answer in ANSWERS {
                abouts().for_each(|(about, from)| {
                    check(operation, (shared, moment), (answer, about, from));
                });
            }
        }
    }
}

/// What comes behind an answer to a get, or a refusal, might find another get under its number, and
/// memory that is another's.
#[test]
fn second_answers_store_nothing() {
    for (_, landed, right, start) in [OPERATIONS[2], OPERATIONS[3], OPERATIONS[4]] {
        let firsts = right.iter().copied().filter(|first| !matches!(first, Answer::Pull(_)));
        let seconds = [PullOfShared(LONG), PullOfShared(SHORT), Loaded(SHORT)];
        let pairs = firsts.chain([Refusal]).flat_map(|first| seconds.map(|second| (first, second)));
        for (first, second) in pairs {
            let mut job = job(0b111);
            job.fabric.stall(Pe(1));
            start(&mut job).unwrap();
            iterate(&mut job, 40);
            first.send(&job, 1, 0, RIGHT);
            second.send(&job, 1, 1, RIGHT);
            let failed = job.lane(0).progress().unwrap_err();
            let is_bad = matches!(*failed, EngineError::BadMessage { pe: Pe(1), .. });
            assert!(is_bad || first == Refusal, "{first:?}, {second:?}: {failed}");
            if first == Refusal {
                iterate(&mut job, 100);
                assert_eq!(job.scratch(0, LANDING, landed), [0; LONG][..landed], "{second:?}");
            }
        }
    }
}

/// A copy that ends after its peer has failed is not the end of a get that began since.
#[test]
fn late_copies_end_no_other_get() {
    let script = Script { delay: (2000, 2000), ..CALM };
    let mut job = Job::new(3, &Shape { n_pes: 4, ..same_host_shape() }, script);
    job.fabric.trace_calls();
    // A lane that has failed before does not wait for its copies.
    Refusal.send(&job, 3, 0, RIGHT);
    iterate(&mut job, 1);
    job.get(0, 1, LANDING, LONG).unwrap();
    while job.copies(0) == 0 {
        iterate(&mut job, 1);
    }
    job.fabric.stall(Pe(2));
    Refusal.send(&job, 1, 0, RIGHT);
    job.lane(0).progress().unwrap_err();
    job.is_quiet(0, 1).unwrap_err();
    job.get(0, 2, LANDING + LONG, LONG).unwrap();
    iterate(&mut job, 100);
    assert_eq!(job.is_quiet(0, 2), Ok(false), "its owner has said nothing");
    job.fabric.store(Pe(2), job.members[2].base + LANDING + LONG, &[7; LONG]);
    job.fabric.resume(Pe(2));
    assert_eq!(job.settle(&[0, 1, 2], (0, 2), 500), Ok(()));
    assert!(job.scratch(0, LANDING + LONG, LONG) == [7; LONG]);
}

/// The fabric or the device may still use a buffer whose peer has failed.
#[test]
fn buffers_are_kept_until_idle() {
    for (is_copied, is_written) in [(false, false), (true, false), (false, true)] {
        let staged = if is_written { 0b10 } else { ALL };
        let bounce = (1024, 2 - u16::from(is_written), 1);
        let shape = Shape { n_pes: 4, staged, shared: 0, bounce, ..same_host_shape() };
        let pair = |pe| if is_written { (0, pe) } else { (pe, 0) };
        let slow_rails = if is_copied { vec![(RailId(u8::MAX), 1000)] } else { Vec::new() };
        let mut job = Job::new(3, &shape, Script { delay: (2000, 2000), slow_rails, ..CALM });
        // A lane that has failed before does not wait for its copies.
        job.fabric.fail_calls(PortCall::Send, 0, 1);
        assert!(job.amo(0, 3, 0, AtomicOp::Inc, 0).is_err());
        iterate(&mut job, 1);
        job.fabric.trace_calls();
        job.put(pair(1).0, pair(1).1, 0, LONG).unwrap();
        iterate(&mut job, 2);
        job.put(pair(2).0, pair(2).1, 4096, LONG).unwrap();
        // PE 0 reads, copies or writes.
        while (if is_copied { job.copies(0) } else { job.posts(0) }) == 0 {
            iterate(&mut job, 1);
        }
        job.fabric.stall(Pe(1));
        Refusal.send(&job, 1, 0, RIGHT);
        iterate(&mut job, 100);
        let of_2 = |job: &Job| {
            job.fabric.deliveries().iter().filter(|delivery| delivery.to == Pe(2)).count()
        };
        assert_eq!(of_2(&job), 0);
        job.fabric.resume(Pe(1));
        assert_eq!(job.settle(&[0, 1, 2], pair(2), 500), Ok(()));
        assert_eq!(of_2(&job), 1);
    }
}
