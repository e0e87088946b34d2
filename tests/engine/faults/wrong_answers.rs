//! Answers that no engine of ours would give: each kind of message about each state of an
//! operation, from the peer that was asked and from another one.

use std::time::Duration;

use engine::atomic::AtomicOp;
use engine::error::EngineError;
use engine::ids::{Pe, RailId};
use engine::port::Addressing;
use engine::request::{PutSignalRequest, ResultPlace};
use engine::wire::message::{Body, Message, Packet, RequestId};
use engine::wire::staged::{Exposure, Keys, Staged};
use engine::wire::window::Seq;
use sim_fabric::Script;

use crate::job::{Job, Shape, seal};
use crate::signals::Targets;

const FIRST: Seq = Seq(u32::MAX - 99);

const SEGMENTS: u32 = 12;
const NUMBERS: u32 = 6;

const LONG: usize = 1000;
const SHORT: usize = 100;

/// Where a get puts its bytes, and a fetch its word, in the local memory.
const LANDING: usize = 8192;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answer {
    Pulled,
    Exposed,
    ExposedInBounce,
    Loaded(usize),
    Refused,
    Release,
    Reply,
    Keys,
    Ack,
    AckRequest,
}

const ANSWERS: [Answer; 12] = [
    Answer::Pulled,
    Answer::Exposed,
    Answer::ExposedInBounce,
    Answer::Loaded(SHORT),
    Answer::Loaded(SHORT - 1),
    Answer::Loaded(1),
    Answer::Refused,
    Answer::Release,
    Answer::Reply,
    Answer::Keys,
    Answer::Ack,
    Answer::AckRequest,
];

impl Answer {
    fn send(self, job: &Job, from: u32, request_id: RequestId) {
        let payload = [0xee; SHORT];
        let keys = 7u64.to_le_bytes();
        let region = Exposure { slot: 0, stamp: 1, offset: 0 };
        let body = match self {
            Self::Pulled => Body::Staged(Staged::Pulled { request_id }),
            Self::Exposed => Body::Staged(Staged::Exposed { request_id, from: region }),
            Self::ExposedInBounce => {
                Body::Staged(Staged::Exposed { request_id, from: Exposure::in_bounce(0) })
            }
            Self::Loaded(len) => {
                Body::Staged(Staged::Loaded { request_id, payload: &payload[..len] })
            }
            Self::Refused => Body::Staged(Staged::Refused { request_id, why: "forged" }),
            Self::Release => Body::Staged(Staged::Release { request_id }),
            Self::Reply => Body::Reply { request_id, value: 0xeeee_eeee_eeee_eeee },
            Self::Keys => Body::Staged(Staged::Keys(Keys {
                slot: request_id.slot + 100,
                stamp: 77,
                base: 0x1000,
                addressing: Addressing::Virtual,
                first: 0,
                rails: 1,
                keys: &keys,
            })),
            Self::Ack => Body::Ack,
            Self::AckRequest => Body::AckRequest,
        };
        let seq = match self {
            Self::Reply => request_id.seq,
            Self::Ack | Self::AckRequest => FIRST,
            _ => Seq(0),
        };
        let mut packet = Packet::EMPTY;
        seal(&Message { from: Pe(from), seq, ack: FIRST, behind: 0, body }, 0, &mut packet);
        job.fabric.forge_message(Pe(0), RailId(0), packet.bytes());
    }

    /// About every operation that PE 0 may have under way.
    fn send_about_all(self, job: &mut Job, from: u32) {
        for slot in 0..SEGMENTS {
            for seq in (0..NUMBERS).map(|number| Seq(FIRST.0.wrapping_add(number))) {
                self.send(job, from, RequestId { slot, seq });
            }
            self.send(job, from, RequestId { slot, seq: Seq(0) });
        }
        let _ = job.members[0].lane.progress();
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Operation {
    Nothing,
    /// From a bounce buffer, from host memory that peers read in place, with its signal in a list,
    /// and of few bytes, in the message itself.
    Put,
    PutInPlace,
    PutListed,
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
    Operation::PutListed,
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
            Self::PutListed => {
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

    fn is_answered_by(self, answer: Answer) -> bool {
        match self {
            Self::Put | Self::PutInPlace | Self::PutListed => {
                matches!(answer, Answer::Pulled | Answer::Refused)
            }
            Self::Get => {
                matches!(answer, Answer::Exposed | Answer::ExposedInBounce | Answer::Refused)
            }
            Self::GetShort => matches!(answer, Answer::Loaded(SHORT) | Answer::Refused),
            Self::Fetch => answer == Answer::Reply,
            _ => false,
        }
    }

    /// Whether an engine has to say that it is none: an answer about staged memory to what was
    /// asked about it. What names nothing that is under way may be late.
    fn is_contradicted_by(self, answer: Answer) -> bool {
        let asks = matches!(
            self,
            Self::Put | Self::PutInPlace | Self::PutListed | Self::Get | Self::GetShort
        );
        let is_of_staged = matches!(
            answer,
            Answer::Pulled | Answer::Exposed | Answer::ExposedInBounce | Answer::Loaded(_)
        );
        asks && is_of_staged && !self.is_answered_by(answer)
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
/// answers; and goes on to its end. Gives PE 0's error.
fn answered(
    (operation, shared): (Operation, u32),
    moment: Option<u32>,
    answer: Answer,
    from: u32,
) -> Option<String> {
    let mut job = operation.job(shared);
    let targets = Targets::of(&job);
    if moment.is_none() && !operation.is_of_peer() {
        job.fabric.stall(Pe(1));
    }
    operation.start(&mut job, &targets).unwrap();
    iterate(&mut job, moment.unwrap_or(40));
    answer.send_about_all(&mut job, from);
    let checked = |job: &Job| {
        let differs = job.members[0].lane.audit().err().map(|differs| differs.to_string());
        assert_eq!(differs, None, "{answer:?} of PE {from} to {operation:?} ({shared}) {moment:?}");
    };
    checked(&job);
    job.fabric.resume(Pe(1));
    let error = end(&mut job);
    checked(&job);
    // What nobody was asked to write to stays as it was; the landing is what a peer may fill.
    let scratch = job.members[0].scratch;
    let source = job.fabric.load(Pe(0), scratch, LANDING);
    assert_eq!(source, [0x11; LANDING], "the source of a put");
    let landed = if operation.is_of_peer() { 0 } else { LONG };
    let rest = job.fabric.load(Pe(0), scratch + LANDING + landed, LANDING - landed);
    assert_eq!(rest, [0; LANDING][landed..], "beside where a get puts its bytes");
    let put = if operation == Operation::PutOfPeer { LONG } else { 0 };
    assert_eq!(job.heap(0, put, LANDING - put), [0; LANDING][put..], "the heap");
    error
}

#[test]
fn answers_fit_what_was_asked() {
    for (operation, shared) in OPERATIONS.into_iter().flat_map(|of| [(of, 0), (of, 0b111)]) {
        for answer in ANSWERS {
            for from in [1, 2] {
                let error = answered((operation, shared), None, answer, from);
                let case =
                    format!("{answer:?} of PE {from} to {operation:?} ({shared}): {error:?}");
                let error = error.as_deref();
                if from == 2 {
                    assert_eq!(error, None, "{case}");
                } else if operation.is_contradicted_by(answer) {
                    assert!(error.is_some_and(|error| error.contains("PE 1")), "{case}");
                } else if operation.is_answered_by(answer) {
                    assert!(error.is_none_or(|error| error.contains("PE 1")), "{case}");
                } else {
                    assert_eq!(error, None, "{case}");
                }
            }
        }
    }
}

/// The same at every moment of an operation's life: it ends, or fails by the peer's name, and no
/// memory is touched that was not to be.
#[test]
fn answers_at_any_moment() {
    for (operation, shared) in OPERATIONS.into_iter().flat_map(|of| [(of, 0), (of, 0b111)]) {
        for (answer, moment) in
            ANSWERS.into_iter().flat_map(|of| (0..36).step_by(3).map(move |at| (of, at)))
        {
            let error = answered((operation, shared), Some(moment), answer, 1);
            let named = error.as_deref().is_none_or(|error| error.contains("PE 1"));
            assert!(named, "{answer:?} to {operation:?} ({shared}) at {moment}: {error:?}");
        }
    }
}
