//! A kernel that stays on the device until it is told to end.

use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::driver::context::Context;
use crate::driver::error::CudaError;
use crate::driver::module::{Kernel, Module};
use crate::driver::stream::{Stream, wait_for};
use crate::memory::pinned_memory::PinnedMemory;

/// Sets the second word when it starts, and ends when the first one is set.
const KERNEL: &CStr = c".version 7.0
.target sm_70
.address_size 64
.visible .entry nvshmem_libfabric_wait(.param .u64 words)
{
    .reg .pred %zero;
    .reg .u32 %seen, %one;
    .reg .u64 %at;
    ld.param.u64 %at, [words];
    mov.u32 %one, 1;
    st.volatile.u32 [%at+4], %one;
again:
    ld.volatile.u32 %seen, [%at];
    setp.eq.u32 %zero, %seen, 0;
    @%zero bra again;
    ret;
}
";

/// One thread of the device, on a stream that waits for no other. It ends when this is dropped.
#[derive(Debug)]
pub struct WaitingKernel {
    stream: Stream,
    kernel: Kernel,
    words: Arc<PinnedMemory>,
    patience: Duration,
}

impl WaitingKernel {
    /// Starts it, with the first two words of some memory.
    ///
    /// # Errors
    /// The driver's reason, or that it has not started in time.
    pub fn start(
        context: &Arc<Context>,
        words: Arc<PinnedMemory>,
        patience: Duration,
    ) -> Result<Self, String> {
        let text = |error: CudaError| error.to_string();
        // SAFETY: PTX with its end, for which the driver has a compiler.
        let module = unsafe { Module::load(context, KERNEL.to_bytes_with_nul()) }.map_err(text)?;
        let kernel = module.kernel(c"nvshmem_libfabric_wait").map_err(text)?;
        let stream = Stream::new(context).map_err(text)?;
        let new = Self { stream, kernel, words, patience };
        new.word(0).store(0, Ordering::Relaxed);
        new.word(1).store(0, Ordering::Release);
        let argument = new.words.addr() as u64;
        // SAFETY: the kernel takes an address of page-locked memory, kept until it has ended.
        unsafe { new.kernel.launch(&new.stream, 1, 1, argument) }.map_err(text)?;
        match wait_for(patience, || new.word(1).load(Ordering::Acquire) != 0) {
            true => Ok(new),
            false => Err(format!("a kernel did not start in {patience:?}")),
        }
    }

    /// Whether it has ended, though nobody has told it to.
    pub fn has_ended(&self) -> Result<bool, CudaError> {
        self.stream.is_idle()
    }

    fn word(&self, index: usize) -> &AtomicU32 {
        let addr = self.words.addr() + index * size_of::<u32>();
        // SAFETY: page-locked memory of a page, which lives as long; uses of words are atomic.
        unsafe { AtomicU32::from_ptr(addr as *mut u32) }
    }
}

impl Drop for WaitingKernel {
    fn drop(&mut self) {
        self.word(0).store(1, Ordering::Release);
        wait_for(self.patience, || self.stream.is_idle() != Ok(false));
    }
}
