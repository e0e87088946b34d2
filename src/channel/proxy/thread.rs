//! The proxy thread's loop: takes a batch, iterates the lane, publishes completion, and at times
//! serves user threads. Once stopped or failed it only iterates: peers may need its progress.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use channel_sys as c;
use crossbeam_channel::{Receiver, Sender, TryRecvError};
use log::{error, info};

use crate::channel::memory::shared::{Fault, Shared};
use crate::channel::proxy::consumer::{Consumer, Failed};
use crate::channel::ring::State;
use crate::job::counters::exit;
use crate::job::idle::Idle;
use crate::job::{Connected, Job};
use crate::logging;
use engine::ids::Pe;
use engine::lane::Lane;
use engine::thread_wait::Wait;
use engine::wire::handle::HandleBytes;
use ofi::OfiPort;
use ofi::affinity::keep_near;

/// Iterations between two checks for requests of user threads.
const CONTROL_EVERY: u32 = 32;

pub(crate) enum Control {
    /// Runs a function between two iterations.
    Run(Box<dyn FnOnce(&mut ProxyView<'_>) + Send>),
    /// Takes what was pushed by now, up to the slots reserved in each ring, and nothing after it.
    /// `done` receives the outcome: all delivered, or the number of slots that are not.
    Drain { heads: Vec<u64>, patience: Duration, done: Sender<Result<(), u64>> },
}

#[derive(Debug)]
pub struct ProxyView<'a> {
    pub lane: &'a mut Lane<OfiPort>,
    pub(crate) consumer: &'a mut Consumer,
}

impl ProxyView<'_> {
    /// Address of a region on a PE, and its handle.
    pub fn remote(&self, region: u8, pe: u32) -> Option<(u64, HandleBytes)> {
        self.consumer.regions.peer(region, Pe(pe)).map(|peer| (peer.base, peer.handle))
    }
}

/// State shared by the proxy thread and user threads.
#[derive(Debug)]
pub(crate) struct ChannelState {
    pub(crate) job: Job,
    pub(crate) shared: Shared,
    failure: Mutex<Option<String>>,
    /// Ends the proxy thread's waits for full queues.
    pub(crate) abandon: Arc<AtomicBool>,
    /// Another thread has reported the channel as failed, as the proxy thread made no iteration.
    given_up: AtomicBool,
}

impl ChannelState {
    pub(crate) fn new(job: Job, shared: Shared) -> Self {
        let (abandon, given_up) = (Arc::default(), AtomicBool::new(false));
        Self { job, shared, failure: Mutex::new(None), abandon, given_up }
    }

    pub(crate) fn failure(&self) -> Option<String> {
        let noted = self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone();
        noted.or_else(|| self.shared.fault().map(|fault| fault.to_string()))
    }

    /// Reports the channel as failed, as the proxy thread does not iterate. Should it go on, it
    /// sees that.
    pub(crate) fn give_up(&self, why: &str) {
        error!(target: logging::PROXY, "the channel has failed: {why}");
        self.set_failure(why);
        self.given_up.store(true, Ordering::Relaxed);
        self.shared.report(&fault(c::NLF_ERROR_FAILED));
        self.shared.publish_failed();
    }

    fn set_failure(&self, why: &str) {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert_with(|| why.to_owned());
    }
}

#[derive(Debug)]
enum Phase {
    Running,
    Draining { wait: Wait, patience: Duration, done: Sender<Result<(), u64>> },
    Stopped,
    Failed,
}

#[derive(Debug)]
pub(crate) struct Proxy {
    state: Arc<ChannelState>,
    consumer: Consumer,
    control: Receiver<Control>,
    phase: Phase,
    idle: Idle,
    iterations: u32,
}

impl Proxy {
    pub(crate) fn new(
        state: Arc<ChannelState>,
        consumer: Consumer,
        control: Receiver<Control>,
    ) -> Self {
        let connected = state.job.connection();
        // It never sleeps: peers' operations need this thread's iterations, and are not seen.
        let idle = Idle::new(connected.is_none_or(|connected| connected.has_core), None);
        Self { state, consumer, control, phase: Phase::Running, idle, iterations: 0 }
    }

    /// Runs until the channel has let go of the other end of `control`.
    ///
    /// # Safety
    /// The job is connected, and no other thread uses its proxy lane meanwhile.
    pub(crate) unsafe fn run(mut self) {
        let state = Arc::clone(&self.state);
        if state.job.settings.channel_pin {
            let first = state.job.discovery.devices().first();
            let near = first.and_then(|device| device.pci_path.as_deref());
            if let Some(kept) = near.and_then(keep_near) {
                info!(target: logging::PROXY, "the channel's proxy thread keeps to {kept}");
            }
        }
        let Ok(connected) = state.job.connected() else { return };
        // SAFETY: the caller's promise; the reference ends with the expression.
        unsafe { &mut *connected.proxy_lane() }.set_abandon(Arc::clone(&state.abandon));
        // A panic must not leave producers waiting.
        let guard = Guard { proxy: &mut self };
        // SAFETY: the caller's promise.
        while unsafe { guard.proxy.iterate(connected) } {}
        std::mem::forget(guard);
        self.consumer.publish_state(match self.phase {
            Phase::Failed => State::Failed,
            _ => State::Stopped,
        });
    }

    /// One iteration. Returns false after the last.
    ///
    /// # Safety
    /// That of [`Proxy::run`].
    unsafe fn iterate(&mut self, connected: &Connected) -> bool {
        // SAFETY: nobody else has a reference, says the caller; unused after the next call for one.
        let lane = unsafe { &mut *connected.proxy_lane() };
        let mut busy = false;
        if matches!(self.phase, Phase::Running | Phase::Draining { .. }) {
            match self.consumer.take(lane) {
                Ok(any) => busy = any,
                Err(failed) => self.fail(failed),
            }
        }
        // SAFETY: the caller's promise; `lane` is not used any more.
        match unsafe { connected.iterate() } {
            Ok(any) => busy |= any,
            // Failures after the end of the channel are ignored: peers may have ended.
            Err(_) if matches!(self.phase, Phase::Failed | Phase::Stopped) => {}
            Err(error) => self.fail(failed(error.to_string())),
        }
        // SAFETY: as before.
        let lane = unsafe { &mut *connected.proxy_lane() };
        match self.consumer.retire(lane, || connected.enforce_consistency()) {
            Ok(any) => busy |= any,
            Err(error) => {
                self.fail(failed(error.to_string()));
                busy = true;
            }
        }
        self.iterations = self.iterations.wrapping_add(1);
        if !busy || self.iterations % CONTROL_EVERY == 0 {
            if exit::is_waiting() {
                // SAFETY: as before; the other reference is not used any more.
                unsafe { self.state.job.tell_counters() };
            }
            match self.control.try_recv() {
                // SAFETY: as before; the other one is not used any more.
                Ok(control) => self.serve(control, unsafe { &mut *connected.proxy_lane() }),
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => return false,
            }
            self.look();
        }
        if busy {
            self.idle.busy();
        } else {
            let waits = self.consumer.has_open() && !matches!(self.phase, Phase::Failed);
            self.idle.iterate(waits);
        }
        true
    }

    fn look(&mut self) {
        if !matches!(self.phase, Phase::Failed | Phase::Stopped) {
            if self.state.given_up.load(Ordering::Relaxed) {
                self.fail(failed(self.state.failure().unwrap_or_default()));
            }
            // A kernel that has given up leaves slots that will never be there.
            if self.state.shared.is_abandoned() {
                let stuck = || fault(c::NLF_ERROR_STUCK);
                let fault = self.state.shared.fault().unwrap_or_else(stuck);
                self.fail(Failed { fault, why: fault.to_string() });
            }
        }
        if let Phase::Draining { wait, patience, .. } = &mut self.phase {
            if self.consumer.is_drained() {
                self.stop(Ok(()));
            } else if wait.left_of(*patience).is_none() {
                self.stop(Err(self.consumer.left()));
            }
        }
    }

    fn stop(&mut self, outcome: Result<(), u64>) {
        self.consumer.publish_state(State::Stopped);
        if let Phase::Draining { done, .. } = std::mem::replace(&mut self.phase, Phase::Stopped) {
            // The user thread may wait no longer.
            let _ = done.send(outcome);
        }
    }

    fn serve(&mut self, control: Control, lane: &mut Lane<OfiPort>) {
        match control {
            Control::Run(run) => run(&mut ProxyView { lane, consumer: &mut self.consumer }),
            Control::Drain { heads, patience, done } => match self.phase {
                Phase::Running => {
                    self.consumer.set_limits(heads);
                    self.phase = Phase::Draining { wait: Wait::new(), patience, done };
                }
                _ => {
                    let _ = done.send(Err(self.consumer.left()));
                }
            },
        }
    }

    #[cold]
    fn fail(&mut self, failed: Failed) {
        let Failed { fault, why } = failed;
        error!(target: logging::PROXY, "the channel has failed: {why}");
        self.state.set_failure(&why);
        self.state.shared.report(&fault);
        self.consumer.publish_state(State::Failed);
        if let Phase::Draining { done, .. } = std::mem::replace(&mut self.phase, Phase::Failed) {
            let _ = done.send(Err(self.consumer.left()));
        }
    }
}

fn fault(code: u32) -> Fault {
    Fault(c::nlf_error { code, ..c::nlf_error::default() })
}

fn failed(why: String) -> Failed {
    Failed { fault: fault(c::NLF_ERROR_FAILED), why }
}

/// Tells producers when the thread ends by a panic.
struct Guard<'a> {
    proxy: &'a mut Proxy,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let why = "internal error of the proxy thread, please report it";
        self.proxy.fail(failed(String::from(why)));
    }
}
