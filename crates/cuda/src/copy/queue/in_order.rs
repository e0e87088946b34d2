//! Copies to a device and stores of words that are given to a stream in their order, as one thing.
//!
//! Copies that nothing orders among one another are given together, and so are words in a row:
//! before a copy, and between a copy and a word, a device waits.

use std::sync::Arc;

use super::many::{Piece, Refused};
use super::{CopyQueue, Given};
use crate::copy::batch::{MOST_WRITES, Write};
use crate::copy::request::{Direction, PinnedTransfer, StartError, Ticket};
use crate::driver::error::CudaError;

/// One of them.
#[derive(Debug)]
pub(crate) enum Step<'a> {
    /// A copy to the device, and whether it comes behind all before it; else nothing orders it and
    /// the copies right before it.
    Copy(PinnedTransfer<'a>, bool),
    /// A store of a word, which an operation of a stream stores, behind all before it.
    Store(Write),
}

/// What has become of steps so far.
#[derive(Default)]
struct Started {
    some: bool,
    failed: Option<CudaError>,
}

impl Started {
    fn and(&mut self, given: Result<(), Refused>) -> bool {
        match given {
            Ok(()) => self.some = true,
            Err(Refused { error, some }) => {
                self.some |= some;
                self.failed = Some(error);
            }
        }
        self.failed.is_none()
    }
}

impl CopyQueue {
    /// Starts steps, each behind those before it but for copies without order. An entry is free.
    ///
    /// # Safety
    /// Each copy was checked, its host side is page-locked memory that is among the `kept`, and
    /// nobody else uses it until all have ended. Each word was checked.
    pub(crate) unsafe fn in_order<'a>(
        &mut self,
        steps: impl Iterator<Item = Step<'a>>,
    ) -> Result<Ticket, StartError> {
        let context = Arc::clone(self.stream.context());
        let _bound = context.bind()?;
        self.begin_many();
        self.writes.clear();
        let mut started = Started::default();
        for step in steps {
            let goes_on = match step {
                Step::Copy(transfer, behind) => {
                    // SAFETY: the caller's promise of copies.
                    let goes_on = !behind || unsafe { self.give_copies(&mut started) };
                    let goes_on = goes_on && self.give_words(&mut started);
                    let PinnedTransfer { range, addr, memory, offset, len, .. } = transfer;
                    for piece in Piece::of(range, addr, memory, offset, len) {
                        self.add_piece(piece);
                    }
                    goes_on
                }
                Step::Store(write) => {
                    // SAFETY: as above.
                    let goes_on = unsafe { self.give_copies(&mut started) };
                    let has_room = self.writes.len() < MOST_WRITES;
                    let goes_on = goes_on && (has_room || self.give_words(&mut started));
                    self.writes.push(write);
                    goes_on
                }
            };
            if !goes_on {
                break;
            }
        }
        if started.failed.is_none() {
            // SAFETY: as above. One of the two has nothing left.
            let _ = unsafe { self.give_copies(&mut started) } && self.give_words(&mut started);
        }
        match started {
            Started { some: false, failed: Some(error) } => Err(error.into()),
            // What was started before is under way, so the failure is told when that is done.
            Started { failed, .. } => {
                Ok(self.flight.enter(&self.stream, Given { failed, ..Given::default() }))
            }
        }
    }

    /// Gives the driver the copies that are waiting for others. Whether it has taken them.
    ///
    /// # Safety
    /// As [`CopyQueue::in_order`]. The context is bound.
    unsafe fn give_copies(&mut self, started: &mut Started) -> bool {
        if !self.has_pieces() {
            return true;
        }
        // SAFETY: the caller's promise.
        let given = unsafe { self.give_pieces(Direction::ToDevice) };
        self.begin_many();
        started.and(given)
    }

    fn give_words(&mut self, started: &mut Started) -> bool {
        if self.writes.is_empty() {
            return true;
        }
        let mut writes = std::mem::take(&mut self.writes);
        let given = self.give_writes(writes.iter().copied(), None);
        writes.clear();
        self.writes = writes;
        started.and(given.map(drop))
    }
}
