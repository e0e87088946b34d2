//! Contexts: which one memory belongs to, and binding it on the thread that calls the driver.

use std::fmt;
use std::marker::PhantomData;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{CUcontext, CUdevice, CUlimit, CUstream, CUstreamCaptureMode};

use crate::driver::error::{CudaError, code};
use crate::driver::library::Driver;
use crate::driver::stream::Stream;

/// The number of a device in this process, as `CUDA_VISIBLE_DEVICES` leaves it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ordinal(pub i32);

impl fmt::Display for Ordinal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// A context of the process.
///
/// The primary context of a device is retained, so it stays as long as this value. A context that
/// the program has created is the program's to keep; when it is destroyed early, the driver answers
/// every call on it with an error. One that this layer has made stays until the process ends.
#[derive(Debug)]
pub struct Context {
    driver: &'static Driver,
    raw: CUcontext,
    device: Ordinal,
    origin: Origin,
    /// Streams of a context of our own that nobody has any more, for who needs one next.
    pub(crate) spare: Mutex<Vec<Spare>>,
}

/// A stream in which nothing is under way.
#[derive(Debug)]
pub(crate) struct Spare(pub(crate) CUstream);

// SAFETY: a handle, which the driver takes from any thread.
unsafe impl Send for Spare {}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Origin {
    /// The device's primary context, to be released.
    Primary,
    /// The program has made it.
    Program,
    /// [`Context::own`] has.
    Own,
}

// SAFETY: a handle, which the driver takes from any thread; nothing here depends on which.
unsafe impl Send for Context {}
// SAFETY: the same; what changes in it is under a lock.
unsafe impl Sync for Context {}

impl Context {
    /// The primary context of a device, the one that CUDA's runtime uses. Made if it is not there,
    /// so only for who wants a GPU or has seen memory of that device.
    ///
    /// # Errors
    /// As the driver answers.
    pub fn primary(driver: &'static Driver, device: Ordinal) -> Result<Arc<Self>, CudaError> {
        let number = device_number(driver, device)?;
        let mut raw = ptr::null_mut();
        // SAFETY: a place for the handle.
        let status = unsafe { (driver.api.cuDevicePrimaryCtxRetain)(&raw mut raw, number) };
        driver.check("cuDevicePrimaryCtxRetain", status, || format!("device {device}"))?;
        Ok(Self::new(driver, raw, device, Origin::Primary))
    }

    fn new(driver: &'static Driver, raw: CUcontext, device: Ordinal, origin: Origin) -> Arc<Self> {
        Arc::new(Self { driver, raw, device, origin, spare: Mutex::default() })
    }

    /// The context of our own on a device, which this process has once, whatever needs it. No call
    /// that the program makes in its contexts holds up what is done in this one, and the reverse.
    /// Making it takes memory of the device and some tenths of a second (see `docs/gpu.md`). It is
    /// never destroyed: that would wait for kernels of the program. One that an error has broken is
    /// left, and another one made. This thread has bound afterwards what it had before.
    ///
    /// # Errors
    /// As the driver answers, for one when the device has no memory left for it.
    pub fn own(driver: &'static Driver, device: Ordinal) -> Result<Arc<Self>, CudaError> {
        static OWN: Mutex<Vec<Arc<Context>>> = Mutex::new(Vec::new());
        // Each change of it is one call.
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
        // SAFETY: a place for the handle. No flags: it waits as the driver thinks best.
        let status = unsafe { create(&raw mut raw, 0, number) };
        let made = driver.check(CALL, status, subject);
        if made.is_ok() {
            if let Some(set_limit) = driver.api.cuCtxSetLimit {
                // Where it is refused there is a stack that nobody uses.
                // SAFETY: about the context that was made, which is bound on this thread and in
                // which nothing runs.
                let _ = unsafe { set_limit(CUlimit::CU_LIMIT_STACK_SIZE, 0) };
            }
            let mut popped = ptr::null_mut();
            // SAFETY: a place for the handle; making a context has bound it on this thread.
            let _ = unsafe { (driver.api.cuCtxPopCurrent_v2)(&raw mut popped) };
        }
        if let Some(mode) = capture_mode.filter(|mode| *mode != RELAXED) {
            let _ = exchange_capture_mode(driver, mode);
        }
        made.map(|()| Self::new(driver, raw, device, Origin::Own))
    }

    /// Whether it is [`Self::own`].
    pub fn is_own(&self) -> bool {
        self.origin == Origin::Own
    }

    /// The context that memory belongs to. `raw` is what the driver says of the memory: null for
    /// memory that belongs to none (VMM mappings, memory pools). Any context of the device serves
    /// that: the one that this thread has bound, so that none is made for it, else the primary one.
    pub(crate) fn owner(
        driver: &'static Driver,
        raw: CUcontext,
        device: Ordinal,
    ) -> Result<Arc<Self>, CudaError> {
        let raw = if raw.is_null() { bound_on(driver, device) } else { raw };
        // Makes the primary context if there is none, as in programs with contexts of their own.
        if raw.is_null() || primary_is_active(driver, device)? {
            let primary = Self::primary(driver, device)?;
            if raw.is_null() || raw == primary.raw {
                return Ok(primary);
            }
        }
        Ok(Self::new(driver, raw, device, Origin::Program))
    }

    /// The context that is bound on this thread. None when none is.
    ///
    /// # Errors
    /// As the driver answers.
    pub fn current(driver: &'static Driver) -> Result<Option<Arc<Self>>, CudaError> {
        let (mut raw, mut number) = (ptr::null_mut(), 0);
        // SAFETY: a place for the handle. A process that has not started CUDA has none.
        let status = unsafe { (driver.api.cuCtxGetCurrent)(&raw mut raw) };
        if status == code::NOT_INITIALIZED || raw.is_null() {
            return Ok(None);
        }
        driver.check("cuCtxGetCurrent", status, || String::from("this thread"))?;
        // SAFETY: a place for the number.
        let status = unsafe { (driver.api.cuCtxGetDevice)(&raw mut number) };
        driver.check("cuCtxGetDevice", status, || String::from("this thread's context"))?;
        Self::owner(driver, raw, Ordinal(number)).map(Some)
    }

    /// The driver.
    pub fn driver(&self) -> &'static Driver {
        self.driver
    }

    /// The device that it is on.
    pub fn device(&self) -> Ordinal {
        self.device
    }

    /// Whether two values are one context.
    pub fn is(&self, other: &Self) -> bool {
        self.raw == other.raw && ptr::eq(self.driver, other.driver)
    }

    pub(crate) fn has_device_of(&self, other: &Self) -> bool {
        self.device == other.device && ptr::eq(self.driver, other.driver)
    }

    /// Binds it on this thread until the result is dropped. Where it is bound already, as on
    /// NVSHMEM's proxy thread, it stays as it is.
    ///
    /// As long as it is bound, this thread's calls do not count as disturbing a graph that the
    /// program captures, on this or another thread. They touch nothing of the program's streams;
    /// but CUDA cannot know that, would refuse them, and would spoil the capture.
    ///
    /// # Errors
    /// As the driver answers, for one when the context was destroyed.
    #[inline]
    pub fn bind(&self) -> Result<Bound<'_>, CudaError> {
        let mut current = ptr::null_mut();
        // SAFETY: a place for the handle.
        let status = unsafe { (self.driver.api.cuCtxGetCurrent)(&raw mut current) };
        self.driver.check("cuCtxGetCurrent", status, || self.to_string())?;
        let pushed = current != self.raw;
        if pushed {
            // SAFETY: a handle from the driver. If it is of a destroyed context the call fails.
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
    // SAFETY: a place for the handle.
    let status = unsafe { (driver.api.cuCtxGetCurrent)(&raw mut raw) };
    if status != code::SUCCESS || raw.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: a place for the number.
    let status = unsafe { (driver.api.cuCtxGetDevice)(&raw mut number) };
    let is_on = status == code::SUCCESS && device_number(driver, device) == Ok(number);
    if is_on { raw } else { ptr::null_mut() }
}

fn primary_is_active(driver: &Driver, device: Ordinal) -> Result<bool, CudaError> {
    let number = device_number(driver, device)?;
    let (mut flags, mut active) = (0, 0);
    // SAFETY: places for the two numbers.
    let status =
        unsafe { (driver.api.cuDevicePrimaryCtxGetState)(number, &raw mut flags, &raw mut active) };
    driver.check("cuDevicePrimaryCtxGetState", status, || format!("device {device}"))?;
    Ok(active != 0)
}

/// `CU_STREAM_CAPTURE_MODE_RELAXED`: this thread's calls do not disturb captures.
const RELAXED: u32 = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as u32;

/// Sets this thread's mode and returns the one before. None when the driver did not take it, which
/// then can refuse a call while a graph is captured, with its reason.
#[inline]
fn exchange_capture_mode(driver: &Driver, mut mode: u32) -> Option<u32> {
    // SAFETY: a place of the enum's size, for a number in and one out.
    let status = unsafe { (driver.api.cuThreadExchangeStreamCaptureMode)((&raw mut mode).cast()) };
    (status == code::SUCCESS).then_some(mode)
}

pub(crate) fn device_number(driver: &Driver, device: Ordinal) -> Result<CUdevice, CudaError> {
    let mut number = 0;
    // SAFETY: a place for the number; any ordinal is answered.
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
            // An error means that CUDA has ended before us; then there is nothing to give back.
            if let Ok(number) = device_number(self.driver, self.device) {
                // SAFETY: retained once, by `primary`, and released once, here.
                let _ = unsafe { (self.driver.api.cuDevicePrimaryCtxRelease_v2)(number) };
            }
        }
    }
}

/// A context bound on this thread. Dropping it brings back what was bound before.
#[must_use = "the context is bound as long as this lives"]
#[derive(Debug)]
pub struct Bound<'a> {
    context: &'a Context,
    /// Whether it has to be taken off the thread's stack.
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
            // An error means that the program has emptied the stack meanwhile, or CUDA has ended.
            // SAFETY: a place for the handle. The type stays on its thread, so the stack is the one
            // that was pushed on.
            let _ = unsafe { (self.context.driver.api.cuCtxPopCurrent_v2)(&raw mut popped) };
        }
    }
}
