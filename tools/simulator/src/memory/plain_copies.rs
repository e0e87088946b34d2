//! Copies of the driver alone, between page-locked memory and the device: what staging cannot be
//! faster than.

use crate::error::{Error, Result};
use crate::memory::device_memory::MemoryKind;
use crate::memory::driver::NON_BLOCKING;
use crate::memory::gpu::Gpu;
use crate::memory::local::Mapping;

/// A stream of its own, and memory on both sides. What is copied means nothing.
///
/// # Threads
/// Any, one at a time.
#[derive(Debug)]
pub struct PlainCopies {
    gpu: &'static Gpu,
    stream: usize,
    host: Mapping,
    device: Mapping,
}

impl PlainCopies {
    pub(crate) fn new(gpu: &'static Gpu, bytes: u64) -> Result<PlainCopies> {
        let device = Mapping::of_kind(MemoryKind::Device, bytes, Some(gpu))?;
        let mut host = Mapping::new(bytes, 4096)?;
        host.lock(gpu)?;
        let mut stream = 0;
        // SAFETY: a place for the handle.
        gpu.bound(|gpu| unsafe { gpu.driver.create_stream(&raw mut stream, NON_BLOCKING) })?;
        Ok(PlainCopies { gpu, stream, host, device })
    }

    /// Starts `count` copies out of the device, of `bytes` each and of places of their own, and
    /// waits for all of them.
    ///
    /// # Errors
    /// They are more bytes than there is memory for, or the driver's.
    pub fn out(&self, bytes: u64, count: u64) -> Result<()> {
        self.copy(bytes, count, |gpu, host, device| {
            // SAFETY: both places have these bytes, until this has waited for the stream.
            unsafe {
                gpu.driver.copy_out(host.cast(), device as usize, bytes as usize, self.stream)
            }
        })
    }

    /// As [`PlainCopies::out`], in the other direction.
    ///
    /// # Errors
    /// As [`PlainCopies::out`].
    pub fn inward(&self, bytes: u64, count: u64) -> Result<()> {
        self.copy(bytes, count, |gpu, host, device| {
            // SAFETY: as above.
            unsafe { gpu.driver.copy_in(device as usize, host.cast(), bytes as usize, self.stream) }
        })
    }

    fn copy(
        &self,
        bytes: u64,
        count: u64,
        start: impl Fn(&Gpu, *mut u8, *mut u8) -> Result<()>,
    ) -> Result<()> {
        let room = self.host.len().min(self.device.len());
        if bytes.checked_mul(count).is_none_or(|all| all > room) {
            return Err(Error::Usage(format!("{count} copies of {bytes} bytes in {room}")));
        }
        self.gpu.bound(|gpu| {
            for slot in 0..count {
                let at = (slot * bytes) as usize;
                let (host, device) = (self.host.start(), self.device.start());
                start(gpu, host.wrapping_add(at), device.wrapping_add(at))?;
            }
            // SAFETY: a stream of this driver.
            unsafe { gpu.driver.synchronize(self.stream) }
        })
    }
}

impl Drop for PlainCopies {
    fn drop(&mut self) {
        // SAFETY: this stream's own, not used any more. Every copy has ended, or failed with the
        // device.
        let destroyed = self.gpu.bound(|gpu| unsafe { gpu.driver.destroy_stream(self.stream) });
        if let Err(error) = destroyed {
            eprintln!("nvshmem-sim: ending the stream of plain copies: {error}");
        }
    }
}
