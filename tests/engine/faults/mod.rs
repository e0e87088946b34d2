//! Faults: what users are told, what comes late, and what the log says; and random schedules of
//! them.

mod failures;
mod fault;
mod given_up;
mod late;
mod schedules;
mod strangers;
mod warnings;

use engine::atomic::AtomicOp;
use engine::error::EngineError;
use engine::port::Direction;
use engine::request::Request;

use crate::job::Job;
use crate::job::Targets;

/// What PE 0 does to PE 1.
#[derive(Clone, Copy, Debug)]
enum What {
    Put(usize),
    Get(usize),
    PutSignal,
    ShortPutSignal,
    Add,
    Fetch,
    Signal,
}

impl What {
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

    fn is_staged(self) -> bool {
        matches!(self, Self::Put(_) | Self::Get(_))
    }

    fn begin(self, job: &mut Job, targets: &Targets) -> Result<(), EngineError> {
        let member = &mut job.members[0];
        let (lane, scratch) = (&mut member.lane, member.scratch);
        let part = |len| targets.part(scratch, 1, 0, len);
        match self {
            Self::Put(len) => lane.start(&part(len)),
            Self::Get(len) => lane.start(&Request { direction: Direction::Read, ..part(len) }),
            Self::PutSignal => member.put_signal(targets, 1, &[(0, 1000)], 2048),
            Self::ShortPutSignal => member.put_signal(targets, 1, &[(0, 16)], 2048),
            Self::Add => lane.atomic(&targets.atomic(1, 2048, AtomicOp::Add, 1)),
            Self::Fetch => lane.atomic(&targets.fetch(1, 2048, scratch + 1024)),
            Self::Signal => lane.atomic(&targets.atomic(1, 2048, AtomicOp::SignalSet, 1)),
        }
    }
}
