//! Streams and events, as calls see them: work is put in, and asked after.
//!
//! Work of the legacy stream waits for what the blocking streams of its context hold when it is
//! enqueued, and theirs waits for the legacy stream's. Waiting is always for work enqueued before,
//! so it ends.

use std::collections::VecDeque;
use std::ffi::{c_int, c_uint};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::capture::allowed;
use crate::context::{Context, current};
use crate::status::{INVALID_VALUE, NOT_READY, Outcome, Status, answer, put};
use crate::table::{Table, lock};
use crate::worker::{self, Work};

/// A stream.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) context: &'static Context,
    /// Whether it and the legacy stream wait for one another.
    blocking: bool,
    pub(crate) queue: Mutex<Queue>,
    pub(crate) changed: Condvar,
}

/// What a stream has to do.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) work: VecDeque<Item>,
    /// Items ever put in, and ever done.
    pub(crate) put: u64,
    pub(crate) done: u64,
    pub(crate) closed: bool,
}

/// An item of work, and what must be done before.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) after: Vec<(Arc<Stream>, u64)>,
    pub(crate) work: Work,
}

/// An event: the number of its last record, and of the last that was reached.
#[derive(Debug, Default)]
pub(crate) struct Event {
    pub(crate) state: Mutex<(u64, u64)>,
    pub(crate) changed: Condvar,
}

static STREAMS: Table<Stream> = Table::new();
static EVENTS: Table<Event> = Table::new();

/// `CU_STREAM_LEGACY`.
const LEGACY: usize = 1;

impl Stream {
    fn start(context: &'static Context, blocking: bool) -> Arc<Self> {
        let stream =
            Arc::new(Self { context, blocking, queue: Mutex::default(), changed: Condvar::new() });
        worker::start(Arc::clone(&stream));
        stream
    }

    /// The number of what was put in last.
    fn last(&self) -> u64 {
        lock(&self.queue).put
    }

    /// Waits until item `number` is done.
    pub(crate) fn wait_for(&self, number: u64) {
        let mut queue = lock(&self.queue);
        while queue.done < number {
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until all is done.
    pub(crate) fn wait(&self) {
        self.wait_for(self.last());
    }
}

/// Puts work into a stream, and returns its number there.
pub(crate) fn enqueue(stream: &Arc<Stream>, work: Work) -> u64 {
    // Held to the end, so that what waits and what is waited for are one state.
    let streams = lock(&stream.context.streams);
    let mut after = Vec::new();
    let is_legacy = streams.legacy.as_ref().is_some_and(|legacy| Arc::ptr_eq(legacy, stream));
    if is_legacy {
        let blocking = streams.others.iter().filter(|other| other.blocking);
        after.extend(blocking.map(|other| (Arc::clone(other), other.last())));
    } else if stream.blocking {
        after.extend(streams.legacy.iter().map(|legacy| (Arc::clone(legacy), legacy.last())));
    }
    let mut queue = lock(&stream.queue);
    queue.work.push_back(Item { after, work });
    queue.put += 1;
    stream.changed.notify_all();
    queue.put
}

/// The stream of a handle, for a call that needs a current context.
pub(crate) fn of_handle(handle: usize) -> Result<Arc<Stream>, Status> {
    let context = current()?;
    if handle > LEGACY {
        let stream = STREAMS.get(handle)?;
        stream.context.check()?;
        return Ok(stream);
    }
    let mut streams = lock(&context.streams);
    Ok(Arc::clone(streams.legacy.get_or_insert_with(|| Stream::start(context, true))))
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
        let stream = Stream::start(context, flags == 0);
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
        lock(&stream.queue).closed = true;
        stream.changed.notify_all();
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
        let queue = lock(&stream.queue);
        let done = if queue.done == queue.put { Ok(()) } else { Err(NOT_READY) };
        // Looked at last: what has failed is never told as done.
        stream.context.check().and(done)
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventCreate(into: *mut usize, _flags: c_uint) -> Status {
    // SAFETY: the caller's promise.
    answer(current().and_then(|_| unsafe { put(into, EVENTS.insert(Arc::default())) }))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventDestroy_v2(handle: usize) -> Status {
    answer(EVENTS.remove(handle).map(drop))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecord(handle: usize, stream: usize) -> Status {
    answer(of_handle(stream).and_then(|stream| {
        let event = EVENTS.get(handle)?;
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
        let done = reached(&*EVENTS.get(handle)?);
        // Looked at last: what has failed is never told as done.
        context.check().and(done)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventSynchronize(handle: usize) -> Status {
    answer(current().and_then(|context| {
        allowed()?;
        let event = EVENTS.get(handle)?;
        let mut state = lock(&event.state);
        while state.0 != state.1 {
            state = event.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        context.check()
    }))
}
