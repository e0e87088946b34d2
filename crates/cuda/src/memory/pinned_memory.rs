use std::ptr;
use std::sync::Arc;

use crate::driver::context::Context;
use crate::driver::error::CudaError;
use crate::memory::shared_memory::SharedMemory;
use engine::port::registration::is_unclosed;

/// Page-locked memory, known to all contexts.
#[derive(Debug)]
pub struct PinnedMemory {
    context: Arc<Context>,
    addr: usize,
    len: usize,
    /// Memory that has the pages, if not the driver.
    shared: Option<Arc<SharedMemory>>,
}

impl PinnedMemory {
    /// Allocates `len` bytes. Their content is undefined.
    ///
    /// # Errors
    /// The driver's; `CUDA_ERROR_OUT_OF_MEMORY` if no more memory can be locked.
    pub fn new(context: &Arc<Context>, len: usize) -> Result<Arc<Self>, CudaError> {
        use cudarc::driver::sys::CU_MEMHOSTALLOC_PORTABLE;
        let driver = context.driver();
        let _bound = context.bind()?;
        let mut addr = ptr::null_mut();
        // SAFETY: a pointer to the address; the context is bound.
        let status =
            unsafe { (driver.api.cuMemHostAlloc)(&raw mut addr, len, CU_MEMHOSTALLOC_PORTABLE) };
        let subject = || format!("{len} bytes of page-locked memory, {context}");
        driver.check("cuMemHostAlloc", status, subject)?;
        let (context, addr) = (Arc::clone(context), addr as usize);
        Ok(Arc::new(Self { context, addr, len, shared: None }))
    }

    /// Page-locks the first `len` bytes of memory that other processes may also have mapped.
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
        let calls = driver.api.cuMemHostRegister_v2.zip(driver.api.cuMemHostUnregister);
        let (register, _) = calls.ok_or_else(|| driver.lacks(CALL, subject()))?;
        let _bound = context.bind()?;
        // SAFETY: the pages are mapped as long as the returned value holds `memory`.
        let status = unsafe { register(addr as *mut _, len, CU_MEMHOSTREGISTER_PORTABLE) };
        driver.check(CALL, status, subject)?;
        let (context, shared) = (Arc::clone(context), Some(Arc::clone(memory)));
        Ok(Arc::new(Self { context, addr, len, shared }))
    }

    /// Returns the context in which it was allocated. All contexts know the memory.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Returns its address, at which the CPU and libfabric reach it.
    pub fn addr(&self) -> usize {
        self.addr
    }

    #[allow(clippy::len_without_is_empty, reason = "none is empty")]
    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        if is_unclosed() {
            // The fabric may still write to it, so the context, whose end would free it, is leaked.
            std::mem::forget(Arc::clone(&self.context));
            return;
        }
        if self.shared.is_some() {
            let unregister = self.context.driver().api.cuMemHostUnregister;
            if let (Ok(_bound), Some(unregister)) = (self.context.bind(), unregister) {
                // SAFETY: registered by `register`, and unregistered once, here; else as below.
                let _ = unsafe { unregister(self.addr as *mut _) };
            }
            return;
        }
        if let Ok(_bound) = self.context.bind() {
            // After an error CUDA has shut down, and has freed the memory.
            // SAFETY: allocated by `new`, and freed once, here. Bounce buffers and copies in flight
            // hold it in an `Arc`, so there are none.
            let _ = unsafe { (self.context.driver().api.cuMemFreeHost)(self.addr as *mut _) };
        }
    }
}
