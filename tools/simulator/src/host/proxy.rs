//! The proxy thread: takes what the device has asked for and calls the plugin.
//!
//! As in NVSHMEM it runs from connect to finalize, takes up to [`BATCH`] requests, calls
//! `progress`, and starts over, also when there is nothing to do. It never sleeps: giving up the
//! core when idle is the plugin's part.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, SendTimeoutError, Sender, bounded};

use crate::error::{Error, Result};
use crate::host::ops::{Amo, Ops};
use crate::host::shared::{Shared, Thread};
use crate::memory::address::{Place, SymAddr};
use crate::pe::bootstrap::Fatal;
use crate::pe::process::payload_text;

/// Requests between two calls of `progress`: NVSHMEM_PROXY_REQUEST_BATCH_MAX's default.
const BATCH: usize = 32;

/// Most puts that are announced in a row: NVSHMEM_TRANSPORT_BATCH_MAX_OPS' default.
const ANNOUNCED: usize = 16;

/// Requests that may wait. A sender is held when there are more, as a device is whose channel is
/// full.
const QUEUE: usize = 4096;

/// Rate at which a waiting sender looks whether the proxy thread has failed.
const SLICE: Duration = Duration::from_millis(20);

type Task = Box<dyn FnOnce(&Ops) -> Result<()> + Send>;

/// What the thread is to do; whether it is a put is seen by the one before it.
struct Request {
    is_put: bool,
    task: Task,
}

/// The device's side of the proxy: requests go in, a quiet tells when they are done.
///
/// # Threads
/// Any, also several at once. Requests of one thread are taken in order.
#[derive(Debug)]
pub struct Proxy {
    requests: Sender<Request>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    /// Closed when the thread has ended.
    ended: Receiver<()>,
    fatal: Fatal,
    deadline: Duration,
    /// To say what the thread is in when it does not answer.
    shared: std::sync::Weak<Shared>,
}

impl Proxy {
    pub(crate) fn start(shared: Arc<Shared>, fatal: Fatal, deadline: Duration) -> Result<Proxy> {
        let (requests, queue) = bounded(QUEUE);
        let (ending, ended) = bounded::<()>(0);
        let stop = Arc::new(AtomicBool::new(false));
        let weak = Arc::downgrade(&shared);
        let (stopped, failed) = (stop.clone(), fatal.clone());
        let body = move || {
            // Dropped at the very end, after the thread's hold on the transport.
            let _ending = ending;
            let ops = Ops::new(shared, Thread::Proxy);
            let run = std::panic::AssertUnwindSafe(|| serve(&ops, &queue, &stopped));
            match std::panic::catch_unwind(run) {
                Ok(Ok(())) => {}
                Ok(Err(e)) => failed.set(e.to_string()),
                Err(payload) => failed.set(format!("panic: {}", payload_text(payload.as_ref()))),
            }
        };
        let thread = std::thread::Builder::new()
            .name("nvshmem-proxy".into())
            .spawn(body)
            .map_err(|e| Error::Usage(format!("cannot start the proxy thread: {e}")))?;
        let thread = Some(thread);
        Ok(Proxy { requests, stop, thread, ended, fatal, deadline, shared: weak })
    }

    /// Asks for a write to a PE's heap.
    ///
    /// # Errors
    /// The proxy thread has failed, now or before, or takes no requests within the deadline. An
    /// error of the request itself ends the thread and shows at the next call.
    pub fn put(&self, pe: u32, to: SymAddr, from: impl Into<Place>, len: u64) -> Result<()> {
        let from = from.into();
        self.ask_to_put(move |ops| ops.put_nbi(pe, to, from, len))
    }

    /// As [`Proxy::put`], as a part of a region (layout 7), numbered from 1.
    ///
    /// # Errors
    /// See [`Proxy::put`].
    pub fn put_in_region(
        &self,
        region: u64,
        pe: u32,
        to: SymAddr,
        from: impl Into<Place>,
        len: u64,
    ) -> Result<()> {
        let from = from.into();
        self.ask_to_put(move |ops| {
            ops.set_region(region);
            let status = ops.put_nbi(pe, to, from, len);
            ops.set_region(0);
            status
        })
    }

    /// Asks for a region to be ended (layout 7).
    ///
    /// # Errors
    /// See [`Proxy::put`].
    pub fn end_region(&self, region: u64) -> Result<()> {
        self.ask(move |ops| ops.end_region(region))
    }

    /// Asks for a read from a PE's heap.
    ///
    /// # Errors
    /// See [`Proxy::put`].
    pub fn get(&self, pe: u32, from: SymAddr, to: impl Into<Place>, len: u64) -> Result<()> {
        let to = to.into();
        self.ask(move |ops| ops.get_nbi(pe, from, to, len))
    }

    /// Asks for a read of a small value from a PE's heap.
    ///
    /// # Errors
    /// See [`Proxy::put`].
    pub fn g(&self, pe: u32, from: SymAddr, to: impl Into<Place>, len: u64) -> Result<()> {
        let to = to.into();
        self.ask(move |ops| ops.g(pe, from, to, len))
    }

    /// Asks for the low `bytes` of a value to be written to a PE's heap.
    ///
    /// # Errors
    /// See [`Proxy::put`].
    pub fn p(&self, pe: u32, to: SymAddr, value: u64, bytes: i32) -> Result<()> {
        self.ask(move |ops| ops.p(pe, to, value, bytes))
    }

    /// Asks for an atomic operation on a PE's heap.
    ///
    /// # Errors
    /// See [`Proxy::put`].
    pub fn amo(&self, pe: u32, target: SymAddr, amo: Amo) -> Result<()> {
        self.ask(move |ops| ops.amo(pe, target, &amo))
    }

    /// Asks for a write to a PE's heap with a signal behind it.
    ///
    /// # Errors
    /// See [`Proxy::put`].
    pub fn put_signal(
        &self,
        pe: u32,
        to: SymAddr,
        from: impl Into<Place>,
        len: u64,
        signal: SymAddr,
        amo: Amo,
    ) -> Result<()> {
        let from = from.into();
        self.ask(move |ops| ops.put_signal(pe, to, from, len, signal, &amo))
    }

    /// Asks for the later requests to each PE to be ordered behind the earlier ones.
    ///
    /// # Errors
    /// See [`Proxy::put`].
    pub fn fence(&self) -> Result<()> {
        self.ask(Ops::fence)
    }

    /// Waits until all earlier requests are complete.
    ///
    /// # Errors
    /// See [`Proxy::put`]. When the deadline passes, the text says what the thread is in.
    pub fn quiet(&self) -> Result<()> {
        let (done, wait) = bounded(1);
        self.ask(move |ops| {
            ops.quiet()?;
            // Nobody waits any more when the deadline has passed.
            let _ = done.send(());
            Ok(())
        })?;
        self.wait("a quiet", &wait)
    }

    /// Runs a function on the proxy thread, after the earlier requests, and waits for its result.
    /// It has the thread for itself: where it waits it calls [`Ops::progress`].
    ///
    /// # Errors
    /// See [`Proxy::put`].
    pub fn run<R: Send + 'static>(&self, f: impl FnOnce(&Ops) -> R + Send + 'static) -> Result<R> {
        self.start_run(f)?.wait()
    }

    /// As [`Proxy::run`], without waiting.
    ///
    /// # Errors
    /// See [`Proxy::put`].
    pub fn start_run<R: Send + 'static>(
        &self,
        f: impl FnOnce(&Ops) -> R + Send + 'static,
    ) -> Result<Running<'_, R>> {
        let (done, wait) = bounded(1);
        self.ask(move |ops| {
            // As above.
            let _ = done.send(f(ops));
            Ok(())
        })?;
        Ok(Running { proxy: self, wait })
    }

    /// Stops the thread after the requests that are already waiting, and waits for its end.
    pub(crate) fn stop(mut self) -> Result<()> {
        self.stop.store(true, Ordering::Release);
        if let Err(RecvTimeoutError::Timeout) = self.ended.recv_timeout(self.deadline) {
            return Err(self.late("stop"));
        }
        if let Some(thread) = self.thread.take() {
            // It catches its own panics, so there is no news in the result.
            let _ = thread.join();
        }
        match self.fatal.get() {
            Some(text) => Err(Error::Proxy(text.to_string())),
            None => Ok(()),
        }
    }

    fn ask(&self, task: impl FnOnce(&Ops) -> Result<()> + Send + 'static) -> Result<()> {
        self.send(Request { is_put: false, task: Box::new(task) })
    }

    fn ask_to_put(&self, task: impl FnOnce(&Ops) -> Result<()> + Send + 'static) -> Result<()> {
        self.send(Request { is_put: true, task: Box::new(task) })
    }

    fn send(&self, request: Request) -> Result<()> {
        let start = Instant::now();
        let mut request = request;
        loop {
            if let Some(text) = self.fatal.get() {
                return Err(Error::Proxy(text.to_string()));
            }
            match self.requests.send_timeout(request, SLICE) {
                Ok(()) => return Ok(()),
                Err(SendTimeoutError::Disconnected(_)) => return Err(self.gone()),
                Err(SendTimeoutError::Timeout(back)) => request = back,
            }
            if start.elapsed() > self.deadline {
                return Err(self.late("take a request"));
            }
        }
    }

    fn wait<R>(&self, what: &str, wait: &Receiver<R>) -> Result<R> {
        let start = Instant::now();
        loop {
            match wait.recv_timeout(SLICE) {
                Ok(result) => return Ok(result),
                Err(RecvTimeoutError::Disconnected) => return Err(self.gone()),
                Err(RecvTimeoutError::Timeout) => {}
            }
            // A request that came when the thread had just failed stays in the queue.
            if let Some(text) = self.fatal.get() {
                return Err(Error::Proxy(text.to_string()));
            }
            if start.elapsed() > self.deadline {
                return Err(self.late(&format!("complete {what}")));
            }
        }
    }

    /// The thread has dropped a request: it has failed, and says why before it ends.
    fn gone(&self) -> Error {
        let _ = self.ended.recv_timeout(self.deadline);
        let text = self.fatal.get().unwrap_or("it has ended");
        Error::Proxy(text.to_string())
    }

    fn late(&self, what: &str) -> Error {
        let doing = self.shared.upgrade().map(|shared| shared.doing(Thread::Proxy));
        Error::Timeout(format!(
            "the proxy thread did not {what} within {:?}; it is {}",
            self.deadline,
            doing.unwrap_or_else(|| "gone".into())
        ))
    }
}

/// Something that runs on the proxy thread.
#[derive(Debug)]
#[must_use]
pub struct Running<'a, R> {
    proxy: &'a Proxy,
    wait: Receiver<R>,
}

impl<R> Running<'_, R> {
    /// Waits for the result.
    ///
    /// # Errors
    /// See [`Proxy::put`].
    pub fn wait(self) -> Result<R> {
        self.proxy.wait("a function", &self.wait)
    }
}

impl Drop for Proxy {
    /// Without a `stop` the PE is on its way out after an error. The thread may be stuck in
    /// the plugin, so it is told to end but not waited for; it keeps the plugin alive.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
    }
}

fn serve(ops: &Ops, queue: &Receiver<Request>, stop: &AtomicBool) -> Result<()> {
    // As on NVSHMEM's, where the plugin may count on it.
    if let Some(gpu) = ops.shared.gpu {
        gpu.make_current()?;
    }
    let mut batch = VecDeque::with_capacity(BATCH);
    loop {
        // Read before the queue is looked at: what was sent before the stop is still served.
        let stopping = stop.load(Ordering::Acquire);
        batch.extend(queue.try_iter().take(BATCH));
        if stopping && batch.is_empty() {
            return Ok(());
        }
        let mut announced = 0;
        while let Some(Request { is_put, task }) = batch.pop_front() {
            // A put is announced when the next request can be seen and is one as well.
            let next_is_put = batch.front().is_some_and(|next: &Request| next.is_put);
            let more = is_put && next_is_put && announced + 1 < ANNOUNCED;
            announced = if more { announced + 1 } else { 0 };
            ops.set_more_follows(more);
            task(ops)?;
        }
        ops.set_more_follows(false);
        ops.progress()?;
    }
}
