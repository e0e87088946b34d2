//! Copies of the driver alone, between page-locked memory and the device: what staging cannot be
//! faster than.

use std::ffi::c_void;
use std::sync::Arc;

use cuda::{DeviceMemory, PinnedMemory, Stream};

use crate::error::{Error, Result};
use crate::memory::gpu::{Calls, Gpu, device};

/// A stream of its own, and memory on both sides. What is copied means nothing.
///
/// # Threads
/// Any, one at a time.
#[derive(Debug)]
pub struct PlainCopies {
    gpu: &'static Gpu,
    stream: Stream,
    host: Arc<PinnedMemory>,
    device: DeviceMemory,
}

impl PlainCopies {
    pub(crate) fn new(gpu: &'static Gpu, bytes: u64) -> Result<PlainCopies> {
        let host = PinnedMemory::new(&gpu.context, bytes as usize).map_err(device)?;
        let on_device = DeviceMemory::new(&gpu.context, bytes as usize).map_err(device)?;
        let stream = Stream::new(&gpu.context).map_err(device)?;
        Ok(PlainCopies { gpu, stream, host, device: on_device })
    }

    /// Starts `count` copies out of the device, of `bytes` each and of places of their own, and
    /// waits for all of them.
    pub fn out(&self, bytes: u64, count: u64) -> Result<()> {
        self.copy(bytes, count, |calls, host, device, stream| {
            // SAFETY: both places have these bytes, until `copy` has waited for the stream.
            unsafe { calls.copy_out(host, device, bytes as usize, stream) }
        })
    }

    /// As [`PlainCopies::out`], in the other direction.
    pub fn inward(&self, bytes: u64, count: u64) -> Result<()> {
        self.copy(bytes, count, |calls, host, device, stream| {
            // SAFETY: as above.
            unsafe { calls.copy_in(device, host, bytes as usize, stream) }
        })
    }

    fn copy(
        &self,
        bytes: u64,
        count: u64,
        start: impl Fn(&Calls, *mut c_void, usize, *mut c_void) -> Result<()>,
    ) -> Result<()> {
        let room = self.host.len() as u64;
        if bytes.checked_mul(count).is_none_or(|all| all > room) {
            return Err(Error::Usage(format!("{count} copies of {bytes} bytes in {room}")));
        }
        let stream = self.stream.as_ptr();
        self.gpu.bound(|calls| {
            for at in (0..count).map(|slot| (slot * bytes) as usize) {
                start(calls, (self.host.addr() + at) as *mut _, self.device.addr() + at, stream)?;
            }
            // SAFETY: a stream of this driver.
            unsafe { calls.synchronize(stream) }
        })
    }
}
