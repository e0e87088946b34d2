//! The thread of a connection for bulk: it moves bytes while there are any, and sleeps.
//!
//! It sleeps until the provider's descriptor can be read, which is when bytes have come in, or room
//! for more, or until the lane hands something over.

use std::any::Any;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};

use log::{debug, error};

use crate::affinity::keep_near;
use crate::data_path::bulk::connection::{Connection, Iteration, Request};
use crate::error::refused;
use crate::{fork, posix_signals};
use engine::port::{PortError, Posted};

/// Turns without anything to do before it sleeps: a peer's next bytes are mostly close behind.
const IDLE_ITERATIONS: u32 = 16;

/// How long it sleeps at most, in milliseconds: when idle, while transfers of its own are under
/// way, and when it waits for what nothing tells of. The first two are for a descriptor that should
/// not tell.
const IDLE: i32 = 1000;
const BUSY: i32 = 10;
const STUCK: i32 = 1;

/// What the lane and the thread share.
#[derive(Debug)]
struct Shared<C> {
    /// The thread's during an iteration.
    connection: Mutex<C>,
    /// How many want it besides: the thread begins no iteration as long as there are any.
    wanted: AtomicU32,
    /// The thread sleeps, or is about to, and does not look at the queue of requests before it is
    /// woken. Whoever sets it back wakes it.
    sleeps: AtomicBool,
    over: AtomicBool,
    /// The thread has ended of itself.
    has_failed: AtomicBool,
    wake: Wake,
}

/// What a thread moves.
pub(super) trait Moves: Send + 'static {
    /// Posts what was handed over, polls, and tells what is done.
    fn iterate(&mut self) -> Iteration;
    /// Whether there is nothing to do until the descriptor tells of something, or the lane hands
    /// something over.
    fn may_sleep(&mut self) -> bool;
    /// Whether transfers of ours are under way.
    fn is_busy(&self) -> bool;
    /// The descriptor that tells of the next event.
    fn descriptor(&self) -> Option<RawFd>;
    /// The thread ends: the lane is told why, should it still be there.
    fn end(&mut self, error: PortError);
}

/// A connection with its thread. It ends with this value.
#[derive(Debug)]
pub(super) struct Worker<C = Connection> {
    shared: Arc<Shared<C>>,
    requests: SyncSender<Request>,
    thread: Option<JoinHandle<()>>,
}

impl<C: Moves> Worker<C> {
    /// Starts the thread, under a name and near a device, if there is one.
    pub(super) fn start(
        connection: C,
        requests: SyncSender<Request>,
        name: &str,
        near: Option<&Path>,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            connection: Mutex::new(connection),
            wanted: AtomicU32::new(0),
            sleeps: AtomicBool::new(false),
            over: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
            wake: Wake::new()?,
        });
        let (theirs, near, known) =
            (Arc::clone(&shared), near.map(Path::to_owned), name.to_owned());
        let thread = posix_signals::spawn(name, move || {
            if let Some(kept) = near.as_deref().and_then(keep_near) {
                debug!("{known} keeps to {kept}");
            }
            run(&theirs, &known);
        })?;
        Ok(Self { shared, requests, thread: Some(thread) })
    }

    /// Hands a transfer over.
    ///
    /// # Errors
    /// The thread has ended.
    #[inline]
    pub(super) fn give(&self, request: Request) -> Result<Posted, PortError> {
        if self.shared.has_failed.load(Ordering::Relaxed) {
            return Err(has_ended());
        }
        match self.requests.try_send(request) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => return Ok(Posted::Again),
            Err(TrySendError::Disconnected(_)) => return Err(has_ended()),
        }
        // In one order with the thread's: either it finds the request before it sleeps, or this
        // finds that it sleeps.
        if self.shared.sleeps.swap(false, Ordering::SeqCst) {
            self.shared.wake.ring();
        }
        Ok(Posted::Yes)
    }

    /// Does something to the connection between two iterations of the thread.
    ///
    /// # Errors
    /// The thread has ended.
    #[cold]
    pub(super) fn with<T>(&self, call: impl FnOnce(&mut C) -> T) -> Result<T, PortError> {
        let Self { shared, .. } = self;
        shared.wanted.fetch_add(1, Ordering::SeqCst);
        let called = match shared.connection.lock() {
            Ok(mut connection) if !shared.has_failed.load(Ordering::Relaxed) => {
                Ok(call(&mut connection))
            }
            _ => Err(has_ended()),
        };
        shared.wanted.fetch_sub(1, Ordering::SeqCst);
        // It may sleep by a descriptor that is another one's now.
        shared.wake.ring();
        called
    }
}

impl<C> Drop for Worker<C> {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if fork::is_child() {
            // The thread is its parent's, and the lock may be.
            std::mem::forget(Arc::clone(&self.shared));
            return std::mem::forget(thread);
        }
        self.shared.over.store(true, Ordering::SeqCst);
        self.shared.wake.ring();
        // It waits for nothing else.
        let _ = thread.join();
    }
}

#[cold]
fn has_ended() -> PortError {
    refused("moving bulk", String::from("the thread that does has ended, as the log says"))
}

/// What the thread does.
fn run<C: Moves>(shared: &Shared<C>, name: &str) {
    let Err(panic) = catch_unwind(AssertUnwindSafe(|| iterations(shared))) else { return };
    let text = reason(panic.as_ref());
    error!("{name} has ended: {text}: please report this");
    shared.has_failed.store(true, Ordering::SeqCst);
    let told = refused("moving bulk", format!("the thread {name} has ended: {text}"));
    // What it was at is unknown; that the lane is told of it does not depend on that.
    let mut connection = match shared.connection.lock() {
        Ok(connection) => connection,
        Err(poisoned) => poisoned.into_inner(),
    };
    connection.end(told);
}

fn reason(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic")
}

fn iterations<C: Moves>(shared: &Shared<C>) {
    let mut idle = 0;
    loop {
        while shared.wanted.load(Ordering::SeqCst) > 0 {
            thread::yield_now();
        }
        if shared.over.load(Ordering::SeqCst) {
            return;
        }
        let Ok(mut connection) = shared.connection.lock() else { return };
        match connection.iterate() {
            Iteration::Moved => idle = 0,
            Iteration::Idle if idle < IDLE_ITERATIONS => idle += 1,
            iteration => sleep(shared, connection, iteration),
        }
    }
}

fn sleep<C: Moves>(shared: &Shared<C>, mut connection: MutexGuard<'_, C>, iteration: Iteration) {
    shared.sleeps.swap(true, Ordering::SeqCst);
    let may_sleep = connection.may_sleep();
    let descriptor = connection.descriptor();
    let most = match iteration {
        Iteration::Stuck => STUCK,
        _ if connection.is_busy() => BUSY,
        _ => IDLE,
    };
    drop(connection);
    if may_sleep || iteration == Iteration::Stuck {
        shared.wake.wait(descriptor, most);
    }
    shared.sleeps.store(false, Ordering::SeqCst);
}

/// What wakes a thread: an eventfd.
#[derive(Debug)]
struct Wake(OwnedFd);

impl Wake {
    fn new() -> io::Result<Self> {
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just opened, and nobody else has it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Has the next wait, or the one that is under way, end at once.
    fn ring(&self) {
        let one = 1_u64;
        // SAFETY: eight bytes to read. It fails when it was rung 2^64 times, and is rung then.
        unsafe { libc::write(self.0.as_raw_fd(), (&raw const one).cast(), size_of::<u64>()) };
    }

    /// Waits to be rung, for another descriptor or for so many milliseconds.
    fn wait(&self, other: Option<RawFd>, most: i32) {
        let on = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // A descriptor below zero is passed over.
        let mut both = [on(self.0.as_raw_fd()), on(other.unwrap_or(-1))];
        // SAFETY: two entries to write to. The other descriptor may have been closed meanwhile, and
        // be another file's: the wait ends early then, as does that of one that was interrupted.
        unsafe { libc::poll(both.as_mut_ptr(), 2, most) };
        if both[0].revents != 0 {
            let mut rung = 0_u64;
            // SAFETY: eight bytes to write to. It fails when it was not rung.
            unsafe {
                libc::read(self.0.as_raw_fd(), (&raw mut rung).cast(), size_of::<u64>());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel, sync_channel};
    use std::time::{Duration, Instant};

    use super::*;
    use crate::data_path::bulk::connection::What;
    use engine::ids::WrId;
    use engine::port::PeerAddr;

    const HANG: Duration = Duration::from_secs(60);

    /// A connection that tells what its thread does.
    struct Told {
        requests: Receiver<Request>,
        done: std::sync::mpsc::Sender<WrId>,
        ended: std::sync::mpsc::Sender<String>,
        iterations: u64,
        always_moves: bool,
    }

    impl Moves for Told {
        fn iterate(&mut self) -> Iteration {
            self.iterations += 1;
            let Ok(request) = self.requests.try_recv() else {
                return if self.always_moves { Iteration::Moved } else { Iteration::Idle };
            };
            assert_ne!(request.wr_id, WrId(13), "an unlucky number");
            self.done.send(request.wr_id).expect("the test hears it");
            Iteration::Moved
        }

        fn may_sleep(&mut self) -> bool {
            true
        }

        fn is_busy(&self) -> bool {
            false
        }

        fn descriptor(&self) -> Option<RawFd> {
            None
        }

        fn end(&mut self, error: PortError) {
            self.ended.send(error.to_string()).expect("the test hears it");
        }
    }

    struct Bed {
        worker: Worker<Told>,
        done: Receiver<WrId>,
        ended: Receiver<String>,
    }

    fn bed(always_moves: bool) -> Bed {
        let (give, requests) = sync_channel(4);
        let ((done, hear), (ended, hear_end)) = (channel(), channel());
        let told = Told { requests, done, ended, iterations: 0, always_moves };
        let worker = Worker::start(told, give, "bulk-test", None).expect("a thread");
        Bed { worker, done: hear, ended: hear_end }
    }

    fn request(number: u32) -> Request {
        let (to, wr_id) = (PeerAddr(0), WrId(number));
        Request { what: What::Write, to, wr_id, context: 0, addr: 0, len: 1, remote: 0, key: 0 }
    }

    #[test]
    fn a_wait_ends_by_a_ring_or_by_the_other_descriptor() {
        let (wake, other) = (Wake::new().expect("an eventfd"), Wake::new().expect("another"));
        // SAFETY: flags of a descriptor alone.
        let flags = |what| unsafe { libc::fcntl(wake.0.as_raw_fd(), what) };
        assert_eq!(flags(libc::F_GETFD) & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
        assert_eq!(flags(libc::F_GETFL) & libc::O_NONBLOCK, libc::O_NONBLOCK);
        let fd = Some(other.0.as_raw_fd());
        wake.ring();
        wake.wait(None, -1);
        other.ring();
        wake.wait(fd, -1);
        wake.wait(fd, -1);
        wake.wait(None, 0);
    }

    /// Nothing but the lane wakes it here, for there is no descriptor, and by itself it would sleep
    /// for a second each time.
    #[test]
    fn a_thread_that_sleeps_is_woken_by_what_is_handed_over() {
        let bed = bed(false);
        let begun = Instant::now();
        for number in 100..1100 {
            while !bed.worker.shared.sleeps.load(Ordering::SeqCst) {
                assert!(begun.elapsed() < HANG, "it never sleeps");
                thread::yield_now();
            }
            assert_eq!(bed.worker.give(request(number)), Ok(Posted::Yes));
            assert_eq!(bed.done.recv_timeout(HANG), Ok(WrId(number)));
        }
        let iterations = bed.worker.with(|told| told.iterations).unwrap();
        assert!(
            iterations < 1000 * u64::from(2 * IDLE_ITERATIONS),
            "{iterations} iterations: it sleeps in between"
        );
    }

    #[test]
    fn others_have_the_connection_between_two_turns() {
        let bed = bed(true);
        let mut before = 0;
        for _ in 0..1000 {
            let iterations = bed.worker.with(|told| told.iterations).unwrap();
            assert!(iterations >= before);
            before = iterations;
        }
        drop(bed.worker);
        assert!(bed.ended.recv().is_err(), "it has ended, without an error");
    }

    #[test]
    fn a_thread_that_panics_says_so_and_takes_nothing_more() {
        let bed = bed(false);
        assert_eq!(bed.worker.give(request(13)), Ok(Posted::Yes));
        let said = bed.ended.recv_timeout(HANG).expect("it is told");
        assert!(said.contains("the thread bulk-test has ended"), "{said}");
        assert!(said.contains("an unlucky number"), "{said}");
        let refused = bed.worker.give(request(1)).unwrap_err().to_string();
        assert!(refused.contains("has ended"), "{refused}");
        assert!(bed.worker.with(|told| told.iterations).is_err());
    }

    #[test]
    fn a_queue_that_is_full_takes_no_more_for_now() {
        let bed = bed(false);
        let held = bed.worker.shared.connection.lock().unwrap();
        let posted = (0..5).map(|number| bed.worker.give(request(100 + number)).unwrap());
        let posted: Vec<Posted> = posted.collect();
        drop(held);
        assert!(posted[..4].iter().all(|posted| *posted == Posted::Yes));
        assert_eq!(posted[4], Posted::Again);
        let done: Vec<WrId> = (0..4).map(|_| bed.done.recv_timeout(HANG).unwrap()).collect();
        assert_eq!(done, [100, 101, 102, 103].map(WrId));
    }
}
