//! The plan of a replay: the recorded calls of every lane, brought to small memory in which each call has places of its own.
//!
//! A transport orders by lanes, peers, fences and signals, and by no address. So each call may have places of its own at the
//! target, and what takes effect there tells which call it is of. Long transfers become short ones, which the replay's lanes cut
//! all the same.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use engine::atomic::{AtomicOp, Width};
use nvshmem_recording::{Caller, Kind, Record};

use super::job::{CallId, Job};

/// Most bytes of a transfer in a replay.
const MOST_BYTES: u64 = 300;

/// Bytes of a call's word, and of what an atomic fetches.
const WORD: usize = 16;

/// Bytes at a place of their own, at the peer and here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Bytes {
    /// From the beginning of the peer's heap.
    pub(super) remote: usize,
    /// From the beginning of the memory here that is no heap.
    pub(super) local: usize,
    pub(super) len: usize,
}

/// What a step does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Does {
    Put(Bytes),
    Get(Bytes),
    /// As a put of a value.
    P(Bytes),
    Amo {
        op: AtomicOp,
        width: Width,
        word: usize,
        fetch_to: usize,
    },
    PutSignal {
        parts: Vec<Bytes>,
        op: AtomicOp,
        word: usize,
    },
    Fence,
    Quiet,
}

/// A call to be made again.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) call: CallId,
    pub(super) to: u32,
    pub(super) blocking: bool,
    pub(super) does: Does,
}

/// The calls of one kind of caller of one PE.
#[derive(Clone, Debug)]
pub(super) struct LanePlan {
    pub(super) pe: u32,
    pub(super) caller: Caller,
    pub(super) steps: Vec<Step>,
}

/// What is replayed. PEs are numbered anew, without those that nobody has to do with.
#[derive(Clone, Debug, Default)]
pub(super) struct Plan {
    pub(super) n_pes: u32,
    pub(super) lanes: Vec<LanePlan>,
    /// Bytes of a heap, and of the memory beside it.
    pub(super) heap: usize,
    /// Calls, and those of each lane that were too many: the oldest.
    pub(super) calls: usize,
    pub(super) left_out: usize,
}

impl Plan {
    /// That of a job, of at most so many of the newest calls of a lane.
    pub(super) fn of(job: &Job, most: usize) -> Self {
        let mut numbers = BTreeSet::new();
        let mut calls: BTreeMap<(u32, Caller), Vec<CallId>> = BTreeMap::new();
        let mut plan = Self::default();
        for (pe, recording) in &job.pes {
            numbers.insert(*pe);
            for (at, record) in recording.records.iter().enumerate() {
                if record.status == 0 && !matches!(record.kind, Kind::Progress) {
                    calls.entry((*pe, record.caller)).or_default().push(CallId { pe: *pe, at });
                }
            }
        }
        for of_lane in calls.values_mut() {
            let too_many = of_lane.len().saturating_sub(most);
            plan.left_out += too_many;
            of_lane.drain(..too_many);
            numbers.extend(of_lane.iter().map(|call| job.record(*call).pe));
        }
        let numbers: HashMap<u32, u32> = numbers.into_iter().zip(0..).collect();
        plan.n_pes = numbers.len() as u32;
        let mut places = Places { next: vec![0; numbers.len()] };
        for ((pe, caller), of_lane) in calls {
            let mut steps: Vec<Step> = Vec::new();
            let mut parts = Vec::new();
            for call in of_lane {
                let record = job.record(call);
                let to = numbers[&record.pe];
                if let Some(does) = places.step(to, record, &mut parts) {
                    steps.push(Step { call, to, blocking: record.blocking, does });
                }
            }
            plan.calls += steps.len();
            plan.lanes.push(LanePlan { pe: numbers[&pe], caller, steps });
        }
        plan.heap = places.next.iter().copied().max().unwrap_or(0).max(64);
        plan
    }
}

/// The next places that are free in every heap.
struct Places {
    next: Vec<usize>,
}

impl Places {
    fn take(&mut self, pe: u32, len: usize) -> usize {
        let next = &mut self.next[pe as usize];
        let at = *next;
        *next += len.next_multiple_of(8);
        at
    }

    /// A place at a peer, and one here that has the same number. What is no heap here is behind all of them.
    fn bytes(&mut self, pe: u32, bytes: u64) -> Bytes {
        let len = bytes.min(MOST_BYTES) as usize;
        let remote = self.take(pe, len);
        Bytes { remote, local: remote, len }
    }

    /// What a call does, if it does anything. Parts are kept for the call that they are of.
    fn step(&mut self, to: u32, record: &Record, parts: &mut Vec<Bytes>) -> Option<Does> {
        let op = AtomicOp::from_code(record.op.into());
        Some(match record.kind {
            Kind::Fence => Does::Fence,
            Kind::Quiet => Does::Quiet,
            Kind::Part => {
                parts.extend((record.bytes > 0).then(|| self.bytes(to, record.bytes)));
                return None;
            }
            Kind::PutSignal => {
                let word = self.take(to, WORD);
                let mut all = std::mem::take(parts);
                all.extend((record.bytes > 0).then(|| self.bytes(to, record.bytes)));
                Does::PutSignal { parts: all, op: op.filter(|op| !op.fetches())?, word }
            }
            Kind::Amo => {
                let width = Width::from_bytes(i32::try_from(record.bytes).ok()?)?;
                let word = self.take(to, WORD);
                Does::Amo { op: op?, width, word, fetch_to: word }
            }
            _ if record.bytes == 0 => return None,
            Kind::Put => Does::Put(self.bytes(to, record.bytes)),
            Kind::P => Does::P(self.bytes(to, record.bytes.min(8))),
            Kind::Get | Kind::G => Does::Get(self.bytes(to, record.bytes)),
            Kind::Progress => return None,
        })
    }
}
