//! The plan of a replay: the recorded calls of every lane, brought to small memory in which each call has places of its own.
//!
//! A transport orders by lanes, peers, fences and signals, and by no address. So each call may have places of its own at the
//! target, and what takes effect there tells which call it is of. Long transfers become short ones, which the replay's lanes cut
//! all the same.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use engine::atomic::{AtomicOp, Width};
use nvshmem_recording::{Caller, Kind, Record};

use super::job::{CallId, Job};
use super::order::{Missing, Unordered};

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

/// A read that nothing has ordered behind a write, at the same bytes as that.
#[derive(Clone, Copy, Debug)]
pub(super) struct Suspect {
    /// Which of the reads that nothing has ordered.
    pub(super) number: usize,
    /// Where what was written is in the end: at this PE, in its heap or beside it.
    pub(super) at: (u32, bool, usize),
    pub(super) len: usize,
}

/// What is replayed. PEs are numbered anew, without those that nobody has to do with.
#[derive(Clone, Debug, Default)]
pub(super) struct Plan {
    pub(super) n_pes: u32,
    pub(super) lanes: Vec<LanePlan>,
    /// Bytes of a heap, and of the memory beside it.
    pub(super) heap: usize,
    /// Memory here that is filled by gets, by PE.
    pub(super) got: Vec<(u32, usize, usize)>,
    /// Places at PEs that are read by a get of which the replay is to see what it got.
    pub(super) filled: Vec<(u32, usize, usize)>,
    pub(super) suspects: Vec<Suspect>,
    /// Calls, and those of each lane that were too many: the oldest.
    pub(super) calls: usize,
    pub(super) left_out: usize,
}

impl Plan {
    /// That of a job, of at most so many of the newest calls of a lane.
    pub(super) fn of(job: &Job, unordered: &[Unordered], most: usize) -> Self {
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
        let mut made: HashMap<CallId, (usize, usize)> = HashMap::new();
        for ((pe, caller), of_lane) in calls {
            let mut steps: Vec<Step> = Vec::new();
            let mut parts = Vec::new();
            for call in of_lane {
                let record = job.record(call);
                let to = numbers[&record.pe];
                if let Some(does) = places.step(to, record, &mut parts) {
                    made.insert(call, (plan.lanes.len(), steps.len()));
                    steps.push(Step { call, to, blocking: record.blocking, does });
                }
            }
            plan.calls += steps.len();
            plan.lanes.push(LanePlan { pe: numbers[&pe], caller, steps });
        }
        plan.heap = places.next.iter().copied().max().unwrap_or(0).max(64);
        for (number, of) in unordered.iter().enumerate() {
            if let (Some(write), Some(read)) = (made.get(&of.write), made.get(&of.read)) {
                let suspect = plan.suspect(number, of.missing, *write, *read);
                plan.suspects.extend(suspect);
            }
        }
        for lane in &plan.lanes {
            for step in &lane.steps {
                if let Does::Get(bytes) = &step.does {
                    plan.got.push((lane.pe, bytes.local, bytes.len));
                }
            }
        }
        plan
    }

    /// Brings a read to the bytes that its write writes. None where that is not what a lane can show, as the order between PEs
    /// is not known.
    fn suspect(
        &mut self,
        number: usize,
        missing: Missing,
        write: (usize, usize),
        read: (usize, usize),
    ) -> Option<Suspect> {
        let first = |does: &mut Does| match does {
            Does::Put(bytes) | Does::Get(bytes) | Does::P(bytes) => Some(*bytes),
            Does::PutSignal { parts, .. } => parts.first().copied(),
            Does::Amo { .. } | Does::Fence | Does::Quiet => None,
        };
        let written = first(&mut self.lanes[write.0].steps[write.1].does)?;
        let writer = (self.lanes[write.0].pe, self.lanes[write.0].steps[write.1].to);
        let (reader, read_at) = (self.lanes[read.0].pe, self.lanes[read.0].steps[read.1].to);
        let does = &mut self.lanes[read.0].steps[read.1].does;
        let bytes = match does {
            Does::Put(bytes) | Does::Get(bytes) => bytes,
            Does::PutSignal { parts, .. } => parts.first_mut()?,
            Does::P(_) | Does::Amo { .. } | Does::Fence | Does::Quiet => return None,
        };
        let len = bytes.len.min(written.len);
        bytes.len = len;
        let at = match missing {
            Missing::QuietBeforeGet => {
                bytes.remote = written.remote;
                (reader, false, bytes.local)
            }
            Missing::QuietAfterGet => {
                bytes.local = written.local;
                let at = (read_at, true, bytes.remote);
                self.filled.push((writer.1, written.remote, written.len));
                at
            }
            Missing::Anything => return None,
        };
        Some(Suspect { number, at, len })
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
