//! Contexts and their streams, and which context a thread has bound.
//!
//! Work of the legacy stream waits for what the blocking streams of its context hold when it is
//! enqueued, and theirs waits for the legacy stream's. Waiting is always for work enqueued before,
//! so it ends.
//!
//! Some calls have their context to themselves: they wait until it is idle, and every other call on
//! the context waits for them, as with a driver on an H200 (580.159). The crate's page lists them,
//! and what waits in other contexts. What an address is can be asked at any time.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock, TryLockError};

use crate::state::device::{Device, devices};
use crate::state::status::{CONTEXT_IS_DESTROYED, INVALID_CONTEXT, Outcome, SUCCESS, Status};
use crate::state::table::lock;

/// A context. It lives until the process ends, so that a handle to it can always be looked at.
pub(crate) struct Context {
    pub(crate) device: &'static Device,
    /// What every call answers from now on. `SUCCESS` while all is well.
    pub(crate) error: AtomicU32,
    /// The streams, and the lock under which work is enqueued. See [`enqueue`].
    pub(crate) streams: Mutex<Streams>,
    /// Bytes of stack that a thread of its kernels has.
    pub(crate) stack: AtomicU64,
    pub(crate) kernels: AtomicU32,
    /// Taken to write by a call that has the context to itself. See [`Context::alone`].
    turn: RwLock<()>,
}

#[derive(Default)]
pub(crate) struct Streams {
    /// Made when it is first used.
    pub(crate) legacy: Option<Arc<Stream>>,
    pub(crate) others: Vec<Arc<Stream>>,
}

pub(crate) struct Stream {
    pub(crate) context: &'static Context,
    /// Whether it and the legacy stream wait for one another.
    blocking: bool,
    pub(crate) queue: Mutex<Queue>,
    pub(crate) changed: Condvar,
}

#[derive(Default)]
pub(crate) struct Queue {
    pub(crate) work: VecDeque<Item>,
    pub(crate) put: u64,
    pub(crate) done: u64,
    pub(crate) closed: bool,
}

/// An item of work, and what must be done before.
pub(crate) struct Item {
    pub(crate) after: Vec<(Arc<Stream>, u64)>,
    pub(crate) work: Work,
}

/// An event: the number of its last record, and of the last that was reached.
pub(crate) struct Event {
    /// The context it was made in, of whose streams it is.
    pub(crate) context: &'static Context,
    pub(crate) state: Mutex<(u64, u64)>,
}

pub(crate) type Work = Box<dyn FnOnce(&Context) + Send>;

pub(crate) static MADE: AtomicU64 = AtomicU64::new(0);

pub(crate) type Raw = *const Context;

static ALL: Mutex<Vec<&'static Context>> = Mutex::new(Vec::new());

thread_local! {
    pub(crate) static BOUND: RefCell<Vec<&'static Context>> = const { RefCell::new(Vec::new()) };
}

impl Context {
    pub(crate) fn new(device: &'static Device) -> &'static Self {
        MADE.fetch_add(1, Relaxed);
        let made = Self {
            device,
            error: AtomicU32::new(SUCCESS),
            streams: Mutex::default(),
            stack: AtomicU64::new(1024),
            kernels: AtomicU32::new(0),
            turn: RwLock::new(()),
        };
        let context: &'static Self = Box::leak(Box::new(made));
        lock(&ALL).push(context);
        context
    }

    pub(crate) fn check(&self) -> Outcome {
        match self.error.load(SeqCst) {
            SUCCESS => Ok(()),
            code => Err(code),
        }
    }

    pub(crate) fn break_down(&self, code: Status) {
        let _ = self.error.compare_exchange(SUCCESS, code, SeqCst, SeqCst);
    }

    pub(crate) fn synchronize(&self) -> Outcome {
        let streams = lock(&self.streams);
        let all: Vec<_> = streams.legacy.iter().chain(&streams.others).cloned().collect();
        drop(streams);
        all.iter().for_each(|stream| stream.wait());
        self.check()
    }

    pub(crate) fn pass(&self) {
        if self.is_taken() {
            drop(self.turn.read());
        }
    }

    pub(crate) fn alone<T>(&self, call: impl FnOnce() -> Result<T, Status>) -> Result<T, Status> {
        let _turn = self.turn.write();
        self.synchronize()?;
        call()
    }

    pub(crate) fn is_taken(&self) -> bool {
        matches!(self.turn.try_read(), Err(TryLockError::WouldBlock))
    }

    pub(crate) fn is_beside_a_kernel(&self) -> bool {
        of_device(self.device)
            .iter()
            .any(|other| !std::ptr::eq(*other, self) && other.kernels.load(SeqCst) > 0)
    }

    pub(crate) fn destroy(&self) {
        self.break_down(CONTEXT_IS_DESTROYED);
        let streams = std::mem::take(&mut *lock(&self.streams));
        for stream in streams.legacy.iter().chain(&streams.others) {
            stream.close();
        }
    }
}

impl Stream {
    pub(crate) fn new(context: &'static Context, blocking: bool) -> Arc<Self> {
        Arc::new(Self { context, blocking, queue: Mutex::default(), changed: Condvar::new() })
    }

    fn last(&self) -> u64 {
        lock(&self.queue).put
    }

    pub(crate) fn wait_for(&self, number: u64) {
        let mut queue = lock(&self.queue);
        while queue.done < number {
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(crate) fn wait(&self) {
        self.wait_for(self.last());
    }

    /// Nothing more is put in. Its thread ends after what is under way.
    pub(crate) fn close(&self) {
        lock(&self.queue).closed = true;
        self.changed.notify_all();
    }
}

pub(crate) fn enqueue(stream: &Arc<Stream>, work: impl FnOnce(&Context) + Send + 'static) -> u64 {
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
    queue.work.push_back(Item { after, work: Box::new(work) });
    queue.put += 1;
    stream.changed.notify_all();
    queue.put
}

pub(crate) fn of_handle(raw: Raw) -> Result<&'static Context, Status> {
    let all = lock(&ALL);
    all.iter().find(|context| std::ptr::eq(**context, raw)).copied().ok_or(INVALID_CONTEXT)
}

pub(crate) fn of_device(device: &Device) -> Vec<&'static Context> {
    lock(&ALL).iter().filter(|context| std::ptr::eq(context.device, device)).copied().collect()
}

pub(crate) fn bound() -> Option<&'static Context> {
    BOUND.with_borrow(|stack| stack.last().copied())
}

pub(crate) fn current() -> Result<&'static Context, Status> {
    let context = current_at_once()?;
    context.pass();
    context.check()?;
    Ok(context)
}

pub(crate) fn current_at_once() -> Result<&'static Context, Status> {
    devices()?;
    let context = bound().ok_or(INVALID_CONTEXT)?;
    context.check()?;
    Ok(context)
}
