//! Faults: what users are told, what comes late, and what the log says; and random schedules of
//! them.

mod failures;
mod fault;
mod given_up;
mod late;
mod schedules;
mod warnings;

pub(crate) use fault::Fault;

use crate::prelude::*;

/// What PE 0 does to PE 1.
#[derive(Clone, Copy, Debug)]
enum Operation {
    Put(usize),
    Get(usize),
    PutSignal,
    ShortPutSignal,
    Add,
    Fetch,
    Signal,
}

impl Operation {
    /// Few bytes of staged memory go in a message of their own.
    const ALL: [Self; 9] = [
        Self::Put(100),
        Self::Put(700),
        Self::Get(100),
        Self::Get(700),
        Self::PutSignal,
        Self::ShortPutSignal,
        Self::Add,
        Self::Fetch,
        Self::Signal,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Put(_) | Self::PutSignal => "put",
            Self::Get(_) => "get",
            Self::ShortPutSignal => "put with signal",
            Self::Add | Self::Signal => "atomic",
            Self::Fetch => "fetching atomic",
        }
    }

    fn begin(self, job: &mut Job) -> Outcome {
        match self {
            Self::Put(len) => job.put(0, 1, 0, len),
            Self::Get(len) => job.get(0, 1, 0, len),
            Self::PutSignal => job.put_signal(0, 1, &[(0, 1000)], 2048),
            Self::ShortPutSignal => job.put_signal(0, 1, &[(0, 16)], 2048),
            Self::Add => job.amo(0, 1, 2048, AtomicOp::Add, 1),
            Self::Fetch => job.fetch(0, 1, 2048),
            Self::Signal => job.amo(0, 1, 2048, AtomicOp::SignalSet, 1),
        }
    }
}
