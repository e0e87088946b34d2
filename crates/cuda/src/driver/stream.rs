//! Streams and events of our own.

use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, MutexGuard, PoisonError};

use cudarc::driver::sys::{self, CUevent, CUstream};

use crate::driver::context::{Context, Spare};
use crate::driver::error::{CudaError, code};

/// A private stream: non-blocking, so that what the program does on the legacy stream does not hold
/// it up, a kernel that spins there for ever among it; and of the highest priority.
#[derive(Debug)]
pub struct Stream {
    context: Arc<Context>,
    raw: CUstream,
}

// SAFETY: a handle, which the driver takes from any thread.
unsafe impl Send for Stream {}

impl Stream {
    /// Makes a stream in a context.
    ///
    /// # Errors
    /// As the driver answers.
    pub fn new(context: &Arc<Context>) -> Result<Self, CudaError> {
        let driver = context.driver();
        let _bound = context.bind()?;
        if let Some(Spare(raw)) = spare(context).pop() {
            let stream = Self { context: Arc::clone(context), raw };
            stream.is_done()?;
            return Ok(stream);
        }
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: places for the two numbers; the context is bound.
        let status =
            unsafe { (driver.api.cuCtxGetStreamPriorityRange)(&raw mut least, &raw mut greatest) };
        driver.check("cuCtxGetStreamPriorityRange", status, || context.to_string())?;
        let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        let mut raw = ptr::null_mut();
        // SAFETY: a place for the handle; the context is bound.
        let status =
            unsafe { (driver.api.cuStreamCreateWithPriority)(&raw mut raw, flags, greatest) };
        driver.check("cuStreamCreateWithPriority", status, || context.to_string())?;
        Ok(Self { context: Arc::clone(context), raw })
    }

    /// Its context.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Returns the handle as CUDA's C functions take it.
    pub fn as_ptr(&self) -> *mut c_void {
        self.raw.cast()
    }

    /// The handle. The context must be bound by who passes it to the driver.
    pub(crate) fn raw(&self) -> CUstream {
        self.raw
    }

    /// Whether everything in it is done: [`Stream::is_done`] for who has not bound the context.
    ///
    /// # Errors
    /// As the driver answers, for one with what a kernel or copy has failed of.
    pub fn is_idle(&self) -> Result<bool, CudaError> {
        let _bound = self.context.bind()?;
        self.is_done()
    }

    /// Whether everything in it is done. The context must be bound.
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
    // Each change of it is one call.
    context.spare.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Ok(_bound) = self.context.bind() {
            if self.context.is_own() && matches!(self.is_done(), Ok(true)) {
                return spare(&self.context).push(Spare(self.raw));
            }
            // Returns at once; the driver frees the stream when its work is done. An error means
            // that CUDA has ended before us.
            // SAFETY: made by `new`, and destroyed once, here.
            let _ = unsafe { (self.context.driver().api.cuStreamDestroy_v2)(self.raw) };
        }
    }
}

/// An event without timing: a mark in a stream that can be asked after.
#[derive(Debug)]
pub(crate) struct Event {
    context: Arc<Context>,
    raw: CUevent,
}

// SAFETY: a handle, which the driver takes from any thread.
unsafe impl Send for Event {}

impl Event {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self, CudaError> {
        let driver = context.driver();
        let _bound = context.bind()?;
        let flags = sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING as u32;
        let mut raw = ptr::null_mut();
        // SAFETY: a place for the handle; the context is bound.
        let status = unsafe { (driver.api.cuEventCreate)(&raw mut raw, flags) };
        driver.check("cuEventCreate", status, || context.to_string())?;
        Ok(Self { context: Arc::clone(context), raw })
    }

    /// Marks everything put into the stream so far. The context must be bound.
    #[inline]
    pub(crate) fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        let driver = self.context.driver();
        // SAFETY: both live; the context is bound, by the caller.
        let status = unsafe { (driver.api.cuEventRecord)(self.raw, stream.raw) };
        driver.check("cuEventRecord", status, || self.context.to_string())
    }

    /// Whether what was marked is done. The context must be bound.
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
            // An error means that CUDA has ended before us.
            // SAFETY: made by `new`, and destroyed once, here.
            let _ = unsafe { (self.context.driver().api.cuEventDestroy_v2)(self.raw) };
        }
    }
}
