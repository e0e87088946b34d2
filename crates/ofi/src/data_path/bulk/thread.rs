//! The thread of a connection for bulk: it moves bytes while there are any, and sleeps.
//!
//! It sleeps until the provider's descriptor can be read, which is when bytes have come in, or room
//! for more, or until the lane hands something over.

use std::any::Any;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::thread::JoinHandle;

use log::{debug, error};

use crate::affinity::keep_near;
use crate::data_path::bulk::connection::{Connection, Iteration, Request};
use crate::error::refused;
use crate::{fork, posix_signals};
use engine::port::{PortError, Posted};

/// Turns without anything to do before it sleeps: a peer's next bytes are mostly close behind.
const IDLE_ITERATIONS: u32 = 16;

/// Longest sleeps, in milliseconds: when idle, with own transfers in flight (both in case the
/// descriptor fails to wake it), and when waiting for an event that has no descriptor.
const IDLE: i32 = 1000;
const BUSY: i32 = 10;
const STUCK: i32 = 1;

/// State shared by the lane and the thread.
#[derive(Debug)]
struct Shared {
    /// The thread sleeps, or is about to, and does not look at the queue of requests before it is
    /// woken. Whoever sets it back wakes it.
    sleeps: AtomicBool,
    over: AtomicBool,
    /// The thread has ended of itself.
    has_failed: AtomicBool,
    wake: Wake,
}

/// The thread of a connection. It ends with this value.
#[derive(Debug)]
pub(super) struct Worker {
    shared: Arc<Shared>,
    requests: SyncSender<Request>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts the thread, under a name and near a device, if there is one.
    pub(super) fn start(
        mut connection: Connection,
        requests: SyncSender<Request>,
        name: &str,
        near: Option<&Path>,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
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
            run(&theirs, &known, &mut connection, iterations);
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
        // In one order with the thread's: it finds the request before it sleeps, or this wakes it.
        if self.shared.sleeps.swap(false, Ordering::SeqCst) {
            self.shared.wake.ring();
        }
        Ok(Posted::Yes)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if fork::is_child() {
            // The thread is its parent's, with what it has.
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

/// Runs the thread, and ends its connection if it panics.
fn run(
    shared: &Shared,
    name: &str,
    connection: &mut Connection,
    iterations: impl FnOnce(&Shared, &mut Connection),
) {
    let moves = || iterations(shared, connection);
    let Err(panic) = catch_unwind(AssertUnwindSafe(moves)) else { return };
    let text = reason(panic.as_ref());
    error!("{name} has ended: {text}: please report this");
    shared.has_failed.store(true, Ordering::SeqCst);
    // What it was at is unknown; that the lane is told of it does not depend on that.
    connection.end(refused("moving bulk", format!("the thread {name} has ended: {text}")));
}

fn reason(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic")
}

fn iterations(shared: &Shared, connection: &mut Connection) {
    let mut idle = 0;
    while !shared.over.load(Ordering::SeqCst) {
        match connection.iterate() {
            Iteration::Moved => idle = 0,
            Iteration::Idle if idle < IDLE_ITERATIONS => idle += 1,
            iteration => sleep(shared, connection, iteration),
        }
    }
}

fn sleep(shared: &Shared, connection: &mut Connection, iteration: Iteration) {
    shared.sleeps.swap(true, Ordering::SeqCst);
    let may_sleep = connection.may_sleep();
    let most = match iteration {
        Iteration::Stuck => STUCK,
        _ if connection.is_busy() => BUSY,
        _ => IDLE,
    };
    if may_sleep || iteration == Iteration::Stuck {
        shared.wake.wait(connection.descriptor(), most);
    }
    shared.sleeps.store(false, Ordering::SeqCst);
}

/// Wakes a thread, by an eventfd.
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
        // SAFETY: two entries to write to. A wait that is interrupted ends early.
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
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::data_path::bulk::connection::BulkOp;
    use crate::data_path::bulk::connection::tests::Bed;
    use crate::provider::Provider;

    const HANG: Duration = Duration::from_secs(60);

    #[test]
    fn wait_ends_by_either_descriptor() {
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

    /// By itself it would sleep for a second each time.
    #[test]
    fn transfer_wakes_sleeping_thread() {
        let bed = Bed::new(Provider::Tcp);
        let request = bed.request(BulkOp::Write, 1, 0);
        let Bed { connection, requests, .. } = bed;
        let worker = Worker::start(connection, requests, "bulk-test", None).expect("a thread");
        let begun = Instant::now();
        for _ in 0..200 {
            while !worker.shared.sleeps.load(Ordering::SeqCst) {
                assert!(begun.elapsed() < HANG, "it never sleeps");
                thread::yield_now();
            }
            assert_eq!(worker.give(request), Ok(Posted::Yes));
        }
        assert!(begun.elapsed() < HANG, "it sleeps on");
    }

    #[test]
    fn panicked_worker_refuses_transfers() {
        let mut bed = Bed::new(Provider::Tcp);
        let request = bed.request(BulkOp::Write, 1, 0);
        let requests = bed.requests.clone();
        let shared = Arc::new(Shared {
            sleeps: AtomicBool::new(false),
            over: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
            wake: Wake::new().expect("an eventfd"),
        });
        let worker = Worker { shared: Arc::clone(&shared), requests, thread: None };
        assert_eq!((0..5).filter(|_| worker.give(request) == Ok(Posted::Yes)).count(), 4);
        assert_eq!(worker.give(request), Ok(Posted::Again), "its queue is full");
        run(&shared, "bulk-test", &mut bed.connection, |_, _| panic!("an unlucky number"));
        assert_eq!(bed.told(), ["None failed: moving bulk 22"]);
        let refused = worker.give(request).map_err(|error| error.text);
        assert!(refused.expect_err("it has ended").contains("has ended"));
    }
}
