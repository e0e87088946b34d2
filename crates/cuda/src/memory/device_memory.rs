//! Device memory that we allocate: what kernels change fast, and what NICs move in tests.

use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;

use crate::driver::context::Context;
use crate::driver::error::CudaError;
use crate::driver::stream::Stream;
use crate::memory::pinned::PinnedMemory;

/// A piece of device memory. The CPU cannot touch it.
///
/// Making and freeing it may wait for everything on the device.
#[derive(Debug)]
pub struct DeviceMemory {
    context: Arc<Context>,
    addr: CUdeviceptr,
    len: usize,
}

impl DeviceMemory {
    /// Allocates `len` bytes. Their content is undefined.
    ///
    /// # Errors
    /// As the driver answers.
    pub fn new(context: &Arc<Context>, len: usize) -> Result<Self, CudaError> {
        let driver = context.driver();
        let _bound = context.bind()?;
        let mut addr = 0;
        // SAFETY: a place for the address; the context is bound.
        let status = unsafe { (driver.api.cuMemAlloc_v2)(&raw mut addr, len) };
        driver.check("cuMemAlloc_v2", status, || format!("{len} bytes, {context}"))?;
        Ok(Self { context: Arc::clone(context), addr, len })
    }

    /// Its address, for kernels.
    pub fn addr(&self) -> usize {
        self.addr as usize
    }

    /// Its length in bytes.
    #[allow(clippy::len_without_is_empty, reason = "none is empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Starts filling it from page-locked memory, which has to be as long and to stay as it is
    /// until the stream is done.
    ///
    /// # Errors
    /// As the driver answers, for one when `from` is shorter.
    pub fn fill(&self, from: &PinnedMemory, stream: &Stream) -> Result<(), CudaError> {
        const CALL: &str = "cuMemcpyHtoDAsync_v2";
        let driver = self.context.driver();
        let subject = || format!("{} bytes of {} to device memory", self.len, from.len());
        if from.len() < self.len {
            return Err(driver.error(CALL, crate::driver::error::code::INVALID_VALUE, subject()));
        }
        let _bound = self.context.bind()?;
        let copy = driver.api.cuMemcpyHtoDAsync_v2;
        // SAFETY: both have that many bytes; that they stay is the caller's to see to, and costs no
        // more than wrong content: the driver has both until they are freed, which waits for the
        // copy.
        let status = unsafe { copy(self.addr, from.addr() as *const _, self.len, stream.raw()) };
        driver.check(CALL, status, subject)
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if let Ok(_bound) = self.context.bind() {
            // An error means that CUDA has ended before us, and has taken the memory along.
            // SAFETY: allocated by `new`, and freed once, here.
            let _ = unsafe { (self.context.driver().api.cuMemFree_v2)(self.addr) };
        }
    }
}
