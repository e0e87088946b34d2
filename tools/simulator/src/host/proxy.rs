//! The proxy thread: takes what the device has asked for and calls the plugin.
//!
//! As in NVSHMEM it runs from connect to finalize, takes up to [`BATCH`] requests, calls
//! `progress`, and starts over, also when there is nothing to do. It never sleeps: giving up the
//! core when idle is the plugin's part.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{
    Receiver, RecvTimeoutError, SendTimeoutError, Sender, TryRecvError, bounded, select,
};

use crate::error::{Error, Result, error};
use crate::host::ops::{Amo, Ops, Shared, Thread};
use crate::memory::address::{Place, SymAddr};
use crate::pe::bootstrap::Fatal;
use crate::pe::payload_text;

const BATCH: usize = 32;

const QUEUE: usize = 4096;

type Task = Box<dyn FnOnce(&Ops) -> Result<()> + Send>;

/// The device's side of the proxy: requests go in, a quiet tells when they are done.
///
/// A request fails when the proxy thread has failed, now or before, or takes none within the
/// deadline. An error of the request itself ends the thread and shows at the next call.
///
/// # Threads
/// Any, also several at once. Requests of one thread are taken in order.
#[derive(Debug)]
pub struct Proxy {
    /// Dropped for the thread to end. After an error of the PE that is not waited for: the thread
    /// may be stuck in the plugin, which it keeps alive.
    requests: Sender<Task>,
    thread: JoinHandle<()>,
    /// Closed when the thread has ended.
    ended: Receiver<()>,
    fatal: Fatal,
    deadline: Duration,
}

/// Asks the proxy thread for the operations of these names.
macro_rules! asked {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*);)*) => {
        $($(#[$doc])* pub fn $name(&self, $($argument: $type),*) -> Result<()> {
            self.ask(move |ops| ops.$name($($argument),*))
        })*
    };
}

impl Proxy {
    pub(crate) fn start(shared: Arc<Shared>, fatal: Fatal, deadline: Duration) -> Result<Proxy> {
        let (requests, queue) = bounded(QUEUE);
        let (ending, ended) = bounded::<()>(0);
        let failed = fatal.clone();
        let ops = Ops::new(shared, Thread::Proxy)?;
        let body = move || {
            // Dropped at the very end, after the thread's hold on the transport.
            let _ending = ending;
            let ops = ops;
            match catch_unwind(AssertUnwindSafe(|| serve(&ops, &queue))) {
                Ok(Ok(())) => {}
                Ok(Err(error)) => failed.set(error.to_string()),
                Err(payload) => failed.set(format!("panic: {}", payload_text(payload.as_ref()))),
            }
        };
        let thread = std::thread::Builder::new()
            .name("nvshmem-proxy".into())
            .spawn(body)
            .map_err(|e| error!("cannot start the proxy thread: {e}"))?;
        Ok(Proxy { requests, thread, ended, fatal, deadline })
    }

    asked! {
        put(pe: u32, to: SymAddr, from: impl Into<Place> + Send + 'static, len: u64);
        get(pe: u32, from: SymAddr, to: impl Into<Place> + Send + 'static, len: u64);
        g(pe: u32, from: SymAddr, to: impl Into<Place> + Send + 'static, len: u64);
        /// Asks for the low `bytes` of a value to be written to a PE's heap.
        p(pe: u32, to: SymAddr, value: u64, bytes: i32);
        fence();
        amo(pe: u32, target: SymAddr, amo: Amo);
        put_signal(
            pe: u32, to: SymAddr, from: impl Into<Place> + Send + 'static, len: u64,
            signal: SymAddr, amo: Amo);
    }

    pub fn quiet(&self) -> Result<()> {
        self.run(Ops::quiet)?
    }

    /// Runs a function on the proxy thread, after the earlier requests, and waits for its result.
    /// It has the thread for itself: where it waits it calls [`Ops::progress`].
    pub fn run<R: Send + 'static>(&self, f: impl FnOnce(&Ops) -> R + Send + 'static) -> Result<R> {
        let (done, wait) = bounded(1);
        self.ask(move |ops| {
            // Nobody waits any more when the deadline has passed.
            let _ = done.send(f(ops));
            Ok(())
        })?;
        // With the queue the request is gone, and whoever would have answered; but one that is sent
        // while the thread ends may stay in the queue.
        select! {
            recv(wait) -> answer => answer.map_err(|_| self.gone()),
            recv(self.ended) -> _ => wait.try_recv().map_err(|_| self.gone()),
            default(self.deadline) => Err(self.late("answer")),
        }
    }

    /// Stops the thread after the requests that are already waiting, and waits for its end. That it
    /// had failed is no error.
    pub(crate) fn stop(self) -> Result<()> {
        let late = self.late("stop");
        let Proxy { requests, thread, ended, deadline, .. } = self;
        drop(requests);
        if let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(deadline) {
            return Err(late);
        }
        // It catches its own panics, so there is no news in the result.
        let _ = thread.join();
        Ok(())
    }

    fn ask(&self, task: impl FnOnce(&Ops) -> Result<()> + Send + 'static) -> Result<()> {
        self.requests.send_timeout(Box::new(task), self.deadline).map_err(|error| match error {
            SendTimeoutError::Disconnected(_) => self.gone(),
            SendTimeoutError::Timeout(_) => self.late("take a request"),
        })
    }

    /// The thread has dropped a request: it has failed, and says why before it ends.
    fn gone(&self) -> Error {
        let _ = self.ended.recv_timeout(self.deadline);
        let failed = self.fatal.check().err();
        failed.unwrap_or_else(|| error!("the proxy thread has ended"))
    }

    fn late(&self, what: &str) -> Error {
        error!("the proxy thread did not {what} within {:?}", self.deadline)
    }
}

fn serve(ops: &Ops, queue: &Receiver<Task>) -> Result<()> {
    // As on NVSHMEM's, where the plugin may count on it.
    if let Some(gpu) = ops.shared.gpu {
        gpu.make_current()?;
    }
    loop {
        for _ in 0..BATCH {
            match queue.try_recv() {
                Ok(task) => task(ops)?,
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return Ok(()),
            }
        }
        ops.progress()?;
    }
}
