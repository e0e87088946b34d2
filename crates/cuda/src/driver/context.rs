//! Contexts: the one that owns memory, and binding it to the thread that calls the driver.

use std::fmt;
use std::marker::PhantomData;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{CUcontext, CUdevice, CUlimit, CUstream, CUstreamCaptureMode};

use crate::driver::error::{CudaError, code};
use crate::driver::library::Driver;
use crate::driver::stream::Stream;

/// Number of a device in this process, after `CUDA_VISIBLE_DEVICES`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ordinal(pub i32);

impl fmt::Display for Ordinal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// A context of the process.
///
/// A device's primary context is retained as long as this value lives. The program owns the
/// contexts that it has created; if it destroys one early, every driver call on it fails. Contexts
/// that this layer has created live until the process ends.
#[derive(Debug)]
pub struct Context {
    driver: &'static Driver,
    raw: CUcontext,
    device: Ordinal,
    origin: Origin,
    /// Unused streams of a context of our own, for the next [`Stream::new`].
    pub(crate) spare: Mutex<Vec<Spare>>,
}

#[derive(Debug)]
pub(crate) struct Spare(pub(crate) CUstream);

// SAFETY: a handle, which any thread may pass to the driver.
unsafe impl Send for Spare {}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Origin {
    /// The device's primary context, which has to be released.
    Primary,
    /// Created by the program.
    Program,
    /// Created by [`Context::own`].
    Own,
}

// SAFETY: a handle, which any thread may pass to the driver.
unsafe impl Send for Context {}
// SAFETY: the same; its mutable state is behind a lock.
unsafe impl Sync for Context {}

impl Context {
    /// Retains the primary context of a device, which CUDA's runtime uses. Creates it if necessary,
    /// so call this only for a device that the program uses.
    pub fn primary(driver: &'static Driver, device: Ordinal) -> Result<Arc<Self>, CudaError> {
        let number = device_number(driver, device)?;
        let mut raw = ptr::null_mut();
        // SAFETY: a pointer to the handle.
        let status = unsafe { (driver.api.cuDevicePrimaryCtxRetain)(&raw mut raw, number) };
        driver.check("cuDevicePrimaryCtxRetain", status, || format!("device {device}"))?;
        Ok(Self::new(driver, raw, device, Origin::Primary))
    }

    fn new(driver: &'static Driver, raw: CUcontext, device: Ordinal, origin: Origin) -> Arc<Self> {
        Arc::new(Self { driver, raw, device, origin, spare: Mutex::default() })
    }

    /// Returns the transport's own context on a device, one per process, created at the first call.
    /// No call of the program in its contexts blocks work in this one, or the reverse. Creating it
    /// takes device memory and some tenths of a second (see `docs/gpu.md`). It is never destroyed,
    /// which would wait for kernels of the program; if an error has broken it, another one replaces
    /// it. The thread's current context does not change.
    pub fn own(driver: &'static Driver, device: Ordinal) -> Result<Arc<Self>, CudaError> {
        static OWN: Mutex<Vec<Arc<Context>>> = Mutex::new(Vec::new());
        // Also if poisoned: each change is one call.
        let mut own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
        let is_it = |of: &&Arc<Self>| of.device == device && ptr::eq(of.driver, driver);
        if let Some(found) = own.iter().rev().find(is_it).filter(|found| Stream::new(found).is_ok())
        {
            return Ok(Arc::clone(found));
        }
        let made = Self::create(driver, device)?;
        own.push(Arc::clone(&made));
        Ok(made)
    }

    fn create(driver: &'static Driver, device: Ordinal) -> Result<Arc<Self>, CudaError> {
        const CALL: &str = "cuCtxCreate_v2";
        let subject = || format!("device {device}");
        let create = driver.api.cuCtxCreate_v2.ok_or_else(|| driver.lacks(CALL, subject()))?;
        let number = device_number(driver, device)?;
        let capture_mode = exchange_capture_mode(driver, RELAXED);
        let mut raw = ptr::null_mut();
        // SAFETY: a pointer to the handle. Without flags the driver chooses how to wait.
        let status = unsafe { create(&raw mut raw, 0, number) };
        let made = driver.check(CALL, status, subject);
        if made.is_ok() {
            if let Some(set_limit) = driver.api.cuCtxSetLimit {
                // If the call is refused, an unused stack remains.
                // SAFETY: sets a limit of the new context, which is bound on this thread and idle.
                let _ = unsafe { set_limit(CUlimit::CU_LIMIT_STACK_SIZE, 0) };
            }
            let mut popped = ptr::null_mut();
            // SAFETY: a pointer to the handle; creating a context has bound it on this thread.
            let _ = unsafe { (driver.api.cuCtxPopCurrent_v2)(&raw mut popped) };
        }
        if let Some(mode) = capture_mode.filter(|mode| *mode != RELAXED) {
            let _ = exchange_capture_mode(driver, mode);
        }
        made.map(|()| Self::new(driver, raw, device, Origin::Own))
    }

    pub fn is_own(&self) -> bool {
        self.origin == Origin::Own
    }

    /// Returns the context for memory whose owner is `raw`: null for memory without owner (VMM
    /// mappings, memory pools). Any context of the device serves such memory: the one that is bound
    /// on this thread, so that none is created, else the primary one.
    pub(crate) fn owner(
        driver: &'static Driver,
        raw: CUcontext,
        device: Ordinal,
    ) -> Result<Arc<Self>, CudaError> {
        let raw = if raw.is_null() { bound_on(driver, device) } else { raw };
        // Creates the primary context if there is none, as in programs with contexts of their own.
        if raw.is_null() || primary_is_active(driver, device)? {
            let primary = Self::primary(driver, device)?;
            if raw.is_null() || raw == primary.raw {
                return Ok(primary);
            }
        }
        Ok(Self::new(driver, raw, device, Origin::Program))
    }

    pub fn current(driver: &'static Driver) -> Result<Option<Arc<Self>>, CudaError> {
        let (mut raw, mut number) = (ptr::null_mut(), 0);
        // SAFETY: a pointer to the handle. A process that has not started CUDA has none.
        unsafe { (driver.api.cuCtxGetCurrent)(&raw mut raw) };
        if raw.is_null() {
            return Ok(None);
        }
        // SAFETY: a pointer to the number.
        let status = unsafe { (driver.api.cuCtxGetDevice)(&raw mut number) };
        driver.check("cuCtxGetDevice", status, || String::from("this thread's context"))?;
        Self::owner(driver, raw, Ordinal(number)).map(Some)
    }

    pub fn driver(&self) -> &'static Driver {
        self.driver
    }

    pub fn device(&self) -> Ordinal {
        self.device
    }

    pub fn is(&self, other: &Self) -> bool {
        self.raw == other.raw && ptr::eq(self.driver, other.driver)
    }

    pub(crate) fn has_device_of(&self, other: &Self) -> bool {
        self.device == other.device && ptr::eq(self.driver, other.driver)
    }

    /// Binds the context on this thread until the result is dropped, if it is not bound already, as
    /// on NVSHMEM's proxy thread.
    ///
    /// Meanwhile this thread's calls neither fail nor invalidate the capture while the program
    /// captures a graph on any thread: CUDA cannot know that they do not touch its streams.
    #[inline]
    pub fn bind(&self) -> Result<Bound<'_>, CudaError> {
        let mut current = ptr::null_mut();
        // SAFETY: a pointer to the handle.
        let status = unsafe { (self.driver.api.cuCtxGetCurrent)(&raw mut current) };
        self.driver.check("cuCtxGetCurrent", status, || self.to_string())?;
        let pushed = current != self.raw;
        if pushed {
            // SAFETY: a handle from the driver. The call fails if the context was destroyed.
            let status = unsafe { (self.driver.api.cuCtxPushCurrent_v2)(self.raw) };
            self.driver.check("cuCtxPushCurrent_v2", status, || self.to_string())?;
        }
        let capture_mode = exchange_capture_mode(self.driver, RELAXED);
        Ok(Bound { context: self, pushed, capture_mode, this_thread: PhantomData })
    }
}

/// Returns the context bound on this thread if it is of the device, else null.
fn bound_on(driver: &Driver, device: Ordinal) -> CUcontext {
    let (mut raw, mut number) = (ptr::null_mut(), -1);
    // Without a context the calls leave null, and no number of a device.
    // SAFETY: pointers to the handle and the number.
    unsafe {
        (driver.api.cuCtxGetCurrent)(&raw mut raw);
        (driver.api.cuCtxGetDevice)(&raw mut number);
    }
    if device_number(driver, device) == Ok(number) { raw } else { ptr::null_mut() }
}

fn primary_is_active(driver: &Driver, device: Ordinal) -> Result<bool, CudaError> {
    let number = device_number(driver, device)?;
    let (mut flags, mut active) = (0, 0);
    // SAFETY: pointers to two numbers.
    let status =
        unsafe { (driver.api.cuDevicePrimaryCtxGetState)(number, &raw mut flags, &raw mut active) };
    driver.check("cuDevicePrimaryCtxGetState", status, || format!("device {device}"))?;
    Ok(active != 0)
}

/// `CU_STREAM_CAPTURE_MODE_RELAXED`: this thread's calls do not invalidate captures.
const RELAXED: u32 = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as u32;

/// Sets this thread's capture mode and returns the previous one. None if the driver refuses; it may
/// then refuse calls while a graph is captured.
#[inline]
fn exchange_capture_mode(driver: &Driver, mut mode: u32) -> Option<u32> {
    // SAFETY: a pointer to a number of the enum's size, read and written.
    let status = unsafe { (driver.api.cuThreadExchangeStreamCaptureMode)((&raw mut mode).cast()) };
    (status == code::SUCCESS).then_some(mode)
}

pub(crate) fn device_number(driver: &Driver, device: Ordinal) -> Result<CUdevice, CudaError> {
    let mut number = 0;
    // SAFETY: a pointer to the number; any ordinal is answered.
    let status = unsafe { (driver.api.cuDeviceGet)(&raw mut number, device.0) };
    driver.check("cuDeviceGet", status, || format!("device {device}"))?;
    Ok(number)
}

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.origin {
            Origin::Primary => "primary context",
            Origin::Program => "a context",
            Origin::Own => "the transport's context",
        };
        write!(f, "{kind} of device {}", self.device)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.origin == Origin::Primary {
            // After an error CUDA has shut down, and nothing is left to release.
            if let Ok(number) = device_number(self.driver, self.device) {
                // SAFETY: retained once, by `primary`, and released once, here.
                let _ = unsafe { (self.driver.api.cuDevicePrimaryCtxRelease_v2)(number) };
            }
        }
    }
}

/// A context bound on this thread. Dropping it restores the previous binding.
#[must_use = "the context is bound as long as this lives"]
#[derive(Debug)]
pub struct Bound<'a> {
    context: &'a Context,
    /// Whether it has to be popped off the thread's context stack.
    pushed: bool,
    capture_mode: Option<u32>,
    /// The binding belongs to the thread, so this value stays on it.
    this_thread: PhantomData<*const ()>,
}

impl Drop for Bound<'_> {
    fn drop(&mut self) {
        if let Some(mode) = self.capture_mode.filter(|mode| *mode != RELAXED) {
            let _ = exchange_capture_mode(self.context.driver, mode);
        }
        if self.pushed {
            let mut popped = ptr::null_mut();
            // Fails if the program has emptied the stack meanwhile, or CUDA has shut down.
            // SAFETY: a pointer to the handle. The type is not `Send`, so the stack is the one that
            // it was pushed on.
            let _ = unsafe { (self.context.driver.api.cuCtxPopCurrent_v2)(&raw mut popped) };
        }
    }
}
