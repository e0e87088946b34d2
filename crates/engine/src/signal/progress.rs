//! The progress of a put with signal: how far it is submitted, which goes on where there is room.

use crate::signal::counted::Counting;
use crate::state::operation::OpId;

/// How far the parts of a put are submitted.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    pub(crate) part: usize,
    /// Of that part, in bytes.
    pub(crate) sent: usize,
}

impl Progress {
    pub(crate) fn next(&mut self) {
        (self.part, self.sent) = (self.part + 1, 0);
    }
}

/// How far a put with signal is submitted, by the way that it goes.
#[derive(Debug)]
pub(crate) enum PutState {
    /// Not at all.
    New,
    Eager,
    LongEager,
    /// Its last bytes in a message of their own, once they are `ahead`.
    Split {
        op: OpId,
        ahead: bool,
    },
    /// Listed together, for the target to apply the signal once it has copied the data.
    Listed,
    Counted {
        counting: Counting,
        at: Progress,
    },
    Chained {
        op: OpId,
        at: Progress,
    },
    /// The data is a put like any other, and the signal comes behind all puts.
    Ordered {
        at: Progress,
    },
}
