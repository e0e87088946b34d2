//! Page-locked host memory, which copies run from and to without the CPU.

use std::ptr;
use std::sync::Arc;

use crate::driver::context::Context;
use crate::driver::error::CudaError;
use crate::memory::shared_memory::SharedMemory;
use engine::port::registration::is_unclosed;

/// One piece of page-locked memory, known to all contexts.
///
/// Making and freeing it may wait for everything on the device, a kernel that spins among it: it is
/// for the start and the end of the transport.
#[derive(Debug)]
pub struct PinnedMemory {
    context: Arc<Context>,
    addr: usize,
    len: usize,
    /// Owner of the pages, if not the driver.
    shared: Option<Arc<SharedMemory>>,
}

impl PinnedMemory {
    /// Allocates `len` bytes. Their content is undefined.
    ///
    /// # Errors
    /// As the driver answers, `CUDA_ERROR_OUT_OF_MEMORY` when there is no more to lock.
    pub fn new(context: &Arc<Context>, len: usize) -> Result<Arc<Self>, CudaError> {
        use cudarc::driver::sys::CU_MEMHOSTALLOC_PORTABLE;
        let driver = context.driver();
        let _bound = context.bind()?;
        let mut addr = ptr::null_mut();
        // SAFETY: a place for the address; the context is bound.
        let status =
            unsafe { (driver.api.cuMemHostAlloc)(&raw mut addr, len, CU_MEMHOSTALLOC_PORTABLE) };
        let subject = || format!("{len} bytes of page-locked memory, {context}");
        driver.check("cuMemHostAlloc", status, subject)?;
        let (context, addr) = (Arc::clone(context), addr as usize);
        Ok(Arc::new(Self { context, addr, len, shared: None }))
    }

    /// Page-locks the first `len` bytes of memory that other processes may have as well.
    ///
    /// # Errors
    /// As the driver answers, `CUDA_ERROR_OUT_OF_MEMORY` when there is no more to lock.
    pub fn register(
        context: &Arc<Context>,
        memory: &Arc<SharedMemory>,
        len: usize,
    ) -> Result<Arc<Self>, CudaError> {
        use cudarc::driver::sys::CU_MEMHOSTREGISTER_PORTABLE;
        const CALL: &str = "cuMemHostRegister_v2";
        let driver = context.driver();
        let (addr, len) = (memory.addr(), len.min(memory.len()));
        let subject = || format!("{len} bytes of shared memory, {context}");
        let (register, _) = driver
            .api
            .cuMemHostRegister_v2
            .zip(driver.api.cuMemHostUnregister)
            .ok_or_else(|| driver.lacks(CALL, subject()))?;
        let _bound = context.bind()?;
        // SAFETY: pages that are mapped as long as the value that is made here holds the memory.
        let status = unsafe { register(addr as *mut _, len, CU_MEMHOSTREGISTER_PORTABLE) };
        driver.check(CALL, status, subject)?;
        let (context, shared) = (Arc::clone(context), Some(Arc::clone(memory)));
        Ok(Arc::new(Self { context, addr, len, shared }))
    }

    /// The context it was allocated in. It is known to all.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Its address. The CPU reads and writes it there, and it can be registered with libfabric.
    pub fn addr(&self) -> usize {
        self.addr
    }

    /// Its length in bytes.
    #[allow(clippy::len_without_is_empty, reason = "none is empty")]
    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        if is_unclosed() {
            // The fabric may still write to it, so the context that it would end with stays.
            std::mem::forget(Arc::clone(&self.context));
            return;
        }
        if self.shared.is_some() {
            let unregister = self.context.driver().api.cuMemHostUnregister;
            if let (Ok(_bound), Some(unregister)) = (self.context.bind(), unregister) {
                // SAFETY: registered by `register`, and taken back once, here; else as below.
                let _ = unsafe { unregister(self.addr as *mut _) };
            }
            return;
        }
        if let Ok(_bound) = self.context.bind() {
            // An error means that CUDA has ended before us, and has taken the memory along.
            // SAFETY: allocated by `new`, and freed once, here. Bounce buffers and copies under way
            // hold it in an `Arc`, so there are none.
            let _ = unsafe { (self.context.driver().api.cuMemFreeHost)(self.addr as *mut _) };
        }
    }
}
