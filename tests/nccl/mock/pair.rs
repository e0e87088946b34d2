//! A connection with a little memory, for scenarios that are no rounds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nvshmem_transport_libfabric::nccl::abi::{MR_FORCE_SO, SIGNAL_INC};
use test_jobs::memory::{Kind, Memory, bound};
use test_jobs::{Meeting, Place};
use test_support::random::{bytes, mix};

use crate::mock::group::{Communicator, Connection};
use crate::mock::library::{At, Plugin, Rank, Region, Signal};
use crate::mock::proxy::{Call, ContextId, Style};

pub(crate) const LEN: usize = 256 << 10;

/// Memory holds for each rank a word, then what each rank sends here, then what each is sent.
pub(crate) struct Pair {
    pub(crate) communicator: Communicator,
    pub(crate) connection: Connection,
    pub(crate) memory: Arc<Memory>,
    pub(crate) region: Region,
    me: usize,
    n_pes: usize,
}

impl Pair {
    /// A process's part in `job`, before which nobody makes progress yet.
    pub(crate) fn run(place: &Place, job: impl FnOnce(&mut Self, &Meeting)) {
        let meeting = Meeting::of(place);
        let _bound = bound();
        let mut pair = Self::new(communicator(), &meeting);
        job(&mut pair, &meeting);
        pair.connection.end();
        pair.communicator.end();
    }

    fn new(communicator: Communicator, meeting: &Meeting) -> Self {
        let (me, n_pes) = (meeting.me, meeting.n_pes);
        let mut connection = communicator.connect(Style::Device, meeting);
        connection.create_block(2);
        let memory = Memory::new(Kind::of_pe(me), Self::bytes(n_pes));
        for to in 0..n_pes {
            memory.write(Self::out(n_pes, to), &bytes(Self::key(me, to), LEN));
        }
        let region = connection.register(&memory, MR_FORCE_SO);
        Self { communicator, connection, memory: Arc::new(memory), region, me, n_pes }
    }

    fn bytes(n_pes: usize) -> usize {
        4096 + 2 * n_pes * LEN
    }

    fn key(from: usize, to: usize) -> u64 {
        mix((from * 1000 + to) as u64)
    }

    fn inside(from: usize) -> usize {
        4096 + from * LEN
    }

    fn out(n_pes: usize, to: usize) -> usize {
        4096 + (n_pes + to) * LEN
    }

    pub(crate) fn at(&self, offset: usize) -> At {
        At { region: self.region, offset: offset as u64 }
    }

    pub(crate) fn signal(&self) -> Signal {
        Signal { at: self.at(8 * self.me), value: 0, operation: SIGNAL_INC, strong: true }
    }

    pub(crate) fn put(&self, to: usize, len: usize) -> Arc<AtomicBool> {
        let (from, into) = (self.at(Self::out(self.n_pes, to)), self.at(Self::inside(self.me)));
        self.post(to, Call::PutSignal { from, len, to: into, signal: self.signal() })
    }

    pub(crate) fn get(&self, from: usize, len: usize) -> Arc<AtomicBool> {
        let (its, into) = (self.at(Self::out(self.n_pes, self.me)), self.at(Self::inside(from)));
        self.post(from, Call::Get { from: its, len, to: into })
    }

    fn post(&self, rank: usize, call: Call) -> Arc<AtomicBool> {
        self.connection.queues().start(ContextId(0), Rank(rank as u32), call)
    }

    pub(crate) fn signals(&self, from: usize) -> u64 {
        self.memory.word(8 * from).load(Ordering::Acquire)
    }

    pub(crate) fn look(&self, from: usize, len: usize) {
        let found = self.memory.bytes(Self::inside(from), len);
        assert!(found == bytes(Self::key(from, self.me), len), "{len} bytes from PE {from}");
    }

    pub(crate) fn forget(&self, from: usize) {
        self.memory.fill(Self::inside(from), LEN, |_| 0);
    }

    pub(crate) fn exchange(&self, meeting: &Meeting) {
        let before: Vec<u64> = (0..self.n_pes).map(|from| self.signals(from)).collect();
        (0..self.n_pes).for_each(|from| self.forget(from));
        meeting.barrier();
        for to in 0..self.n_pes {
            self.put(to, LEN);
        }
        for (from, before) in before.into_iter().enumerate() {
            self.connection.queues().wait("a signal", || self.signals(from) > before);
            self.look(from, LEN);
        }
        self.connection.queues().drain();
        meeting.barrier();
    }
}

pub(crate) fn communicator() -> Communicator {
    Communicator::new(&Arc::new(Plugin::of_process()), 77)
}
