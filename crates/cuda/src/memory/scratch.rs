//! A little device memory of our own: to try ways of reaching device memory on, and for NICs to
//! read.

use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;

use crate::driver::context::Context;
use crate::driver::error::{CudaError, code};
use crate::memory::range::RangeError;
use crate::memory::range::{DeviceRange, Memory};

/// What GPUs map memory in.
pub(crate) const GPU_PAGE: usize = 64 << 10;

/// One GPU page of device memory. Freeing it may wait for everything on the device.
#[derive(Debug)]
pub struct Scratch {
    context: Arc<Context>,
    allocated: CUdeviceptr,
    range: Arc<DeviceRange>,
}

impl Scratch {
    /// Allocates it, which may wait for everything on the device.
    ///
    /// # Errors
    /// As the driver answers.
    pub fn new(context: &Arc<Context>) -> Result<Self, CudaError> {
        const CALL: &str = "cuMemAlloc_v2";
        let driver = context.driver();
        let _bound = context.bind()?;
        let mut allocated = 0;
        // SAFETY: a place for the address; the context is bound. Twice a page has a whole one in
        // it.
        let status = unsafe { (driver.api.cuMemAlloc_v2)(&raw mut allocated, 2 * GPU_PAGE) };
        let subject = || format!("{} bytes of {context}", 2 * GPU_PAGE);
        driver.check(CALL, status, subject)?;
        let addr = (allocated as usize).next_multiple_of(GPU_PAGE);
        let free = |error| {
            // SAFETY: just allocated, and not used by anybody.
            let _ = unsafe { (driver.api.cuMemFree_v2)(allocated) };
            error
        };
        match Memory::examine(driver, addr, GPU_PAGE) {
            Ok(Memory::Device(range)) => {
                Ok(Self { context: Arc::clone(context), allocated, range: Arc::new(range) })
            }
            Err(RangeError::Cuda(error)) => Err(free(error)),
            // A driver that says something else of its own memory is none to rely on.
            _ => Err(free(driver.error(CALL, code::INVALID_VALUE, subject()))),
        }
    }

    /// The page.
    pub fn range(&self) -> &Arc<DeviceRange> {
        &self.range
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Ok(_bound) = self.context.bind() {
            // An error means that CUDA has ended before us, and has taken the memory along.
            // SAFETY: allocated by `new`, and freed once, here; mappings of it are dropped before.
            let _ = unsafe { (self.context.driver().api.cuMemFree_v2)(self.allocated) };
        }
    }
}
