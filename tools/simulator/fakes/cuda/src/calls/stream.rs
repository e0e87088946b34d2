//! Streams and events, as calls see them: work is put in, and asked after. And capture of graphs,
//! as far as it concerns other threads; nothing is captured here.

use std::cell::Cell;
use std::ffi::{c_int, c_uint};
use std::ptr;
use std::sync::{Arc, Mutex};

use crate::state::context::{Context, Event, Stream, current, enqueue};
use crate::state::device::{ASKED, CALLS};
use crate::state::status::{
    CAPTURE_INVALIDATED, CAPTURE_UNSUPPORTED, INVALID_HANDLE, INVALID_VALUE, NOT_READY, Out,
    Outcome, Status,
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

fn create(into: &Out<usize>, flags: c_uint) -> Outcome {
    let context = current()?;
    if flags > 1 {
        return Err(INVALID_VALUE);
    }
    let stream = start(context, flags == 0);
    lock(&context.streams).others.push(Arc::clone(&stream));
    into.put(STREAMS.insert(stream))
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

calls! {
    fn cuStreamCreateWithPriority(into: Out<usize>, flags: c_uint, _priority: c_int) {
        create(&into, flags)
    }

    fn cuStreamCreate(into: Out<usize>, flags: c_uint) {
        create(&into, flags)
    }

    /// Returns at once: what is under way is finished first, and the thread ends after it.
    fn cuStreamDestroy_v2(handle: usize) {
        let stream = STREAMS.remove(handle)?;
        stream.close();
        lock(&stream.context.streams).others.retain(|other| !Arc::ptr_eq(other, &stream));
        Ok(())
    }

    fn cuStreamSynchronize(handle: usize) {
        let stream = of_handle(handle)?;
        allowed()?;
        stream.wait();
        stream.context.check()
    }

    fn cuStreamQuery(handle: usize) {
        let stream = of_handle(handle)?;
        allowed()?;
        stream.context.device.count(ASKED);
        let queue = lock(&stream.queue);
        let done = if queue.done == queue.put { Ok(()) } else { Err(NOT_READY) };
        // Looked at last: what has failed is never told as done.
        stream.context.check().and(done)
    }

    fn cuEventCreate(into: Out<usize>, _flags: c_uint) {
        let event = Event { context: current()?, state: Mutex::default() };
        into.put(EVENTS.insert(Arc::new(event)))
    }

    fn cuEventDestroy_v2(handle: usize) {
        EVENTS.remove(handle).map(drop)
    }

    fn cuEventRecord(handle: usize, stream: usize) {
        let stream = of_handle(stream)?;
        let event = EVENTS.get(handle)?;
        if !ptr::eq(event.context, stream.context) {
            return Err(INVALID_HANDLE);
        }
        stream.context.device.count(CALLS);
        let number = {
            let mut state = lock(&event.state);
            state.0 += 1;
            state.0
        };
        enqueue(&stream, move |_| {
            let mut state = lock(&event.state);
            state.1 = state.1.max(number);
        });
        Ok(())
    }

    /// Needs no context on a real driver either, but tells of one that has failed.
    fn cuEventQuery(handle: usize) {
        let context = current()?;
        allowed()?;
        context.device.count(ASKED);
        let event = EVENTS.get(handle)?;
        event.context.pass();
        let (recorded, reached) = *lock(&event.state);
        let done = if recorded == reached { Ok(()) } else { Err(NOT_READY) };
        context.check().and(done)
    }

    fn cuThreadExchangeStreamCaptureMode(mode: Out<u32>) {
        let next = mode.replace(MODE.get())?;
        if next > RELAXED {
            return Err(INVALID_VALUE);
        }
        MODE.set(next);
        Ok(())
    }

    /// In the global mode alone.
    fn cuStreamBeginCapture_v2(stream: usize, mode: u32) {
        current()?;
        let mut capture = lock(&CAPTURE);
        if mode != GLOBAL || capture.is_some() {
            return Err(INVALID_VALUE);
        }
        *capture = Some((stream, false));
        Ok(())
    }

    /// The graph is null.
    fn cuStreamEndCapture(stream: usize, graph: Out<usize>) {
        current()?;
        let (_, spoilt) =
            lock(&CAPTURE).take().filter(|(of, _)| *of == stream).ok_or(INVALID_VALUE)?;
        graph.put(0)?;
        if spoilt { Err(CAPTURE_INVALIDATED) } else { Ok(()) }
    }
}
