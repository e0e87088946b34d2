//! Forged answers: each kind of them about each state of an operation.

use std::time::Duration;

use engine::atomic::AtomicOp;
use engine::error::EngineError;
use engine::ids::{Pe, RailId};
use engine::port::Direction;
use engine::wire::message::{Body, MAP_BYTES, Seq};
use engine::wire::staging::{GetId, Pull, PullSource, PullTarget};
use sim_fabric::{Delivery, PortCall, Script};

use super::{ALL, neighbours};
use crate::forge::{ahead, masked};
use crate::job::{Job, Shape};

const LONG: usize = 1000;
const SHORT: usize = 100;

/// Where a get puts its bytes, and a fetch its word, in the local memory.
const LANDING: usize = 8192;

/// Numbers of forged messages: in the window, and none of a real one.
const FORGED: u64 = 20;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answer {
    Ack,
    /// Of the first message, of more than were sent, and of whatever comes behind the first.
    AckOfFirst,
    AckOfUnsent,
    AckOfLater,
    AckRequest,
    Reply,
    Refusal,
    Loaded(usize),
    Pull(usize),
    PullOfShared(usize),
}

const ANSWERS: [Answer; 13] = [
    Answer::Ack,
    Answer::AckOfFirst,
    Answer::AckOfUnsent,
    Answer::AckOfLater,
    Answer::AckRequest,
    Answer::Reply,
    Answer::Refusal,
    Answer::Loaded(SHORT),
    Answer::Loaded(SHORT - 1),
    Answer::Pull(LONG),
    Answer::Pull(LONG + 1),
    Answer::PullOfShared(LONG),
    Answer::PullOfShared(SHORT),
];

/// What an answer names: the message that asked, and the get or the place of the fetch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct About {
    of: u64,
    number: u32,
}

/// The first message and get of a lane, and others.
const RIGHT: About = About { of: 0, number: 0 };
const ABOUT: [About; 4] =
    [RIGHT, About { of: 1, ..RIGHT }, About { number: 1, ..RIGHT }, About { of: 99, number: 99 }];

impl Answer {
    /// Sends it to PE 0.
    fn send(self, job: &Job, from: u32, number: u64, About { of, number: named }: About) {
        let payload = [0xee; SHORT];
        let of = ahead(of).low();
        let get = GetId { number: named, of };
        let pull = |len: usize, source| {
            let (target, len) = (PullTarget::Get(get), len as u32);
            Body::Pull(Pull { target, len, source, payload: &[] })
        };
        let (ack, body) = match self {
            Self::Ack => (0, Body::Ack(None)),
            Self::AckOfFirst => (1, Body::Ack(None)),
            Self::AckOfUnsent => (99, Body::Ack(None)),
            Self::AckOfLater => (0, Body::Ack(Some(&[0xff; MAP_BYTES]))),
            Self::AckRequest => (0, Body::AckRequest),
            Self::Reply => (0, Body::Reply { place: named, of, value: 0xeeee_eeee }),
            Self::Refusal => (0, Body::Refusal { of, why: "forged" }),
            Self::Loaded(len) => (0, Body::GetReply { get, payload: &payload[..len] }),
            Self::Pull(len) => (0, pull(len, PullSource::Fabric(0, &[1; 8]))),
            Self::PullOfShared(len) => (0, pull(len, PullSource::Bounce(0))),
        };
        let numbers = (ahead(FORGED + number), ahead(ack), 0);
        let bytes = masked((from, 0), numbers, Seq::FIRST.high(), &body);
        job.fabric.forge_message(Pe(0), RailId(0), &bytes);
    }

    fn is_about_get(self) -> bool {
        matches!(self, Self::Loaded(_) | Self::Pull(_) | Self::PullOfShared(_))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Operation {
    Nothing,
    /// From a bounce buffer, from host memory that peers read in place, with a signal, and of few
    /// bytes, in the message itself.
    Put,
    PutInPlace,
    PutSignal,
    PutShort,
    Get,
    GetShort,
    Fetch,
    Signal,
    /// Of PE 1, about PE 0's memory.
    PutOfPeer,
    GetOfPeer,
}

const OPERATIONS: [Operation; 11] = [
    Operation::Nothing,
    Operation::Put,
    Operation::PutInPlace,
    Operation::PutSignal,
    Operation::PutShort,
    Operation::Get,
    Operation::GetShort,
    Operation::Fetch,
    Operation::Signal,
    Operation::PutOfPeer,
    Operation::GetOfPeer,
];

/// When it is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Moment {
    /// The fabric takes nothing to the peer.
    Refused,
    /// It has left, and the peer does not look.
    Sent,
    Ended,
}

impl Operation {
    fn is_of_peer(self) -> bool {
        matches!(self, Self::PutOfPeer | Self::GetOfPeer)
    }

    fn is_get(self) -> bool {
        matches!(self, Self::Get | Self::GetShort)
    }

    fn job(self, shared: u32) -> Job {
        // PE 0's local memory is the host's where peers are to read it in place.
        let staged = if self == Self::PutInPlace { !0b10 } else { ALL };
        let shape = Shape {
            n_pes: 3,
            rails: 1,
            staged,
            shared,
            heap: 1 << 14,
            bounce: (4096, 2, 2),
            deadline: Some(Duration::from_secs(1)),
            ..Shape::default()
        };
        let script = Script { delay: (2000, 2000), ..Script::default() };
        let job = Job::new(3, &shape, script);
        for pe in 0..3 {
            job.fill_scratch(pe, &[0x11 * (pe as u8 + 1); LANDING]);
        }
        job
    }

    fn start(self, job: &mut Job) -> Result<(), EngineError> {
        match self {
            Self::Nothing => Ok(()),
            Self::Put | Self::PutInPlace => job.put(0, 1, 0, LONG),
            Self::PutShort => job.put(0, 1, 0, SHORT),
            Self::PutSignal => job.put_signal(0, 1, &[(0, LONG)], 4096),
            Self::Get => job.get(0, 1, LANDING, LONG),
            Self::GetShort => job.get(0, 1, LANDING, SHORT),
            Self::Fetch => job.fetch(0, 1, LANDING),
            Self::Signal => job.amo(0, 1, 4096, AtomicOp::SignalAdd, 1),
            Self::PutOfPeer => job.put(1, 0, 0, LONG),
            Self::GetOfPeer => job.get(1, 0, LANDING, LONG),
        }
    }

    /// Whether an engine of PE 1 might have said it at this moment.
    fn is_answered_by(self, answer: Answer, about: About, moment: Moment) -> bool {
        let fits = match self {
            Self::Get => matches!(answer, Answer::Pull(LONG) | Answer::PullOfShared(LONG)),
            Self::GetShort => {
                matches!(answer, Answer::Loaded(SHORT) | Answer::PullOfShared(SHORT))
            }
            _ => false,
        };
        fits && about == RIGHT && moment == Moment::Sent
    }
}

fn iterate(job: &mut Job, iterations: u32) {
    job.iterate_slowly(&[0, 1, 2], iterations, 500);
}

/// Goes on until what PE 0 and PE 1 have begun is over. Returns the error of PE 0 about PE 1.
fn end(job: &mut Job) -> Option<String> {
    for _ in 0..30_000 {
        let quiet = [(0, 1), (1, 0)].map(|(pe, peer)| job.is_quiet(pe, peer));
        match quiet {
            [Err(error), _] => return Some(error.to_string()),
            [Ok(true), Ok(true) | Err(_)] => return None,
            _ => iterate(job, 1),
        }
        job.fabric.pass_time(100_000);
    }
    panic!("it neither ends nor fails");
}

/// Runs an operation up to a moment, sends PE 0 the answer from a peer, and goes on to the end.
/// Returns the first failure of PE 0's lane after the answer, and the error about PE 1 in the end.
fn answered(
    (operation, shared): (Operation, u32),
    moment: Moment,
    (answer, about, from): (Answer, About, u32),
) -> [Option<String>; 2] {
    let mut job = operation.job(shared);
    match moment {
        Moment::Refused => job.fabric.refuse(Pe(1), true),
        Moment::Sent if !operation.is_of_peer() => job.fabric.stall(Pe(1)),
        _ => {}
    }
    operation.start(&mut job).unwrap();
    match moment {
        Moment::Ended => assert_eq!(end(&mut job), None),
        Moment::Refused | Moment::Sent => iterate(&mut job, 40),
    }
    answer.send(&job, from, 0, about);
    iterate(&mut job, 1);
    let failed = job.members[0].lane.failure().map(ToString::to_string);
    job.fabric.resume(Pe(1));
    job.fabric.refuse(Pe(1), false);
    let error = end(&mut job);
    // What nobody was asked to write to stays as it was.
    assert_eq!(job.scratch(0, 0, LANDING), [0x11; LANDING], "the source of a put");
    let landed = match operation {
        Operation::Get => LONG,
        Operation::GetShort => SHORT,
        Operation::Fetch => 8,
        _ => 0,
    };
    let rest = job.scratch(0, LANDING + landed, LANDING - landed);
    assert_eq!(rest, [0; LANDING][landed..], "beside where a get puts its bytes");
    let put = if operation == Operation::PutOfPeer { LONG } else { 0 };
    assert_eq!(job.heap(0, put, LANDING - put), [0; LANDING][put..], "the heap");
    [failed, error]
}

fn each_operation() -> impl Iterator<Item = (Operation, u32)> {
    OPERATIONS.into_iter().flat_map(|of| [(of, 0), (of, 0b111)])
}

/// An answer that contradicts what was asked, and a refusal, are errors that name their sender. All
/// others change nothing.
#[test]
fn answers_fit_what_was_asked() {
    for (operation, shared) in each_operation() {
        for (answer, about) in ANSWERS.into_iter().flat_map(|of| ABOUT.map(|about| (of, about))) {
            for moment in [Moment::Refused, Moment::Sent, Moment::Ended] {
                for from in [1, 2] {
                    // Whoever was not asked has nothing to be right or wrong about.
                    if from == 2 && about != RIGHT {
                        continue;
                    }
                    let answers = (answer, about, from);
                    let [failed, error] = answered((operation, shared), moment, answers);
                    let case = format!(
                        "{answer:?} {about:?} of PE {from} to {operation:?} ({shared}) \
                         {moment:?}: {failed:?}, {error:?}"
                    );
                    let is_right = from == 1 && operation.is_answered_by(answer, about, moment);
                    let contradicts = operation.is_get() && answer.is_about_get();
                    let is_error =
                        answer == Answer::Refusal || contradicts && about.number == 0 && !is_right;
                    match failed {
                        Some(failed) if is_error => {
                            assert!(failed.contains(&format!("PE {from}")), "{case}");
                        }
                        // What its bytes are read from is the peer's fault.
                        Some(failed) => assert!(is_right && failed.contains("PE 1"), "{case}"),
                        None => assert!(!is_error, "{case}"),
                    }
                    // Messages that a peer says it has executed are over.
                    let may_fail = from == 1 && (is_error || is_right);
                    assert!(may_fail || error.is_none(), "{case}");
                    assert!(error.is_none_or(|error| error.contains("PE 1")), "{case}");
                }
            }
        }
    }
}

/// The second answer to a get might find another one under its number.
#[test]
fn gets_are_answered_once() {
    for (operation, answer) in [
        (Operation::Get, Answer::PullOfShared(LONG)),
        (Operation::GetShort, Answer::PullOfShared(SHORT)),
        (Operation::GetShort, Answer::Loaded(SHORT)),
    ] {
        for second in [answer, Answer::PullOfShared(SHORT), Answer::Loaded(SHORT)] {
            let mut job = operation.job(0b111);
            job.fabric.stall(Pe(1));
            operation.start(&mut job).unwrap();
            iterate(&mut job, 40);
            answer.send(&job, 1, 0, RIGHT);
            second.send(&job, 1, 1, RIGHT);
            let failed = job.lane(0).progress().unwrap_err();
            assert!(matches!(*failed, EngineError::BadMessage { pe: Pe(1), .. }), "{failed}");
        }
    }
}

/// The memory of a get may be another's once its peer has failed.
#[test]
fn answers_of_failed_peers_store_nothing() {
    for answer in [Answer::Loaded(SHORT), Answer::PullOfShared(SHORT)] {
        let mut job = Operation::GetShort.job(0b111);
        job.fabric.stall(Pe(1));
        Operation::GetShort.start(&mut job).unwrap();
        iterate(&mut job, 40);
        Answer::Refusal.send(&job, 1, 0, RIGHT);
        answer.send(&job, 1, 0, RIGHT);
        iterate(&mut job, 100);
        job.is_quiet(0, 1).unwrap_err();
        assert_eq!(job.scratch(0, LANDING, SHORT), [0; SHORT], "{answer:?}");
    }
}

/// A copy that ends after its peer has failed is not the end of a get that began since.
#[test]
fn late_copies_end_no_other_get() {
    let script = Script { delay: (2000, 2000), ..Script::default() };
    let mut job = Job::new(3, &Shape { n_pes: 4, ..neighbours() }, script);
    job.fabric.trace_calls();
    // A lane that has failed before does not wait for its copies.
    Answer::Refusal.send(&job, 3, 0, RIGHT);
    iterate(&mut job, 1);
    job.get(0, 1, LANDING, LONG).unwrap();
    while job.copies(0) == 0 {
        iterate(&mut job, 1);
    }
    job.fabric.stall(Pe(2));
    Answer::Refusal.send(&job, 1, 0, RIGHT);
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

/// The fabric may still write into a buffer whose peer has failed, or a device copy out of it.
#[test]
fn buffers_are_kept_until_idle() {
    for is_copied in [false, true] {
        let shape = Shape { n_pes: 4, shared: 0, bounce: (1024, 2, 1), ..neighbours() };
        let slow_rails = if is_copied { vec![(RailId(u8::MAX), 1000)] } else { Vec::new() };
        let script = Script { delay: (2000, 2000), slow_rails, ..Script::default() };
        let mut job = Job::new(3, &shape, script);
        // A lane that has failed before does not wait for its copies.
        job.fabric.fail_calls(PortCall::Send, 0, 1);
        assert!(job.put_value(0, 3, 0, 1).is_err());
        iterate(&mut job, 1);
        job.fabric.trace_calls();
        job.put(1, 0, 0, LONG).unwrap();
        iterate(&mut job, 2);
        job.put(2, 0, 4096, LONG).unwrap();
        // PE 0 reads, or copies.
        while (if is_copied { job.copies(0) } else { job.posts(0) }) == 0 {
            iterate(&mut job, 1);
        }
        job.fabric.stall(Pe(1));
        Answer::Refusal.send(&job, 1, 0, RIGHT);
        iterate(&mut job, 100);
        let reads = |job: &Job| {
            let of_2 = |delivery: &&Delivery| {
                (delivery.to, delivery.direction) == (Pe(2), Direction::Read)
            };
            job.fabric.deliveries().iter().filter(of_2).count()
        };
        assert_eq!(reads(&job), 0);
        job.fabric.resume(Pe(1));
        assert_eq!(job.settle(&[0, 1, 2], (2, 0), 500), Ok(()));
        assert_eq!(reads(&job), 1);
    }
}
