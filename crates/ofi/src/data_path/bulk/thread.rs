//! The thread of a bulk connection: drives progress, and sleeps when nothing is due.
//!
//! It sleeps until the provider's descriptor is readable, which means that bytes have arrived or
//! more can be sent, or until the lane submits a transfer.

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
use crate::error::{panic_text, refused};
use crate::{fork, posix_signals};
use engine::port::{PortError, Posted};

/// Idle iterations before the thread sleeps: a peer's next bytes mostly follow soon.
const IDLE_ITERATIONS: u32 = 16;

/// Longest sleeps, in milliseconds: when idle, with own transfers in flight (both in case the
/// descriptor fails to wake it), and when waiting for an event that has no descriptor.
const IDLE: i32 = 1000;
const BUSY: i32 = 10;
const STUCK: i32 = 1;

#[derive(Debug)]
struct Shared {
    /// Whether the thread sleeps, or is about to, and polls the request queue only when woken. The
    /// thread that resets the flag wakes it.
    sleeps: AtomicBool,
    stop: AtomicBool,
    /// Whether the thread has ended after a panic.
    has_failed: AtomicBool,
    wake: WakeFd,
}

/// The thread of a bulk connection. It ends when this value is dropped.
#[derive(Debug)]
pub(super) struct Worker {
    shared: Arc<Shared>,
    requests: SyncSender<Request>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts the thread, bound to the CPUs near a device, if there is one.
    pub(super) fn start(
        mut connection: Connection,
        requests: SyncSender<Request>,
        name: &str,
        near: Option<&Path>,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            sleeps: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
            wake: WakeFd::new()?,
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

    #[inline]
    pub(super) fn submit(&self, request: Request) -> Result<Posted, PortError> {
        if self.shared.has_failed.load(Ordering::Relaxed) {
            return Err(has_ended());
        }
        match self.requests.try_send(request) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => return Ok(Posted::Again),
            Err(TrySendError::Disconnected(_)) => return Err(has_ended()),
        }
        // Sequentially consistent with the thread's access: it finds the request before it sleeps,
        // or is woken here.
        if self.shared.sleeps.swap(false, Ordering::SeqCst) {
            self.shared.wake.notify();
        }
        Ok(Posted::Yes)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if fork::is_child() {
            // The thread and its connection are the parent's.
            return std::mem::forget(thread);
        }
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.wake.notify();
        // The thread waits for nothing else.
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
    let text = panic_text(panic.as_ref());
    error!("{name} has ended: {text}: please report this");
    shared.has_failed.store(true, Ordering::SeqCst);
    // The connection's state is unknown after a panic, but reporting does not depend on it.
    connection.end(refused("moving bulk", format!("the thread {name} has ended: {text}")));
}

fn iterations(shared: &Shared, connection: &mut Connection) {
    let mut idle = 0;
    while !shared.stop.load(Ordering::SeqCst) {
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
    if may_sleep || iteration == Iteration::Stuck {
        shared.wake.wait(connection.descriptor(), sleep_limit(iteration, connection.is_busy()));
    }
    shared.sleeps.store(false, Ordering::SeqCst);
}

fn sleep_limit(iteration: Iteration, is_busy: bool) -> i32 {
    match iteration {
        Iteration::Stuck => STUCK,
        _ if is_busy => BUSY,
        _ => IDLE,
    }
}

#[derive(Debug)]
struct WakeFd(OwnedFd);

impl WakeFd {
    fn new() -> io::Result<Self> {
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just opened, and owned by nobody else.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Ends the current wait, or else the next one, at once.
    fn notify(&self) {
        let one = 1_u64;
        // SAFETY: eight bytes to read. If the counter is full, the call fails, and the event is
        // set.
        unsafe { libc::write(self.0.as_raw_fd(), (&raw const one).cast(), size_of::<u64>()) };
    }

    /// Waits for a notification, for another descriptor, or for at most `most` milliseconds.
    fn wait(&self, other: Option<RawFd>, most: i32) {
        let on = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // poll ignores negative descriptors.
        let mut both = [on(self.0.as_raw_fd()), on(other.unwrap_or(-1))];
        // SAFETY: an array of two entries. An interrupted wait ends early.
        unsafe { libc::poll(both.as_mut_ptr(), 2, most) };
        if both[0].revents != 0 {
            let mut rung = 0_u64;
            // SAFETY: eight bytes to write to. Fails if there was no notification.
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
        let (wake, other) = (WakeFd::new().expect("an eventfd"), WakeFd::new().expect("another"));
        // SAFETY: flags of a descriptor alone.
        let flags = |what| unsafe { libc::fcntl(wake.0.as_raw_fd(), what) };
        assert_eq!(flags(libc::F_GETFD) & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
        assert_eq!(flags(libc::F_GETFL) & libc::O_NONBLOCK, libc::O_NONBLOCK);
        let fd = Some(other.0.as_raw_fd());
        wake.notify();
        wake.wait(None, -1);
        other.notify();
        wake.wait(fd, -1);
        wake.wait(fd, -1);
        wake.wait(None, 0);
    }

    #[test]
    fn busy_and_stuck_sleep_less() {
        let idle = [true, false].map(|is_busy| sleep_limit(Iteration::Idle, is_busy));
        let stuck = [true, false].map(|is_busy| sleep_limit(Iteration::Stuck, is_busy));
        assert_eq!((idle, stuck), ([BUSY, IDLE], [STUCK, STUCK]));
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
            assert_eq!(worker.submit(request), Ok(Posted::Yes));
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
            stop: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
            wake: WakeFd::new().expect("an eventfd"),
        });
        let worker = Worker { shared: Arc::clone(&shared), requests, thread: None };
        assert_eq!((0..5).filter(|_| worker.submit(request) == Ok(Posted::Yes)).count(), 4);
        assert_eq!(worker.submit(request), Ok(Posted::Again), "its queue is full");
        run(&shared, "bulk-test", &mut bed.connection, |_, _| panic!("an unlucky number"));
        assert_eq!(bed.told(), ["None failed: moving bulk 22"]);
        let refused = worker.submit(request).map_err(|error| error.text);
        assert!(refused.expect_err("it has ended").contains("has ended"));
    }
}
