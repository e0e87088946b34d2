//! Streams and events, as calls see them: work is put in, and asked after. And capture of graphs,
//! as far as it concerns others: while a stream is captured in the global mode, a thread in that
//! mode must not make calls that could disturb the capture. One that does is refused, and the
//! capture is spoilt. Nothing is captured here.

use std::cell::Cell;
use std::ffi::{c_int, c_uint};
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use crate::state::context::{Context, Event, Stream, Work, current, enqueue};
use crate::state::status::{
    CAPTURE_INVALIDATED, CAPTURE_UNSUPPORTED, INVALID_HANDLE, INVALID_VALUE, NOT_READY, Outcome,
    Status, answer, put,
};
use crate::state::table::{Table, lock};
use crate::state::worker;

static STREAMS: Table<Stream> = Table::new();
static EVENTS: Table<Event> = Table::new();

const LEGACY: usize = 1;

fn start(context: &'static Context, blocking: bool) -> Arc<Stream> {
    let stream = Stream::new(context, blocking);
    worker::start(Arc::clone(&stream));
    stream
}

pub(crate) fn of_handle(handle: usize) -> Result<Arc<Stream>, Status> {
    let context = current()?;
    if handle > LEGACY {
        let stream = STREAMS.get(handle)?;
        stream.context.pass();
        stream.context.check()?;
        return Ok(stream);
    }
    let mut streams = lock(&context.streams);
    Ok(Arc::clone(streams.legacy.get_or_insert_with(|| start(context, true))))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamCreateWithPriority(
    into: *mut usize,
    flags: c_uint,
    _priority: c_int,
) -> Status {
    answer(current().and_then(|context| {
        if flags > 1 {
            return Err(INVALID_VALUE);
        }
        let stream = start(context, flags == 0);
        lock(&context.streams).others.push(Arc::clone(&stream));
        // SAFETY: the caller's promise.
        unsafe { put(into, STREAMS.insert(stream)) }
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamCreate(into: *mut usize, flags: c_uint) -> Status {
    // SAFETY: the caller's promise.
    unsafe { cuStreamCreateWithPriority(into, flags, 0) }
}

/// Returns at once: what is under way is finished first, and the thread ends after it.
#[unsafe(no_mangle)]
extern "C" fn cuStreamDestroy_v2(handle: usize) -> Status {
    answer(STREAMS.remove(handle).map(|stream| {
        stream.close();
        lock(&stream.context.streams).others.retain(|other| !Arc::ptr_eq(other, &stream));
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamSynchronize(handle: usize) -> Status {
    answer(of_handle(handle).and_then(|stream| {
        allowed()?;
        stream.wait();
        stream.context.check()
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamQuery(handle: usize) -> Status {
    answer(of_handle(handle).and_then(|stream| {
        allowed()?;
        stream.context.device.asked.fetch_add(1, Relaxed);
        let queue = lock(&stream.queue);
        let done = if queue.done == queue.put { Ok(()) } else { Err(NOT_READY) };
        // Looked at last: what has failed is never told as done.
        stream.context.check().and(done)
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventCreate(into: *mut usize, _flags: c_uint) -> Status {
    answer(current().and_then(|context| {
        let event = Event { context, state: Mutex::default() };
        // SAFETY: the caller's promise.
        unsafe { put(into, EVENTS.insert(Arc::new(event))) }
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventDestroy_v2(handle: usize) -> Status {
    answer(EVENTS.remove(handle).map(drop))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecord(handle: usize, stream: usize) -> Status {
    answer(of_handle(stream).and_then(|stream| {
        let event = EVENTS.get(handle)?;
        if !ptr::eq(event.context, stream.context) {
            return Err(INVALID_HANDLE);
        }
        stream.context.device.calls.fetch_add(1, Relaxed);
        let number = {
            let mut state = lock(&event.state);
            state.0 += 1;
            state.0
        };
        enqueue(&stream, Work::Record(event, number));
        Ok(())
    }))
}

fn reached(event: &Event) -> Outcome {
    let (recorded, reached) = *lock(&event.state);
    if recorded == reached { Ok(()) } else { Err(NOT_READY) }
}

/// Needs no context on a real driver either, but tells of one that has failed.
#[unsafe(no_mangle)]
extern "C" fn cuEventQuery(handle: usize) -> Status {
    answer(current().and_then(|context| {
        allowed()?;
        context.device.asked.fetch_add(1, Relaxed);
        let event = EVENTS.get(handle)?;
        event.context.pass();
        let done = reached(&event);
        // Looked at last: what has failed is never told as done.
        context.check().and(done)
    }))
}

/// `CU_STREAM_CAPTURE_MODE_GLOBAL`, where threads start, and the last of the modes.
const GLOBAL: u32 = 0;
const RELAXED: u32 = 2;

thread_local! {
    static MODE: Cell<u32> = const { Cell::new(GLOBAL) };
}

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
