//! Contexts, and which one a thread has bound.

use std::cell::RefCell;
use std::ffi::{c_int, c_uint};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use crate::device::{Device, device, devices};
use crate::status::{
    CONTEXT_IS_DESTROYED, INVALID_CONTEXT, INVALID_VALUE, Outcome, SUCCESS, Status, answer, put,
};
use crate::stream::Stream;
use crate::table::lock;

/// A context. It lives until the process ends, so that a handle to it can always be looked at.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) device: &'static Device,
    /// What every call answers from now on. `SUCCESS` while all is well.
    pub(crate) error: AtomicU32,
    /// The streams, and the lock under which work is enqueued. See `stream.rs`.
    pub(crate) streams: Mutex<Streams>,
}

/// The streams of a context.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    /// Made when it is first used.
    pub(crate) legacy: Option<Arc<Stream>>,
    pub(crate) others: Vec<Arc<Stream>>,
}

/// The primary context of a device.
#[derive(Debug, Default)]
pub(crate) struct Primary {
    context: Option<&'static Context>,
    holders: u32,
}

/// How many contexts were made.
pub(crate) static MADE: AtomicU64 = AtomicU64::new(0);

/// What a handle to a context is in C.
pub(crate) type Raw = *const Context;

static ALL: Mutex<Vec<&'static Context>> = Mutex::new(Vec::new());

thread_local! {
    static BOUND: RefCell<Vec<&'static Context>> = const { RefCell::new(Vec::new()) };
}

impl Context {
    fn new(device: &'static Device) -> &'static Self {
        MADE.fetch_add(1, Relaxed);
        let made = Self { device, error: AtomicU32::new(SUCCESS), streams: Mutex::default() };
        let context: &'static Self = Box::leak(Box::new(made));
        lock(&ALL).push(context);
        context
    }

    /// An error once the context cannot be used.
    pub(crate) fn check(&self) -> Outcome {
        match self.error.load(SeqCst) {
            SUCCESS => Ok(()),
            code => Err(code),
        }
    }

    /// Makes the context unusable. The first reason stays.
    pub(crate) fn break_down(&self, code: Status) {
        let _ = self.error.compare_exchange(SUCCESS, code, SeqCst, SeqCst);
    }

    /// All its streams.
    pub(crate) fn all_streams(&self) -> Vec<Arc<Stream>> {
        let streams = lock(&self.streams);
        streams.legacy.iter().chain(&streams.others).cloned().collect()
    }

    /// Waits until nothing is under way.
    pub(crate) fn synchronize(&self) -> Outcome {
        for stream in self.all_streams() {
            stream.wait();
        }
        self.check()
    }
}

/// The context of a handle.
pub(crate) fn of_handle(raw: Raw) -> Result<&'static Context, Status> {
    let all = lock(&ALL);
    all.iter().find(|context| std::ptr::eq(**context, raw)).copied().ok_or(INVALID_CONTEXT)
}

/// The contexts of a device.
pub(crate) fn of_device(device: &Device) -> Vec<&'static Context> {
    lock(&ALL).iter().filter(|context| std::ptr::eq(context.device, device)).copied().collect()
}

/// What this thread has bound, in whatever state.
pub(crate) fn bound() -> Option<&'static Context> {
    BOUND.with_borrow(|stack| stack.last().copied())
}

/// What this thread has bound, for a call that needs it.
pub(crate) fn current() -> Result<&'static Context, Status> {
    devices()?;
    let context = bound().ok_or(INVALID_CONTEXT)?;
    context.check()?;
    Ok(context)
}

fn raw(context: Option<&'static Context>) -> Raw {
    context.map_or(std::ptr::null(), std::ptr::from_ref)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDevicePrimaryCtxRetain(into: *mut Raw, number: c_int) -> Status {
    answer(device(number).and_then(|device| {
        let mut primary = lock(&device.primary);
        let context = *primary.context.get_or_insert_with(|| Context::new(device));
        primary.holders += 1;
        // SAFETY: the caller's promise.
        unsafe { put(into, raw(Some(context))) }
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease_v2(number: c_int) -> Status {
    answer(device(number).and_then(|device| {
        let mut primary = lock(&device.primary);
        let holders = primary.holders.checked_sub(1).ok_or(INVALID_CONTEXT)?;
        primary.holders = holders;
        if holders == 0 {
            if let Some(context) = primary.context.take() {
                context.break_down(CONTEXT_IS_DESTROYED);
            }
        }
        Ok(())
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDevicePrimaryCtxGetState(
    number: c_int,
    flags: *mut c_uint,
    active: *mut c_int,
) -> Status {
    answer(device(number).and_then(|device| {
        let is_active = lock(&device.primary).context.is_some();
        // SAFETY: the caller's promise.
        unsafe {
            put(flags, 0)?;
            put(active, is_active.into())
        }
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxCreate_v2(into: *mut Raw, _flags: c_uint, number: c_int) -> Status {
    answer(device(number).and_then(|device| {
        let context = Context::new(device);
        BOUND.with_borrow_mut(|stack| stack.push(context));
        // SAFETY: the caller's promise.
        unsafe { put(into, raw(Some(context))) }
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxDestroy_v2(context: Raw) -> Status {
    answer(of_handle(context).map(|context| {
        BOUND.with_borrow_mut(|stack| {
            if stack.last().is_some_and(|last| std::ptr::eq(*last, context)) {
                stack.pop();
            }
        });
        context.break_down(CONTEXT_IS_DESTROYED);
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetCurrent(into: *mut Raw) -> Status {
    // SAFETY: the caller's promise.
    answer(devices().and_then(|_| unsafe { put(into, raw(bound())) }))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(context: Raw) -> Status {
    answer(devices().and_then(|_| {
        let next = if context.is_null() { None } else { Some(of_handle(context)?) };
        BOUND.with_borrow_mut(|stack| {
            stack.pop();
            stack.extend(next);
        });
        Ok(())
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxPushCurrent_v2(context: Raw) -> Status {
    answer(devices().and_then(|_| {
        let context = of_handle(context)?;
        context.check()?;
        BOUND.with_borrow_mut(|stack| stack.push(context));
        Ok(())
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxPopCurrent_v2(into: *mut Raw) -> Status {
    answer(devices().and_then(|_| {
        let last = BOUND.with_borrow_mut(Vec::pop).ok_or(INVALID_CONTEXT)?;
        // SAFETY: the caller's promise; null is allowed here.
        if into.is_null() { Ok(()) } else { unsafe { put(into, raw(Some(last))) } }
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetDevice(into: *mut c_int) -> Status {
    // SAFETY: the caller's promise.
    answer(current().and_then(|context| unsafe { put(into, context.device.ordinal as c_int) }))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSynchronize() -> Status {
    answer(current().and_then(Context::synchronize))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetStreamPriorityRange(
    least: *mut c_int,
    greatest: *mut c_int,
) -> Status {
    // SAFETY: the caller's promise.
    answer(current().and_then(|_| unsafe {
        put(least, 0)?;
        put(greatest, -5)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuFlushGPUDirectRDMAWrites(target: u32, scope: u32) -> Status {
    let known = matches!((target, scope), (0, 100 | 200));
    answer(current().and(if known { Ok(()) } else { Err(INVALID_VALUE) }))
}
