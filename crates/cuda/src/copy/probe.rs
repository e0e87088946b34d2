//! A probe: what short copies to a device take, as they are and in rows.

use std::hint;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::copy::rows::Part;
use crate::driver::context::Context;
use crate::driver::error::{CudaError, code};
use crate::driver::stream::{Event, Stream};
use crate::memory::heap::DeviceHeap;
use crate::memory::pinned_memory::PinnedMemory;

/// Bytes of page-locked memory and of the device's that it uses.
pub(crate) const BYTES: usize = 4096;

const ROUNDS: usize = 50;

const PATIENCE: Duration = Duration::from_millis(100);

/// How long the last one is waited for, once nothing runs beside it.
const END: Duration = Duration::from_secs(1);

/// See the module.
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
        let part = Part { offset: 0, width: BYTES / 2, rows: 2 };
        // SAFETY: both sides have these bytes; `least` binds the context and waits for the end.
        self.least(enough, |stream, from, to| unsafe { part.copy(stream, from, to) })
    }

    pub(crate) fn plain(&mut self, enough: Duration) -> Result<Duration, CudaError> {
        let part = Part { offset: 0, width: BYTES, rows: 1 };
        // SAFETY: as in `rows`.
        self.least(enough, |stream, from, to| unsafe { part.copy(stream, from, to) })
    }

    fn least(
        &mut self,
        enough: Duration,
        give: impl Fn(&Stream, usize, usize) -> Result<(), CudaError>,
    ) -> Result<Duration, CudaError> {
        let context = Arc::clone(self.stream.context());
        let _bound = context.bind()?;
        let mut least = PATIENCE;
        for _ in 0..ROUNDS {
            let start = Instant::now();
            give(&self.stream, self.from.addr(), self.to.addr())?;
            self.event.record(&self.stream)?;
            while !self.event.is_done()? {
                if start.elapsed() > PATIENCE {
                    let subject = format!("a copy of {BYTES} bytes, {context}");
                    return Err(context.driver().error("cuEventQuery", code::TIMEOUT, subject));
                }
                hint::spin_loop();
                thread::yield_now();
            }
            least = least.min(start.elapsed());
            if least <= enough {
                break;
            }
        }
        Ok(least)
    }
}

impl Drop for Probe<'_> {
    /// Waits for a copy that took too long; what ran beside it has ended by now. The device may
    /// still read and write the memory of one that does not end, which stays for ever then.
    fn drop(&mut self) {
        let start = Instant::now();
        while matches!(self.stream.is_idle(), Ok(false)) {
            if start.elapsed() > END {
                return std::mem::forget((Arc::clone(self.from), Arc::clone(self.to)));
            }
            thread::yield_now();
        }
    }
}
