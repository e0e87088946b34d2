//! Order: what a program has put in order by what it called, and the reads of what it has not.
//!
//! A write is ordered before a read once its lane has waited for a quiet. Before a read by another
//! PE, which may have waited for anything, it is also once its lane has sent what tells of it: the
//! signal of the same put, a signal apart, or anything behind a fence. What may have been polled
//! itself, a `p` or a word, is no such write. That a PE has waited is not seen, so times decide
//! what another PE can have known; they do between PEs of one machine only.

use std::collections::{BTreeMap, HashMap};

use engine::atomic::AtomicOp;
use nvshmem_recording::{Caller, Kind, Record};

use super::job::{CallId, Job};

/// What a read lacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Missing {
    /// A get of what the same lane has put.
    QuietBeforeGet,
    /// A put from where a get of the same PE lands.
    QuietAfterGet,
    /// A read of what another has put.
    Anything,
}

/// A read of data that nothing had ordered before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Unordered {
    pub(super) missing: Missing,
    pub(super) write: CallId,
    pub(super) read: CallId,
}

/// One kind of caller of one PE, whose calls are in order.
type LaneId = (u32, Caller);

/// The reads that nothing has ordered, the first one first, each once for a write.
pub(super) fn unordered_reads(job: &Job) -> Vec<Unordered> {
    let mut moments = Vec::new();
    for (pe, recording) in &job.pes {
        for (at, record) in recording.records.iter().enumerate() {
            if record.status != 0 {
                continue;
            }
            let call = CallId { pe: *pe, at };
            moments.push((job.moment(*pe, record.time), true, call));
            if let (Kind::Quiet, Some(took)) = (record.kind, record.took) {
                moments.push((job.moment(*pe, record.time.saturating_add(took)), false, call));
            }
        }
    }
    moments.sort_unstable();
    let mut state = State::new(job);
    for (_, begins, call) in moments {
        match begins {
            true => state.begins(call),
            false => state.is_quiet(call),
        }
    }
    state.found
}

/// Writes that are not ordered yet, by where in a PE's memory.
#[derive(Debug, Default)]
struct Pending {
    ends: BTreeMap<(u64, CallId), u64>,
    longest: u64,
}

impl Pending {
    fn add(&mut self, start: u64, len: u64, call: CallId) {
        self.ends.insert((start, call), start.saturating_add(len));
        self.longest = self.longest.max(len);
    }

    fn remove(&mut self, start: u64, call: CallId) {
        self.ends.remove(&(start, call));
    }

    /// Those that some bytes are among.
    fn find(&self, start: u64, len: u64) -> impl Iterator<Item = CallId> + '_ {
        let first = CallId { pe: 0, at: 0 };
        let from = (start.saturating_sub(self.longest), first);
        let to = (start.saturating_add(len), first);
        let near = self.ends.range(from..to);
        near.filter(move |(_, end)| **end > start).map(|((_, call), _)| *call)
    }
}

/// What a lane has written to a peer.
#[derive(Debug, Default)]
struct Written {
    /// Since the last quiet, also by gets at home.
    all: Vec<(u64, CallId)>,
    /// That nothing tells of, since the last fence and before.
    untold: Vec<(u64, CallId)>,
    fenced: Vec<(u64, CallId)>,
}

struct State<'a> {
    job: &'a Job,
    lanes: HashMap<(LaneId, u32), Written>,
    /// Writes of each lane to each peer without a quiet.
    unquieted: HashMap<(LaneId, u32), Pending>,
    /// By the PE whose memory it is: what gets of it are to land.
    landing: HashMap<u32, Pending>,
    /// The same: puts to it of which nothing tells.
    untold: HashMap<u32, Pending>,
    found: Vec<Unordered>,
}

impl<'a> State<'a> {
    fn new(job: &'a Job) -> Self {
        let (lanes, unquieted) = (HashMap::new(), HashMap::new());
        let (landing, untold) = (HashMap::new(), HashMap::new());
        Self { job, lanes, unquieted, landing, untold, found: Vec::new() }
    }

    /// A quiet has returned: all that its lane had begun with the peer is done.
    fn is_quiet(&mut self, call: CallId) {
        let record = *self.job.record(call);
        let key = ((call.pe, record.caller), record.pe);
        self.unquieted.remove(&key);
        let Some(written) = self.lanes.get_mut(&key) else { return };
        let Written { all, untold, fenced } = std::mem::take(written);
        for (start, call) in all {
            if let Some(landing) = self.landing.get_mut(&key.0.0) {
                landing.remove(start, call);
            }
        }
        self.told(record.pe, untold.into_iter().chain(fenced));
    }

    /// Something tells of writes to a PE.
    fn told(&mut self, pe: u32, writes: impl IntoIterator<Item = (u64, CallId)>) {
        if let Some(pending) = self.untold.get_mut(&pe) {
            writes.into_iter().for_each(|(start, call)| pending.remove(start, call));
        }
    }

    fn begins(&mut self, call: CallId) {
        let record = *self.job.record(call);
        let key = ((call.pe, record.caller), record.pe);
        match record.kind {
            Kind::Get | Kind::G => self.gets(call, &record),
            Kind::Fence => {
                let written = self.lanes.entry(key).or_default();
                written.fenced.append(&mut written.untold);
            }
            Kind::Put | Kind::P | Kind::PutSignal | Kind::Part | Kind::Amo => {
                if record.kind != Kind::Amo && record.kind != Kind::P {
                    self.reads_here(call, &record);
                }
                // What is behind a fence tells of what is before it.
                let written = self.lanes.entry(key).or_default();
                let mut told = std::mem::take(&mut written.fenced);
                if record.kind == Kind::Amo && is_signal(&record) {
                    told.append(&mut written.untold);
                }
                self.told(record.pe, told);
                self.writes(call, &record);
            }
            Kind::Quiet | Kind::Progress => {}
        }
    }

    fn writes(&mut self, call: CallId, record: &Record) {
        if record.kind == Kind::Amo || record.bytes == 0 {
            return;
        }
        let key = ((call.pe, record.caller), record.pe);
        self.unquieted.entry(key).or_default().add(record.remote, record.bytes, call);
        // The signal of a put tells of it, and its pieces.
        if record.kind == Kind::Put {
            self.untold.entry(record.pe).or_default().add(record.remote, record.bytes, call);
            self.lanes.entry(key).or_default().untold.push((record.remote, call));
        }
    }

    fn gets(&mut self, call: CallId, record: &Record) {
        let key = ((call.pe, record.caller), record.pe);
        let bytes = (record.remote, record.bytes);
        let own = self.unquieted.get(&key).and_then(|of| of.find(bytes.0, bytes.1).next());
        match own {
            Some(write) => self.note(Missing::QuietBeforeGet, write, call),
            None => self.reads_of(record.pe, bytes, call, record.caller),
        }
        if !record.blocking && record.bytes > 0 {
            self.landing.entry(call.pe).or_default().add(record.local, record.bytes, call);
            self.lanes.entry(key).or_default().all.push((record.local, call));
        }
    }

    /// A put reads at home.
    fn reads_here(&mut self, call: CallId, record: &Record) {
        let bytes = (record.local, record.bytes);
        let get = self.landing.get(&call.pe).and_then(|of| of.find(bytes.0, bytes.1).next());
        match get {
            Some(get) => self.note(Missing::QuietAfterGet, get, call),
            None => self.reads_of(call.pe, bytes, call, record.caller),
        }
    }

    /// Bytes of a PE are read, which others may have written.
    fn reads_of(&mut self, pe: u32, (start, len): (u64, u64), read: CallId, caller: Caller) {
        let Some(untold) = self.untold.get(&pe) else { return };
        let write = untold.find(start, len).find(|write| {
            let by = (write.pe, self.job.record(*write).caller);
            by != (read.pe, caller) && self.job.share_a_clock(write.pe, read.pe)
        });
        if let Some(write) = write {
            self.note(Missing::Anything, write, read);
        }
    }

    fn note(&mut self, missing: Missing, write: CallId, read: CallId) {
        self.found.push(Unordered { missing, write, read });
    }
}

/// Whether an atomic is a signal's own operation.
pub(super) fn is_signal(record: &Record) -> bool {
    AtomicOp::from_code(record.op.into()).is_some_and(AtomicOp::is_signal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::tests::{at, job};

    const HERE: u64 = 0x1000;
    const THERE: u64 = 0x9000;

    fn call(time: u64, kind: Kind) -> Record {
        let pe = 1;
        Record { bytes: 64, remote: THERE, local: HERE, ..at(time, kind, pe) }
    }

    fn signal(time: u64, op: AtomicOp) -> Record {
        Record { op: op as u8, remote: 0x20, local: 0, bytes: 8, ..call(time, Kind::Amo) }
    }

    /// The reads that are found in what PE 0 calls, and PE 1.
    fn found(zero: &[Record], one: &[Record]) -> Vec<(Missing, u32, usize)> {
        let job = job(3, &[(0, zero), (1, one)], &[]);
        let found = unordered_reads(&job);
        found.iter().map(|found| (found.missing, found.read.pe, found.read.at)).collect()
    }

    #[test]
    fn a_get_of_what_was_put_takes_a_quiet() {
        let (put, get) = (call(10, Kind::Put), call(30, Kind::Get));
        let missing = vec![(Missing::QuietBeforeGet, 0, 1)];
        assert_eq!(found(&[put, get], &[]), missing);
        assert_eq!(found(&[put, call(20, Kind::Fence), get], &[]).len(), 1);
        assert_eq!(found(&[put, call(20, Kind::Quiet), get], &[]), []);
        // Its last byte, and the one behind it.
        let last = Record { remote: THERE + 63, ..get };
        let behind = Record { remote: THERE + 64, ..get };
        let before = Record { remote: THERE - 64, ..get };
        assert_eq!(found(&[put, last], &[]), missing);
        assert_eq!((found(&[put, behind], &[]), found(&[put, before], &[])), (vec![], vec![]));
        // A quiet with another PE, or of another caller, is none; nor is one that has not returned.
        let other = Record { pe: 2, ..call(20, Kind::Quiet) };
        let host = Record { caller: Caller::Host, ..call(20, Kind::Quiet) };
        let open = Record { took: None, ..call(20, Kind::Quiet) };
        for quiet in [other, host, open] {
            assert_eq!(found(&[put, quiet, get], &[]).len(), 1, "{quiet:?}");
        }
        // What has failed has written nothing.
        assert_eq!(found(&[Record { status: 7, ..put }, get], &[]), []);
    }

    #[test]
    fn a_put_of_what_is_got_takes_a_quiet() {
        let (get, put) = (call(10, Kind::Get), Record { remote: 0, ..call(30, Kind::Put) });
        assert_eq!(found(&[get, put], &[]), [(Missing::QuietAfterGet, 0, 1)]);
        assert_eq!(found(&[get, call(20, Kind::Quiet), put], &[]), []);
        assert_eq!(found(&[Record { blocking: true, ..get }, put], &[]), []);
        assert_eq!(found(&[get, Record { local: HERE + 64, ..put }], &[]), []);
    }

    #[test]
    fn what_another_reads_is_told_of_or_waited_for() {
        let put = call(10, Kind::Put);
        // PE 1 sends on what it got from PE 0, or PE 2 would have.
        let read = Record { pe: 2, local: THERE, remote: 0, ..call(100, Kind::Put) };
        let missing = vec![(Missing::Anything, 1, 0)];
        assert_eq!(found(&[put], &[read]), missing);
        assert_eq!(found(&[put, call(20, Kind::Quiet)], &[read]), []);
        for op in [AtomicOp::Signal, AtomicOp::SignalSet, AtomicOp::SignalAdd] {
            assert_eq!(found(&[put, signal(20, op)], &[read]), []);
        }
        // An atomic that is no signal tells of nothing, but behind a fence.
        let (add, fence) = (signal(30, AtomicOp::Add), call(20, Kind::Fence));
        assert_eq!(found(&[put, add], &[read]), missing);
        assert_eq!(found(&[put, fence, add], &[read]), []);
        assert_eq!(found(&[put, fence], &[read]), missing);
        // Its own signal tells of a put, and of no other.
        let with = call(10, Kind::PutSignal);
        assert_eq!(found(&[with], &[read]), []);
        assert_eq!(found(&[put, Record { remote: 0, ..with }], &[read]), missing);
        // What came after the read, and what is told of later.
        assert_eq!(found(&[Record { time: 200, ..put }], &[read]), []);
        assert_eq!(found(&[put, signal(150, AtomicOp::SignalAdd)], &[read]), missing);
        // A word may have been polled.
        assert_eq!(found(&[Record { bytes: 8, ..call(10, Kind::P) }], &[read]), []);
    }
}
