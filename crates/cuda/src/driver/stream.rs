use std::ffi::c_void;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;
use std::{hint, ptr, thread};

use cudarc::driver::sys::{self, CUevent, CUstream};

use crate::driver::context::{Context, Spare};
use crate::driver::error::{CudaError, code};
use engine::thread_wait::Wait;

/// A private stream of the highest priority. It is non-blocking: work of the program on the legacy
/// stream, for example a kernel that spins there forever, does not delay it.
#[derive(Debug)]
pub struct Stream {
    context: Arc<Context>,
    raw: CUstream,
}

// SAFETY: a handle, which any thread may pass to the driver.
unsafe impl Send for Stream {}
// SAFETY: the same, and it has no mutable state.
unsafe impl Sync for Stream {}

impl Stream {
    pub fn new(context: &Arc<Context>) -> Result<Self, CudaError> {
        let driver = context.driver();
        let _bound = context.bind()?;
        if let Some(Spare(raw)) = spare(context).pop() {
            let stream = Self { context: Arc::clone(context), raw };
            stream.is_done()?;
            return Ok(stream);
        }
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: pointers to two numbers; the context is bound.
        let status =
            unsafe { (driver.api.cuCtxGetStreamPriorityRange)(&raw mut least, &raw mut greatest) };
        driver.check("cuCtxGetStreamPriorityRange", status, || context.to_string())?;
        let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        let mut raw = ptr::null_mut();
        // SAFETY: a pointer to the handle; the context is bound.
        let status =
            unsafe { (driver.api.cuStreamCreateWithPriority)(&raw mut raw, flags, greatest) };
        driver.check("cuStreamCreateWithPriority", status, || context.to_string())?;
        Ok(Self { context: Arc::clone(context), raw })
    }

    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Returns the handle as CUDA's C functions take it.
    pub fn as_ptr(&self) -> *mut c_void {
        self.raw.cast()
    }

    /// Returns the handle. The context must be bound when it is passed to the driver.
    pub(crate) fn raw(&self) -> CUstream {
        self.raw
    }

    /// Binds the context, and returns true if all work in the stream is done.
    ///
    /// # Errors
    /// The driver's, also that of a failed kernel or copy.
    pub fn is_idle(&self) -> Result<bool, CudaError> {
        let _bound = self.context.bind()?;
        self.is_done()
    }

    /// Returns true if all work in the stream is done. The context must be bound.
    pub(crate) fn is_done(&self) -> Result<bool, CudaError> {
        let driver = self.context.driver();
        // SAFETY: the stream lives; the context is bound, by the caller.
        let status = unsafe { (driver.api.cuStreamQuery)(self.raw) };
        if status == code::NOT_READY {
            return Ok(false);
        }
        driver.check("cuStreamQuery", status, || self.context.to_string())?;
        Ok(true)
    }
}

fn spare(context: &Context) -> MutexGuard<'_, Vec<Spare>> {
    // Also if poisoned: each change is one call.
    context.spare.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Ok(_bound) = self.context.bind() {
            if self.context.is_own() && matches!(self.is_done(), Ok(true)) {
                return spare(&self.context).push(Spare(self.raw));
            }
            // Returns at once; the driver frees the stream when its work is done. After an error
            // CUDA has shut down.
            // SAFETY: created by `new`, and destroyed once, here.
            let _ = unsafe { (self.context.driver().api.cuStreamDestroy_v2)(self.raw) };
        }
    }
}

/// An event without timing: a point in a stream whose completion can be polled.
#[derive(Debug)]
pub(crate) struct Event {
    context: Arc<Context>,
    raw: CUevent,
}

// SAFETY: a handle, which any thread may pass to the driver.
unsafe impl Send for Event {}

impl Event {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self, CudaError> {
        let driver = context.driver();
        let _bound = context.bind()?;
        let flags = sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING as u32;
        let mut raw = ptr::null_mut();
        // SAFETY: a pointer to the handle; the context is bound.
        let status = unsafe { (driver.api.cuEventCreate)(&raw mut raw, flags) };
        driver.check("cuEventCreate", status, || context.to_string())?;
        Ok(Self { context: Arc::clone(context), raw })
    }

    /// Records the event after all work submitted to the stream so far. The context must be bound.
    #[inline]
    pub(crate) fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        let driver = self.context.driver();
        // SAFETY: both live; the context is bound, by the caller.
        let status = unsafe { (driver.api.cuEventRecord)(self.raw, stream.raw) };
        driver.check("cuEventRecord", status, || self.context.to_string())
    }

    /// Returns true if all work before the event is done. The context must be bound.
    #[inline]
    pub(crate) fn is_done(&self) -> Result<bool, CudaError> {
        let driver = self.context.driver();
        // SAFETY: the event lives; the context is bound, by the caller.
        let status = unsafe { (driver.api.cuEventQuery)(self.raw) };
        if status == code::NOT_READY {
            return Ok(false);
        }
        driver.check("cuEventQuery", status, || self.context.to_string())?;
        Ok(true)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(_bound) = self.context.bind() {
            // After an error CUDA has shut down.
            // SAFETY: created by `new`, and destroyed once, here.
            let _ = unsafe { (self.context.driver().api.cuEventDestroy_v2)(self.raw) };
        }
    }
}

/// Waits until `is_done` returns true; false if it has not when `patience` is over. Yields, unless
/// that comes at once.
pub(crate) fn wait_for(patience: Duration, mut is_done: impl FnMut() -> bool) -> bool {
    const SPINS: u32 = 256;
    for _ in 0..SPINS {
        if is_done() {
            return true;
        }
        hint::spin_loop();
    }
    // Time in which this process was stopped does not count.
    let mut wait = Wait::new();
    while !is_done() {
        if wait.left_of(patience).is_none() {
            return false;
        }
        thread::yield_now();
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_ends() {
        assert!(!wait_for(Duration::from_millis(1), || false));
    }
}
