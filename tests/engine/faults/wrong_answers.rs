//! Answers that no engine of ours would give: each kind of message about each state of an
//! operation, from the peer that was asked and from another one.

use std::time::Duration;

use engine::atomic::AtomicOp;
use engine::error::EngineError;
use engine::ids::{Pe, RailId};
use engine::request::{PutSignalRequest, ResultPlace};
use engine::wire::message::{Body, MAP_BYTES, Seq};
use engine::wire::staged::{Get, Pull, Source, Target};
use sim_fabric::Script;

use crate::job::{Job, Shape};
use crate::signals::Targets;
use crate::signals::forged::{ahead, message_to};

/// Gets and fetches, and messages of PE 0, that answers name.
const PLACES: u32 = 3;
const NUMBERS: u64 = 4;

const LONG: usize = 1000;
const SHORT: usize = 100;

/// Where a get puts its bytes, and a fetch its word, in the local memory.
const LANDING: usize = 8192;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answer {
    Loaded(usize),
    Pull(usize),
    PullInBounce,
    Refusal,
    Reply,
    Ack,
    AckOfAll,
    AckRequest,
}

const ANSWERS: [Answer; 11] = [
    Answer::Loaded(SHORT),
    Answer::Loaded(SHORT - 1),
    Answer::Loaded(1),
    Answer::Pull(LONG),
    Answer::Pull(LONG - 1),
    Answer::PullInBounce,
    Answer::Refusal,
    Answer::Reply,
    Answer::Ack,
    Answer::AckOfAll,
    Answer::AckRequest,
];

impl Answer {
    /// Sends the answer about one place and one message; `own` is its own number.
    fn send(self, job: &Job, from: u32, (place, of): (u32, Seq), own: Seq) {
        let payload = [0xee; SHORT];
        let keys = 7_u64.to_le_bytes();
        let get = Get { number: place, of: of.low() };
        let pull = |len: usize, source| {
            Body::Pull(Pull { target: Target::Get(get), len: len as u32, source, brought: &[] })
        };
        let body = match self {
            Self::Loaded(len) => Body::Loaded { get, payload: &payload[..len] },
            Self::Pull(len) => pull(len, Source::Fabric(0x1000, &keys)),
            Self::PullInBounce => pull(LONG, Source::Bounce(0)),
            Self::Refusal => Body::Refusal { of: of.low(), why: "forged" },
            Self::Reply => Body::Reply { place, of: of.low(), value: 0xeeee_eeee_eeee_eeee },
            Self::Ack => Body::Ack(None),
            Self::AckOfAll => Body::Ack(Some(&[0xff; MAP_BYTES])),
            Self::AckRequest => Body::AckRequest,
        };
        let bytes = message_to((from, 0), (own, Seq::FIRST), 0, &body);
        job.fabric.forge_message(Pe(0), RailId(0), &bytes);
    }

    /// About every operation that PE 0 may have under way. What has a number has one that its PE
    /// does not come to.
    fn send_about_all(self, job: &mut Job, from: u32) {
        let all = (0..PLACES).flat_map(|place| (0..NUMBERS).map(move |of| (place, ahead(of))));
        for (number, about) in (200..).zip(all) {
            self.send(job, from, about, ahead(number));
        }
        for _ in 0..4 {
            let _ = job.members[0].lane.progress();
        }
    }

    /// Whether an engine has to say that it is none, as it is about gets that were not asked for.
    fn is_refused(self) -> bool {
        matches!(self, Self::Loaded(_) | Self::Pull(_) | Self::PullInBounce | Self::Refusal)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Operation {
    Nothing,
    /// From a bounce buffer, from host memory that peers read in place, with its signal, and of few
    /// bytes, in the message itself.
    Put,
    PutInPlace,
    PutSignal,
    PutShort,
    Get,
    GetShort,
    Fetch,
    Signal,
    /// What PE 1 has begun: its put and its get of PE 0's memory.
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

impl Operation {
    fn is_of_peer(self) -> bool {
        matches!(self, Self::PutOfPeer | Self::GetOfPeer)
    }

    fn job(self, shared: u32) -> Job {
        // PE 0's local memory is the host's where peers are to read it in place.
        let staged = if self == Self::PutInPlace { !0b10 } else { u32::MAX };
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

    fn start(self, job: &mut Job, targets: &Targets) -> Result<(), EngineError> {
        let scratch = job.members[0].scratch;
        match self {
            Self::Nothing => Ok(()),
            Self::Put | Self::PutInPlace => job.put(0, 1, 0, LONG),
            Self::PutShort => job.put(0, 1, 0, SHORT),
            Self::PutSignal => {
                let parts = [targets.part(scratch, 1, 0, LONG)];
                let signal = targets.atomic(1, 4096, AtomicOp::SignalAdd, 1);
                job.members[0].lane.put_signal(&PutSignalRequest { parts: &parts, signal })
            }
            Self::Get => job.get(0, 1, LANDING, LONG),
            Self::GetShort => job.get(0, 1, LANDING, SHORT),
            Self::Fetch => {
                let mut fetch = targets.atomic(1, 4096, AtomicOp::FetchAdd, 1);
                fetch.result = Some(ResultPlace { addr: scratch + LANDING, flag: None });
                job.members[0].lane.atomic(&fetch)
            }
            Self::Signal => {
                job.members[0].lane.atomic(&targets.atomic(1, 4096, AtomicOp::SignalAdd, 1))
            }
            Self::PutOfPeer => job.put(1, 0, 0, LONG),
            Self::GetOfPeer => job.get(1, 0, LANDING, LONG),
        }
    }
}

fn iterate(job: &mut Job, iterations: u32) {
    for _ in 0..iterations {
        job.members.iter_mut().for_each(|member| drop(member.lane.progress()));
        job.fabric.pass_time(500);
    }
}

/// Goes on until what PE 0 and PE 1 have begun is over: gives the error of PE 0, if it has one.
fn end(job: &mut Job) -> Option<String> {
    for _ in 0..30_000 {
        let quiet = [(0, 1), (1, 0)].map(|(pe, peer): (usize, u32)| {
            job.members[pe].lane.is_quiet(Pe(peer)).map_err(|error| error.to_string())
        });
        match quiet {
            [Err(error), _] => return Some(error),
            [Ok(true), Ok(true) | Err(_)] => return None,
            _ => iterate(job, 1),
        }
        job.fabric.pass_time(100_000);
    }
    panic!("it neither ends nor fails");
}

/// Runs an operation for so many iterations, or until it has been sent and nobody looks; sends the
/// answers; and goes on to its end. Returns the errors of PE 0's quiet for PE 1 and of its lane.
fn answered(
    (operation, shared): (Operation, u32),
    moment: Option<u32>,
    answer: Answer,
    from: u32,
) -> (Option<String>, Option<String>) {
    let mut job = operation.job(shared);
    let targets = Targets::of(&job);
    if moment.is_none() && !operation.is_of_peer() {
        job.fabric.stall(Pe(1));
    }
    operation.start(&mut job, &targets).unwrap();
    iterate(&mut job, moment.unwrap_or(40));
    answer.send_about_all(&mut job, from);
    job.fabric.resume(Pe(1));
    let error = end(&mut job);
    // What nobody was asked to write to stays as it was; the landing is what a peer may fill.
    let scratch = job.members[0].scratch;
    let source = job.fabric.load(Pe(0), scratch, LANDING);
    assert_eq!(source, [0x11; LANDING], "the source of a put");
    let landed = if operation.is_of_peer() { 0 } else { LONG };
    let rest = job.fabric.load(Pe(0), scratch + LANDING + landed, LANDING - landed);
    assert_eq!(rest, [0; LANDING][landed..], "beside where a get puts its bytes");
    let put = if operation == Operation::PutOfPeer { LONG } else { 0 };
    assert_eq!(job.heap(0, put, LANDING - put), [0; LANDING][put..], "the heap");
    (error, job.members[0].lane.failure().map(ToString::to_string))
}

#[test]
fn answers_fit_what_was_asked() {
    for (operation, shared) in OPERATIONS.into_iter().flat_map(|of| [(of, 0), (of, 0b111)]) {
        for (answer, from) in ANSWERS.into_iter().flat_map(|answer| [(answer, 1), (answer, 2)]) {
            let (error, failure) = answered((operation, shared), None, answer, from);
            let case = format!("{answer:?} of PE {from} to {operation:?}: {error:?}, {failure:?}");
            let named = format!("PE {from}");
            let names = |told: &Option<String>| told.as_ref().is_some_and(|t| t.contains(&named));
            assert_eq!(names(&error) || names(&failure), answer.is_refused(), "{case}");
            assert!(error.is_none() || from == 1, "{case}");
        }
    }
}

/// The same at every moment of an operation's life: it ends, or fails by the peer's name, and no
/// memory is touched that was not to be.
#[test]
fn answers_at_any_moment() {
    for (operation, shared) in OPERATIONS.into_iter().flat_map(|of| [(of, 0), (of, 0b111)]) {
        for (answer, moment) in
            ANSWERS.into_iter().flat_map(|of| (0..36).step_by(6).map(move |at| (of, at)))
        {
            let (error, failure) = answered((operation, shared), Some(moment), answer, 1);
            for told in [error, failure].into_iter().flatten() {
                let case = format!("{answer:?} to {operation:?} ({shared}) at {moment}: {told}");
                assert!(told.contains("PE 1"), "{case}");
            }
        }
    }
}
