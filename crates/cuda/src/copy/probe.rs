//! A probe that measures short copies to a device, plain and in rows.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::copy::calls::copy_piece;
use crate::copy::request::Direction;
use crate::copy::rows::copy_in_rows;
use crate::driver::context::Context;
use crate::driver::error::{CudaError, code};
use crate::driver::stream::{Event, Stream, wait_for};
use crate::memory::heap::DeviceHeap;
use crate::memory::pinned_memory::PinnedMemory;

/// Bytes of page-locked memory and of device memory that a probe uses.
pub(crate) const BYTES: usize = 4096;

const ROUNDS: usize = 50;

const PATIENCE: Duration = Duration::from_millis(100);

/// Time limit for the last copy, once nothing runs beside it.
const END: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Probe<'a> {
    stream: Stream,
    event: Event,
    from: &'a Arc<PinnedMemory>,
    to: &'a Arc<DeviceHeap>,
}

impl<'a> Probe<'a> {
    pub(crate) fn new(
        context: &Arc<Context>,
        from: &'a Arc<PinnedMemory>,
        to: &'a Arc<DeviceHeap>,
    ) -> Result<Self, CudaError> {
        let (stream, event) = (Stream::new(context)?, Event::new(context)?);
        Ok(Self { stream, event, from, to })
    }

    pub(crate) fn rows(&mut self, enough: Duration) -> Result<Duration, CudaError> {
        // SAFETY: both sides have these bytes; `fastest` binds the context and waits for the end.
        self.fastest(enough, |stream, from, to| unsafe { copy_in_rows(stream, to, from, BYTES) })
    }

    pub(crate) fn plain(&mut self, enough: Duration) -> Result<Duration, CudaError> {
        // SAFETY: as in `rows`.
        self.fastest(enough, |stream, from, to| unsafe {
            copy_piece(stream, Direction::ToDevice, to, from, BYTES)
        })
    }

    fn fastest(
        &mut self,
        enough: Duration,
        submit: impl Fn(&Stream, usize, usize) -> Result<(), CudaError>,
    ) -> Result<Duration, CudaError> {
        let context = Arc::clone(self.stream.context());
        let _bound = context.bind()?;
        let mut fastest = PATIENCE;
        for _ in 0..ROUNDS {
            let start = Instant::now();
            submit(&self.stream, self.from.addr(), self.to.addr())?;
            self.event.record(&self.stream)?;
            let mut done = Ok(false);
            wait_for(PATIENCE, || {
                done = self.event.is_done();
                done != Ok(false)
            });
            if !done? {
                let subject = format!("a copy of {BYTES} bytes, {context}");
                return Err(context.driver().error("cuEventQuery", code::TIMEOUT, subject));
            }
            fastest = fastest.min(start.elapsed());
            if fastest <= enough {
                break;
            }
        }
        Ok(fastest)
    }
}

impl Drop for Probe<'_> {
    /// Waits for a copy that took too long; the kernel beside it has ended by now. If the copy does
    /// not end, its memory is leaked: the device may still read and write it.
    fn drop(&mut self) {
        if !wait_for(END, || self.stream.is_idle() != Ok(false)) {
            std::mem::forget((Arc::clone(self.from), Arc::clone(self.to)));
        }
    }
}
