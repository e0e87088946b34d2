//! Host functions in streams of the program.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::driver::error::CudaError;
use crate::driver::library::Driver;

/// What runs in a stream.
type Function = Box<dyn FnOnce() + Send>;

/// Runs a function, which makes no calls of CUDA, when what is in the stream by now is done; what
/// comes later waits for its end. It is not run in a context that has failed.
///
/// # Errors
/// As the driver answers; a stream that is captured, as a graph would run the function again.
///
/// # Safety
/// The stream is one of the context that is current on this thread, or null for its default stream.
pub unsafe fn run_in_stream(
    driver: &'static Driver,
    stream: *mut c_void,
    run: Function,
) -> Result<(), CudaError> {
    const CALL: &str = "cuLaunchHostFunc";
    let subject = || format!("stream {stream:p}");
    let launch = driver.api.cuLaunchHostFunc.ok_or_else(|| driver.lacks(CALL, subject()))?;
    let captured = driver.api.cuStreamIsCapturing;
    let is_captured = captured.ok_or_else(|| driver.lacks("cuStreamIsCapturing", subject()))?;
    // A number: a driver may know more than the header.
    let mut status = 0_u32;
    // SAFETY: a place for the number, which has the size of the enum; the caller's promise.
    let answered = unsafe { is_captured(stream.cast(), (&raw mut status).cast()) };
    driver.check("cuStreamIsCapturing", answered, subject)?;
    if status != 0 {
        return Err(driver.lacks(CALL, format!("{} while it is captured", subject())));
    }
    let run: *mut Function = Box::into_raw(Box::new(run));
    // SAFETY: the stream by the caller's promise; the function has its own argument, once.
    let launched = unsafe { launch(stream.cast(), Some(call), run.cast()) };
    let launched = driver.check(CALL, launched, subject);
    if launched.is_err() {
        // SAFETY: made above; the driver has not taken it.
        drop(unsafe { Box::from_raw(run) });
    }
    launched
}

/// Runs what [`run_in_stream`] has handed over.
unsafe extern "C" fn call(run: *mut c_void) {
    // SAFETY: made there, and given to one call of this.
    let run = unsafe { Box::from_raw(run.cast::<Function>()) };
    // Nothing unwinds into the driver.
    let _ = catch_unwind(AssertUnwindSafe(run));
}
