//! Capture of graphs, as far as it concerns others: while a stream is captured in the global mode,
//! a thread in that mode must not make calls that could disturb the capture. One that does is
//! refused, and the capture is spoilt. Nothing is captured here.

use std::cell::Cell;
use std::ptr;
use std::sync::Mutex;

use crate::state::context::current;
use crate::state::status::{
    CAPTURE_INVALIDATED, CAPTURE_UNSUPPORTED, INVALID_VALUE, Outcome, Status, answer, put,
};
use crate::state::table::lock;

/// `CU_STREAM_CAPTURE_MODE_GLOBAL`, where threads start, and the last of the modes.
const GLOBAL: u32 = 0;
const RELAXED: u32 = 2;

thread_local! {
    static MODE: Cell<u32> = const { Cell::new(GLOBAL) };
}

/// The stream that is captured, and whether that is spoilt.
static CAPTURE: Mutex<Option<(usize, bool)>> = Mutex::new(None);

/// Whether this thread may make a call that could disturb a capture.
pub(crate) fn allowed() -> Outcome {
    match lock(&CAPTURE).as_mut() {
        Some((_, spoilt)) if MODE.get() == GLOBAL => {
            *spoilt = true;
            Err(CAPTURE_UNSUPPORTED)
        }
        _ => Ok(()),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuThreadExchangeStreamCaptureMode(mode: *mut u32) -> Status {
    if mode.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: not null; the caller's promise.
    let next = unsafe { mode.read() };
    if next > RELAXED {
        return INVALID_VALUE;
    }
    // SAFETY: the same place.
    answer(unsafe { put(mode, MODE.replace(next)) })
}

/// In the global mode alone.
#[unsafe(no_mangle)]
extern "C" fn cuStreamBeginCapture_v2(stream: usize, mode: u32) -> Status {
    answer(current().and_then(|_| {
        let mut capture = lock(&CAPTURE);
        if mode != GLOBAL || capture.is_some() {
            return Err(INVALID_VALUE);
        }
        *capture = Some((stream, false));
        Ok(())
    }))
}

/// The graph is null.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamEndCapture(stream: usize, graph: *mut *mut u8) -> Status {
    answer(current().and_then(|_| match lock(&CAPTURE).take() {
        Some((captured, spoilt)) if captured == stream => {
            // SAFETY: the caller's promise.
            unsafe { put(graph, ptr::null_mut())? };
            if spoilt { Err(CAPTURE_INVALIDATED) } else { Ok(()) }
        }
        _ => Err(INVALID_VALUE),
    }))
}
