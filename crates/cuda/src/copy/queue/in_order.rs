//! Copies to a device and stores of words that are given to a stream in their order, as one thing.

use super::{Checked, CopyQueue, Given};
use crate::copy::calls::copy_part;
use crate::copy::request::{StartError, Ticket, Word};
use crate::copy::rows::{self, Part};
use crate::driver::error::CudaError;

/// One of them.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step<'a> {
    /// A copy to the device.
    Copy(Checked<'a>),
    /// A store of a word, which an operation of a stream stores.
    Store(Word<'a>, u64),
}

impl CopyQueue {
    /// Starts steps, each behind those before it. An entry is free.
    ///
    /// # Safety
    /// As [`CopyQueue::copy`], for each copy, whose memory is kept until all have ended.
    pub(crate) unsafe fn in_order<'a>(
        &mut self,
        steps: impl Iterator<Item = Step<'a>>,
    ) -> Result<Ticket, StartError> {
        let _bound = self.stream.context().bind()?;
        let mut started = 0;
        let mut failed = None;
        for step in steps {
            let given = match step {
                // SAFETY: the caller's promise.
                Step::Copy(copy) => unsafe { self.give_parts(&copy, &mut started) },
                Step::Store(word, value) => {
                    self.give_write(&word, value).inspect(|()| started += 1)
                }
            };
            match given {
                Ok(()) => {}
                Err(error) if started == 0 => return Err(error.into()),
                // Those before it are under way, so the failure is told when they are done.
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        Ok(self.flight.enter(&self.stream, Given { failed, ..Given::default() }))
    }

    /// Gives the driver a copy to the device, and counts what it is given.
    ///
    /// # Safety
    /// As [`CopyQueue::copy`].
    unsafe fn give_parts(&self, copy: &Checked<'_>, started: &mut u32) -> Result<(), CudaError> {
        let in_rows = self.rows && !copy.range.is_owned();
        for (addr, len) in copy.range.pieces(copy.addr, copy.len) {
            let cut = in_rows.then(|| rows::parts(addr, len));
            let whole = (!in_rows).then_some(Part { offset: 0, width: len, rows: 1 });
            for part in cut.into_iter().flatten().chain(whole) {
                let at = addr + part.offset;
                let host = copy.host + (at - copy.addr);
                // SAFETY: the piece is in one allocation; the host's side by the caller's promise.
                unsafe { copy_part(&self.stream, host, at, &part)? };
                *started += 1;
            }
        }
        Ok(())
    }
}
