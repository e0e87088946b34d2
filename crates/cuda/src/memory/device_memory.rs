//! Device memory that we allocate: what kernels change fast, what NICs read, and for trials.

use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;

use crate::driver::context::Context;
use crate::driver::error::{CudaError, code};
use crate::memory::range::{DeviceRange, Memory, RangeError};

/// Granularity in which GPUs map memory.
pub(crate) const GPU_PAGE: usize = 64 << 10;

/// A piece of device memory. The CPU cannot touch it.
///
/// Making and freeing it may wait for everything on the device.
#[derive(Debug)]
pub struct DeviceMemory {
    context: Arc<Context>,
    allocated: CUdeviceptr,
    range: Arc<DeviceRange>,
}

impl DeviceMemory {
    /// Allocates `len` bytes. Their content is undefined.
    ///
    /// # Errors
    /// As the driver answers.
    pub fn new(context: &Arc<Context>, len: usize) -> Result<Self, CudaError> {
        Self::aligned(context, len, 1)
    }

    /// Allocates one page of the GPU's.
    ///
    /// # Errors
    /// As the driver answers.
    pub fn page(context: &Arc<Context>) -> Result<Self, CudaError> {
        Self::aligned(context, GPU_PAGE, GPU_PAGE)
    }

    fn aligned(context: &Arc<Context>, len: usize, align: usize) -> Result<Self, CudaError> {
        const CALL: &str = "cuMemAlloc_v2";
        let driver = context.driver();
        let _bound = context.bind()?;
        // As many bytes are in it at such an address.
        let whole = len.saturating_add(if align > 1 { align } else { 0 });
        let mut allocated = 0;
        // SAFETY: a place for the address; the context is bound.
        let status = unsafe { (driver.api.cuMemAlloc_v2)(&raw mut allocated, whole) };
        let subject = || format!("{whole} bytes, {context}");
        driver.check(CALL, status, subject)?;
        let failed =
            match Memory::examine(driver, (allocated as usize).next_multiple_of(align), len) {
                Ok(Memory::Device(range)) => {
                    let (context, range) = (Arc::clone(context), Arc::new(range));
                    return Ok(Self { context, allocated, range });
                }
                Err(RangeError::Cuda(error)) => error,
                // A driver that says something else of its own memory is none to rely on.
                _ => driver.error(CALL, code::INVALID_VALUE, subject()),
            };
        // SAFETY: just allocated, and not used by anybody.
        let _ = unsafe { (driver.api.cuMemFree_v2)(allocated) };
        Err(failed)
    }

    /// Its address, for kernels.
    pub fn addr(&self) -> usize {
        self.range.addr()
    }

    /// The range that the driver's copies reach.
    pub fn range(&self) -> &Arc<DeviceRange> {
        &self.range
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if let Ok(_bound) = self.context.bind() {
            // An error means that CUDA has ended before us, and has taken the memory along.
            // SAFETY: allocated by `aligned`, and freed once, here; mappings of it are dropped
            // before.
            let _ = unsafe { (self.context.driver().api.cuMemFree_v2)(self.allocated) };
        }
    }
}
