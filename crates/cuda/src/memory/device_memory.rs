//! Device memory of our own: for data that kernels change fast or NICs read, and for trials.

use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;

use crate::driver::context::Context;
use crate::driver::error::{CudaError, code};
use crate::memory::heap::allocate;
use crate::memory::range::{DeviceRange, Memory, RangeError};

/// Granularity in bytes in which GPUs map memory.
pub(crate) const GPU_PAGE: usize = 64 << 10;

/// An allocation of device memory, which the CPU cannot access.
#[derive(Debug)]
pub struct DeviceMemory {
    context: Arc<Context>,
    allocated: CUdeviceptr,
    range: Arc<DeviceRange>,
}

impl DeviceMemory {
    /// Allocates `len` bytes. Their content is undefined.
    pub fn new(context: &Arc<Context>, len: usize) -> Result<Self, CudaError> {
        Self::aligned(context, len, 1)
    }

    pub fn page(context: &Arc<Context>) -> Result<Self, CudaError> {
        Self::aligned(context, GPU_PAGE, GPU_PAGE)
    }

    fn aligned(context: &Arc<Context>, len: usize, align: usize) -> Result<Self, CudaError> {
        let driver = context.driver();
        let _bound = context.bind()?;
        // Enough for `len` bytes at an aligned address.
        let whole = len.saturating_add(if align > 1 { align } else { 0 });
        let subject = || format!("{whole} bytes, {context}");
        let allocated = allocate(context, whole)?;
        let failed =
            match Memory::examine(driver, (allocated as usize).next_multiple_of(align), len) {
                Ok(Memory::Device(range)) => {
                    let (context, range) = (Arc::clone(context), Arc::new(range));
                    return Ok(Self { context, allocated, range });
                }
                Err(RangeError::Cuda(error)) => error,
                // A driver that describes its own memory otherwise is not to be relied on.
                _ => driver.error("cuMemAlloc_v2", code::INVALID_VALUE, subject()),
            };
        // SAFETY: just allocated, and not used by anybody.
        let _ = unsafe { (driver.api.cuMemFree_v2)(allocated) };
        Err(failed)
    }

    pub fn addr(&self) -> usize {
        self.range.addr()
    }

    pub fn range(&self) -> &Arc<DeviceRange> {
        &self.range
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if let Ok(_bound) = self.context.bind() {
            // After an error CUDA has shut down, and has freed the memory.
            // SAFETY: allocated by `aligned`, and freed once, here; mappings of it are dropped
            // before.
            let _ = unsafe { (self.context.driver().api.cuMemFree_v2)(self.allocated) };
        }
    }
}
