//! A channel: rails to all PEs, memory that kernels and peers reach, and its proxy thread.

mod memory;

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use channel_sys as c;
use crossbeam_channel::{Sender, bounded, unbounded};
use log::{info, warn};

use crate::bootstrap::Bootstrap;
use crate::bootstrap::gathering::Gathering;
use crate::channel::answer::{NoAnswer, PAUSES, wait_for};
use crate::channel::error::ChannelError;
use crate::channel::memory::shared::{Shared, Sizes};
use crate::channel::options::Options;
use crate::channel::proxy::consumer::Consumer;
use crate::channel::proxy::thread::{ChannelState, Control, Proxy, ProxyView};
use crate::channel::regions::Regions;
use crate::job::heartbeat::{Heartbeat, Stall};
use crate::job::{Connected, Job, words_options};
use crate::logging;
use engine::thread_wait::Wait;
use ofi::{fork, posix_signals};

/// Longest wait for the proxy thread to serve a user thread.
const PATIENCE: Duration = Duration::from_secs(30);

/// Added to the deadline of a drain: an iteration of the proxy thread.
const SLACK: Duration = Duration::from_secs(2);

/// A device channel of this PE.
///
/// # Threads
/// [`Channel::context`], [`Channel::error`], [`Channel::register_local`] and [`Channel::release`]
/// of local memory may be called from any thread at any time. The others are collective: every PE
/// makes the same calls in the same order, from one thread at a time. Kernels, and CPU threads that
/// use the context as they do, are not bound to any of that; they must have ended, or see that the
/// channel was stopped, before it is dropped.
pub struct Channel {
    state: Arc<ChannelState>,
    me: u32,
    n_pes: u32,
    /// Held for the time of a collective call.
    bootstrap: Mutex<Box<dyn Bootstrap>>,
    /// Locked after `bootstrap` by a thread that holds both, and never while peers are waited for.
    regions: Mutex<Regions>,
    /// Its end ends the proxy thread.
    control: Option<Sender<Control>>,
    thread: Option<JoinHandle<()>>,
    /// Checks that the proxy thread runs. Dropped before `state`, to which it has a reference.
    heartbeat: Option<Heartbeat>,
    drain: Duration,
    drained: OnceLock<Result<(), Arc<ChannelError>>>,
    stopped: bool,
}

impl Channel {
    /// Opens the rails of this PE, connects all PEs and starts the proxy thread. Collective: every
    /// PE gets a channel, or an error with the reasons of those that failed.
    pub fn new(mut bootstrap: Box<dyn Bootstrap>, options: &Options) -> Result<Self, ChannelError> {
        let sizes = Sizes::new(options.rings, options.slots)?;
        let (me, n_pes) = (bootstrap.me(), bootstrap.n_pes());
        if n_pes > c::NLF_MAX_PES {
            return Err(ChannelError::TooManyPes { n_pes });
        }
        let job = Job::new(options.settings.clone())?;
        job.connect(&Gathering::new(&mut *bootstrap), &[])?;
        let words = words_options(&options.settings);
        let shared = Shared::new(sizes, me, n_pes, options.spins, &words)?;
        // SAFETY: called once. `state` owns the memory, and outlives the proxy thread's rings.
        let rings = unsafe { shared.rings()? };
        let state = Arc::new(ChannelState::new(job, shared));
        let (control, wanted) = unbounded();
        let proxy = Proxy::new(Arc::clone(&state), Consumer::new(rings), wanted);
        // SAFETY: connected above. This type uses the lane itself only after the thread's end.
        let thread = posix_signals::spawn("nlf-proxy", move || unsafe { proxy.run() })
            .map_err(ChannelError::Thread)?;
        let heartbeat = state.job.connection().map(|connected| {
            let of = Arc::clone(&state);
            let failed = move |stall: &Stall| of.give_up(&stall.to_string());
            Heartbeat::of(Arc::clone(&connected.pulse), &state.job.settings, failed)
        });
        let channel = Self {
            state,
            me,
            n_pes,
            bootstrap: Mutex::new(bootstrap),
            regions: Mutex::default(),
            control: Some(control),
            thread: Some(thread),
            heartbeat,
            drain: options.drain,
            drained: OnceLock::new(),
            stopped: false,
        };
        channel.register_own()?;
        info!(
            target: logging::PROXY,
            "channel of PE {me} of {n_pes}: {} rings of {} slots", options.rings, options.slots
        );
        Ok(channel)
    }

    pub fn me(&self) -> u32 {
        self.me
    }

    pub fn n_pes(&self) -> u32 {
        self.n_pes
    }

    /// Context for kernels. It and all it points to stay until the channel is dropped.
    ///
    /// In device memory, for kernels, if the making thread uses a device; else for CPU threads.
    pub fn context(&self) -> *const c::nlf_context {
        self.state.shared.context()
    }

    /// Returns the first failure: of an operation, or of a kernel's request.
    /// Kernels see it as well, and nothing is taken from the rings any more.
    pub fn error(&self) -> Option<String> {
        self.state.failure()
    }

    /// Returns when all PEs have called it; operations may be outstanding. Collective.
    pub fn barrier(&self) -> Result<(), ChannelError> {
        Ok(self.lock(&self.bootstrap)?.barrier()?)
    }

    /// Runs a function in the proxy thread, between two of its iterations, and waits for it.
    #[doc(hidden)]
    pub fn on_proxy<T: Send + 'static>(
        &self,
        run: impl FnOnce(&mut ProxyView<'_>) -> T + Send + 'static,
    ) -> Result<T, ChannelError> {
        let (done, result) = bounded(1);
        self.send_to_proxy(move |view| drop(done.send(run(view))))?;
        wait_for(&result, PATIENCE).map_err(|error| match error {
            NoAnswer::Ended => ChannelError::Ended,
            NoAnswer::Late => {
                let what = "a change of the proxy thread's table of regions";
                ChannelError::Late { what, waited: PATIENCE }
            }
        })
    }

    /// As [`Channel::on_proxy`], without waiting.
    #[doc(hidden)]
    pub fn send_to_proxy(
        &self,
        run: impl FnOnce(&mut ProxyView<'_>) + Send + 'static,
    ) -> Result<(), ChannelError> {
        self.send(Control::Run(Box::new(run)))
    }

    /// For benches: slots of a ring whose operations are done.
    #[doc(hidden)]
    pub fn done(&self, ring: usize) -> u64 {
        self.state.shared.done(ring)
    }

    /// Delivers what was pushed by now, and takes nothing more: kernels that push later, or wait,
    /// are told that the channel is stopped. Peers are still served. Not collective.
    ///
    /// # Errors
    /// Something was not delivered within [`Options::drain`], or had failed before.
    pub fn drain(&self) -> Result<(), ChannelError> {
        match self.drained.get_or_init(|| self.drain_rings().map_err(Arc::new)) {
            Ok(()) => Ok(()),
            Err(failed) => Err(ChannelError::Undelivered(Arc::clone(failed))),
        }
    }

    /// Drains the rings as [`Channel::drain`] does, waits until all PEs have, and ends the proxy
    /// thread. Collective.
    ///
    /// # Errors
    /// Something was not delivered within [`Options::drain`], or had failed before; or another PE
    /// has not come. The proxy thread has ended all the same.
    pub fn stop(mut self) -> Result<(), ChannelError> {
        self.end(true)
    }

    /// [`Channel::stop`]; waits for other PEs only if `with_others`.
    fn end(&mut self, with_others: bool) -> Result<(), ChannelError> {
        if std::mem::replace(&mut self.stopped, true) {
            return Ok(());
        }
        if fork::is_child() {
            // A copy, without the proxy thread, whose part of `state` is never given back.
            std::mem::forget((self.thread.take(), self.heartbeat.take(), self.control.take()));
            self.leak_regions();
            return Err(ChannelError::Child);
        }
        let drained = self.drain();
        // Also after a failure: peers may still need this PE's iterations, and wait for it here.
        let met = if with_others { self.barrier() } else { Ok(()) };
        self.control = None;
        let ended = self.join();
        self.heartbeat = None;
        if let Err(stuck) = ended {
            self.leak_regions();
            return Err(stuck);
        }
        // SAFETY: the proxy thread has ended, and nobody else uses its lane.
        unsafe {
            self.state.job.tell_counters();
            self.state.job.drain_before_close();
        }
        drained.and(met)
    }

    fn join(&mut self) -> Result<(), ChannelError> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        // The thread ends its waits.
        self.state.abandon.store(true, Ordering::Relaxed);
        let mut wait = Wait::new();
        while !thread.is_finished() {
            if wait.left_of(self.drain).is_none() {
                // Its reference to `state` keeps rails, rings and registrations.
                return Err(ChannelError::Stuck { waited: self.drain });
            }
            std::thread::sleep(PAUSES.1);
        }
        if thread.join().is_err() {
            warn!(target: logging::PROXY, "the channel's proxy thread has panicked");
        }
        Ok(())
    }

    fn leak_regions(&mut self) {
        let regions = self.regions.get_mut().unwrap_or_else(PoisonError::into_inner);
        std::mem::forget(std::mem::take(regions));
    }

    fn drain_rings(&self) -> Result<(), ChannelError> {
        let (done, outcome) = bounded(1);
        let heads = self.state.shared.heads()?;
        self.send(Control::Drain { heads, patience: self.drain, done })?;
        let late = ChannelError::Late { what: "delivering what was pushed", waited: self.drain };
        match wait_for(&outcome, self.drain.saturating_add(SLACK)) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(left)) => match self.error() {
                Some(why) => Err(ChannelError::Failed(why)),
                None => {
                    warn!(target: logging::PROXY, "{left} slots were not delivered");
                    Err(late)
                }
            },
            Err(NoAnswer::Late) => Err(late),
            Err(NoAnswer::Ended) => Err(ChannelError::Ended),
        }
    }

    fn send(&self, control: Control) -> Result<(), ChannelError> {
        refuse_child()?;
        let sender = self.control.as_ref().ok_or(ChannelError::Ended)?;
        sender.send(control).map_err(|_| ChannelError::Ended)
    }

    fn connected(&self) -> Result<&Connected, ChannelError> {
        refuse_child()?;
        Ok(self.state.job.connected()?)
    }

    /// Locks a mutex of this channel; an error in a child of fork, where it may be held for ever.
    fn lock<'a, T>(&self, of: &'a Mutex<T>) -> Result<MutexGuard<'a, T>, ChannelError> {
        refuse_child()?;
        // Each change of what it guards is one call.
        Ok(of.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn refuse_child() -> Result<(), ChannelError> {
    if fork::is_child() { Err(ChannelError::Child) } else { Ok(()) }
}

impl Drop for Channel {
    /// As [`Channel::stop`], without waiting for other PEs, which must not need this one any more.
    fn drop(&mut self) {
        if let Err(failed) = self.end(false) {
            warn!(target: logging::PROXY, "the channel's end: {failed}");
        }
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { me, n_pes, .. } = self;
        f.debug_struct("Channel").field("me", me).field("n_pes", n_pes).finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(crate) mod tests;
