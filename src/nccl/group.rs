//! A group: the ranks of a communicator that are connected, which are the PEs of a job of its own.
//!
//! Whoever holds the group's lock may use the lane: the thread of NCCL's that starts operations and
//! asks about them, threads that register memory, and the helper. NCCL's thread finds it free, but
//! for the moments in which one of the others has it.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use log::{error, info, warn};
use nccl_abi::{HANDLE_BYTES, SIGNAL_ADD, SIGNAL_INC};

use super::error::NcclError;
use super::helper::Helper;
use super::listener::Listener;
use super::memory::{self, Region, Regions};
use super::plugin::Plugin;
use super::requests::{BlockId, Collected, RequestId, Requests, Starting};
use crate::bootstrap::gathering::Gathering;
use crate::bootstrap::{Bootstrap, TcpBootstrap};
use crate::job::heartbeat::{Heartbeat, Still};
use crate::job::{Connected, Job, JobError};
use crate::logging;
use crate::settings::Settings;
use engine::atomic::{Atomic, AtomicOp, Width};
use engine::error::EngineError;
use engine::ids::Pe;
use engine::lane::Lane;
use engine::patience::Wait;
use engine::port::{Access, Direction};
use engine::request::{AtomicRequest, LocalSide, PutSignalRequest, Request};
use engine::state::batch::Batch;
use engine::wire::handle::HandleBytes;
use ofi::OfiPort;

/// How long the end of a group waits for the other ranks, which may need its progress until they
/// have come to theirs. One that has died is not waited for.
const FAREWELL: Duration = Duration::from_secs(5);

/// How long the end of a job waits for who registers memory of it.
const LET_GO: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug)]
pub(super) struct Group {
    shared: Arc<Shared>,
    /// What collectives are under.
    bootstrap: Mutex<TcpBootstrap>,
    /// It ends before `shared` does.
    helper: Option<Helper>,
}

/// What the helper knows as well.
#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    /// The first failure, in words.
    failed: OnceLock<String>,
    /// How often NCCL has made progress. Changed under the lock.
    progress: AtomicU64,
    /// Peers' operations move without our progress.
    pub(super) is_automatic: bool,
    /// Who makes progress has a core.
    pub(super) has_core: bool,
}

/// What is under the lock.
#[derive(Debug)]
struct State {
    /// With the lane. None once the group has ended, or was aborted. Who registers memory keeps it
    /// for a moment.
    job: Option<Arc<Job>>,
    /// Looks whether anybody makes progress, as long as there is a job.
    heartbeat: Option<Heartbeat>,
    requests: Requests,
    regions: Regions,
    collected: Collected,
}

/// What a put or get moves: memory by its handle, and where in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) handle: *mut c_void,
    pub(super) offset: u64,
}

/// A signal, as NCCL names it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Signal {
    pub(super) word: Span,
    pub(super) value: u64,
    pub(super) operation: u32,
}

impl Group {
    /// Connects all ranks. Collective.
    pub(super) fn connect(
        plugin: &Plugin,
        listener: &Listener,
        center: &[u8; HANDLE_BYTES],
        (rank, ranks): (c_int, c_int),
    ) -> Result<Self, NcclError> {
        let shape = NcclError::Shape { rank, ranks };
        let (Ok(me), Ok(n)) = (u32::try_from(rank), u32::try_from(ranks)) else {
            return Err(shape);
        };
        if me >= n {
            return Err(shape);
        }
        let mut bootstrap = listener.meet(center, me, n)?;
        let job = Job::new(plugin.settings.clone())?;
        {
            let gathering = Gathering::new(&mut bootstrap)?;
            job.connect(&gathering, &plugin.chosen(listener.device)?)?;
        }
        let connected = job.connected()?;
        // SAFETY: nobody else knows the job yet.
        unsafe { connected.with_proxy(Lane::order_signals) };
        let (pulse, settings) = (Arc::clone(&connected.pulse), job.settings.clone());
        let is_automatic = connected.report.verdict.truly_automatic;
        let has_core = connected.has_core();
        let state = State {
            job: Some(Arc::new(job)),
            heartbeat: None,
            requests: Requests::new(n),
            regions: Regions::default(),
            collected: Collected::default(),
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            failed: OnceLock::new(),
            progress: AtomicU64::new(0),
            is_automatic,
            has_core,
        });
        let helper = Helper::start(Arc::clone(&shared))?;
        let Settings { warn_after, fail_after, .. } = settings;
        // It ends with the state that it is in, so it has no part of that.
        let of = Arc::downgrade(&shared);
        let failed = move |still: &Still| {
            of.upgrade().into_iter().for_each(|group| group.fail(&still.to_string()));
        };
        let heartbeat = Heartbeat::of(pulse, warn_after, fail_after, failed);
        shared.lock().heartbeat = Some(heartbeat);
        info!(target: logging::INIT, "a group of {n} ranks is connected, of which this is rank {me}");
        Ok(Self { shared, bootstrap: Mutex::new(bootstrap), helper: Some(helper) })
    }

    /// What all calls but those of collectives use.
    #[inline]
    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Registers memory on all ranks: the handle for NCCL. Collective.
    pub(super) fn register(
        &self,
        base: usize,
        len: usize,
        access: Access,
    ) -> Result<*mut c_void, NcclError> {
        let mut bootstrap = self.bootstrap.lock().unwrap_or_else(PoisonError::into_inner);
        let registered = self.shared.register_here(base, len, access);
        // The others may be long in coming. Nothing keeps the job meanwhile: an abort closes it.
        let agreed = memory::agree(&mut *bootstrap, (base, len), &registered);
        drop(bootstrap);
        match (registered, agreed) {
            (Ok(_), Ok(region)) => Ok(self.shared.lock().regions.add(region)),
            (Ok(handle), Err(failed)) => {
                // Without a job there are no registrations either.
                let job = self.shared.job().ok();
                let connected = job.as_deref().and_then(Job::connection);
                let released = connected.map(|connected| connected.regions.release(&handle));
                if let Some(Err(stays)) = released {
                    warn!(target: logging::MEM, "{len} bytes at {base:#x} stay registered: {stays}");
                }
                Err(failed)
            }
            (Err(failed), _) => Err(failed),
        }
    }

    /// Ends the registration of this rank's part. NCCL does so while operations are under way that
    /// touch the memory when it aborts, and frees the memory whatever it is told: then the group
    /// ends at once, with its endpoints, so that nothing comes late.
    ///
    /// # Errors
    /// There is no such memory; or it may still be written to, and must not be freed.
    pub(super) fn release(&self, handle: *mut c_void) -> Result<(), NcclError> {
        let shared = &self.shared;
        let region = shared.lock().regions.remove(handle)?;
        let Ok(job) = shared.job() else { return Ok(()) };
        let connected = job.connected()?;
        let Region { base, len, handle, .. } = *region;
        let release = || -> Result<(), EngineError> {
            shared.check_unused(base, len)?;
            connected.regions.release(&handle)
        };
        let is_in_use = |failed: &EngineError| matches!(failed, EngineError::InUse { .. });
        let released = match shared.failed.get() {
            None => connected.release_patiently(release, is_in_use),
            Some(_) => release(),
        };
        match released {
            Err(in_use) if is_in_use(&in_use) => {
                shared.fail(&in_use.to_string());
                drop(job);
                if shared.end() { Ok(()) } else { Err(in_use.into()) }
            }
            released => Ok(released?),
        }
    }

    /// Ends the group. The others are waited for, for a while, unless something has failed: they
    /// may need this rank's progress.
    pub(super) fn close(mut self) {
        if self.shared.failed.get().is_none() {
            let bootstrap = self.bootstrap.get_mut().unwrap_or_else(PoisonError::into_inner);
            bootstrap.set_patience(FAREWELL);
            if let Err(gone) = bootstrap.barrier() {
                info!(target: logging::INIT, "the end of a group without all ranks: {gone}");
            }
        }
        self.helper = None;
        let _is_closed = self.shared.end();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic of a thread that had it has told NCCL that the communicator is over.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The job, for who registers memory.
    fn job(&self) -> Result<Arc<Job>, NcclError> {
        self.lock().job.clone().ok_or_else(|| self.over())
    }

    /// Registers memory of this rank.
    fn register_here(
        &self,
        base: usize,
        len: usize,
        access: Access,
    ) -> Result<HandleBytes, NcclError> {
        let job = self.job()?;
        let connected = job.connected()?;
        let Connected { consistency, regions, .. } = connected;
        Ok(consistency.register(regions, base, len, access)?)
    }

    /// Why there is no job any more.
    #[cold]
    fn over(&self) -> NcclError {
        NcclError::failed(self.failure().unwrap_or("it has ended"))
    }

    /// Ends the job: closes its endpoints, after what is under way where that ends soon. Whether
    /// they are closed: another thread may be registering memory.
    #[must_use]
    fn end(&self) -> bool {
        let (job, heartbeat) = {
            let mut state = self.lock();
            (state.job.take(), state.heartbeat.take())
        };
        drop(heartbeat);
        let Some(mut job) = job else { return true };
        // SAFETY: the lane is used by who finds the job under the lock, and there it is no more.
        unsafe {
            job.tell_counters();
            job.drain_before_close();
        }
        let mut wait = Wait::new();
        while let Err(shared) = Arc::try_unwrap(job) {
            if wait.left_of(LET_GO).is_none() {
                let text = "a registration of memory keeps the endpoints of a group that has ended";
                warn!(target: logging::MEM, "{text}");
                return false;
            }
            std::thread::yield_now();
            job = shared;
        }
        true
    }

    /// That nothing under way touches this memory.
    fn check_unused(&self, base: usize, len: usize) -> Result<(), EngineError> {
        let state = self.lock();
        let connected =
            state.job.as_deref().and_then(Job::connection).ok_or(EngineError::Abandoned)?;
        // SAFETY: the lock is held, which every use of the lane is under.
        unsafe { connected.with_proxy(|lane| lane.check_unused(base, len)) }
    }

    /// Whether something has failed: what.
    pub(super) fn failure(&self) -> Option<&str> {
        self.failed.get().map(String::as_str)
    }

    /// Notes what has failed, and says so the first time.
    #[cold]
    fn fail(&self, why: &str) {
        if self.failed.set(why.to_owned()).is_ok() {
            error!(target: logging::TRANSPORT, "the group has failed: {why}");
        }
    }

    #[inline]
    fn check(&self) -> Result<(), NcclError> {
        match self.failed.get() {
            None => Ok(()),
            Some(why) => Err(NcclError::failed(why)),
        }
    }

    /// Runs `start` with a new request, whose operations it starts.
    #[inline]
    fn begin(
        &self,
        starting: Starting,
        start: impl FnOnce(&mut Lane<OfiPort>, &Regions, Batch) -> Result<(), NcclError>,
    ) -> Result<RequestId, NcclError> {
        self.check()?;
        let mut state = self.lock();
        state.collected.fresh += 1;
        let State { job, requests, regions, .. } = &mut *state;
        let Some(connected) = job.as_deref().and_then(Job::connection) else {
            return Err(self.over());
        };
        let begun = |lane: &mut Lane<OfiPort>| {
            let (request, batch) = requests.begin(lane, starting);
            let before = lane.enter_batch(batch);
            let started = start(lane, regions, batch);
            lane.enter_batch(before);
            match started {
                Ok(()) => Ok(request),
                Err(refused) => {
                    requests.is_done(lane, request);
                    // What is wrong with a call alone is no failure of the group.
                    if let Some(failed) = lane.failure() {
                        self.fail(&failed.to_string());
                    }
                    Err(refused)
                }
            }
        };
        // SAFETY: the lock is held, which every use of the lane is under.
        unsafe { connected.with_proxy(begun) }
    }

    /// Starts a put or a get of `len` bytes. If `more` operations follow at once, it may share a
    /// doorbell with them.
    pub(super) fn transfer(
        &self,
        direction: Direction,
        rank: u32,
        (local, remote): (Span, Span),
        len: usize,
        more: bool,
    ) -> Result<RequestId, NcclError> {
        let starting = match direction {
            Direction::Write => Starting::Put { rank, len },
            Direction::Read => Starting::Other,
        };
        self.begin(starting, |lane, regions, batch| {
            let request = transfer(regions, direction, rank, local, remote, len)?;
            match lane.start_in_order_fast(request, batch) {
                Ok(()) => Ok(()),
                Err(rest) => Ok(lane.start_rest(rest, more)?),
            }
        })
    }

    /// Starts a put of `len` bytes, which may be none, with a signal that comes behind them and
    /// behind all before.
    pub(super) fn put_signal(
        &self,
        rank: u32,
        (local, remote): (Span, Span),
        len: usize,
        signal: &Signal,
    ) -> Result<RequestId, NcclError> {
        self.begin(Starting::Other, |lane, regions, batch| {
            let signal = atomic(regions, rank, signal)?;
            if len == 0 {
                return match lane.atomic_in_order_fast(&signal, batch) {
                    true => Ok(()),
                    false => Ok(lane.atomic(&signal)?),
                };
            }
            let part = transfer(regions, Direction::Write, rank, local, remote, len)?;
            if lane.put_signal_in_order_fast(&part, &signal, batch) {
                return Ok(());
            }
            Ok(lane.put_signal(&PutSignalRequest { parts: &[part], signal })?)
        })
    }

    /// Whether a request is done.
    pub(super) fn is_done(&self, request: RequestId) -> Result<bool, NcclError> {
        self.check()?;
        let mut state = self.lock();
        let State { job, requests, .. } = &mut *state;
        let Some(connected) = job.as_deref().and_then(Job::connection) else {
            return Err(self.over());
        };
        let is_done = |lane: &mut Lane<OfiPort>| match lane.failure() {
            Some(failed) => Err(self.lane_failed(failed)),
            None => Ok(requests.is_done(lane, request)),
        };
        // SAFETY: the lock is held, which every use of the lane is under.
        unsafe { connected.with_proxy(is_done) }
    }

    /// Moves what is under way, for NCCL, after a pass over a block; or leaves it for the next
    /// call, while each pass brings more.
    pub(super) fn progress(&self, block: BlockId) -> Result<(), NcclError> {
        self.check()?;
        let mut state = self.lock();
        let made = self.progress.load(Ordering::Relaxed);
        self.progress.store(made.wrapping_add(1), Ordering::Relaxed);
        if state.collected.goes_on(block) {
            return Ok(());
        }
        self.iterate(state).map(|_| ())
    }

    /// Moves what is under way, for the helper, unless somebody else has the lane. Whether there
    /// was anything to do.
    pub(super) fn help(&self) -> bool {
        let Ok(state) = self.state.try_lock() else { return true };
        // Who asks for something is told of a failure.
        self.iterate(state).unwrap_or(false)
    }

    fn iterate(&self, mut state: MutexGuard<'_, State>) -> Result<bool, NcclError> {
        state.collected = Collected::default();
        let State { job, requests, .. } = &mut *state;
        let Some(connected) = job.as_deref().and_then(Job::connection) else {
            return Err(self.over());
        };
        // SAFETY: the lock is held, which every use of the lane is under.
        let moved = unsafe { connected.iterate() };
        let asked = |lane: &mut Lane<OfiPort>| {
            requests.iterated(lane);
            lane.failure().cloned()
        };
        // SAFETY: as before.
        let failure = unsafe { connected.with_proxy(asked) };
        drop(state);
        match (moved, failure) {
            (Ok(moved), None) => Ok(moved),
            (Err(failed), _) | (Ok(_), Some(failed)) => Err(self.lane_failed(&failed)),
        }
    }

    #[cold]
    fn lane_failed(&self, failed: &EngineError) -> NcclError {
        let why = failed.to_string();
        self.fail(&why);
        NcclError::failed(&why)
    }

    /// How often NCCL has made progress.
    pub(super) fn progress_made(&self) -> u64 {
        self.progress.load(Ordering::Relaxed)
    }

    /// Whether something that NCCL has started is not known to be done.
    pub(super) fn has_open(&self) -> bool {
        self.state.try_lock().map_or(true, |state| !state.requests.is_empty())
    }

    /// Answers what is asked of this job's counters.
    pub(super) fn answer(&self) {
        let Ok(state) = self.state.try_lock() else { return };
        if let Some(job) = state.job.as_deref() {
            // SAFETY: the lock is held, which every use of the lane is under.
            unsafe { job.answer() };
        }
    }

    /// Makes what gets have brought visible to the device.
    pub(super) fn flush(&self) -> Result<(), NcclError> {
        self.check()?;
        let state = self.lock();
        let Some(job) = state.job.as_deref() else { return Err(self.over()) };
        let connected = job.connected()?;
        // SAFETY: the lock is held, which every use of the lane is under.
        let flushed: Result<(), JobError> = unsafe { connected.enforce_consistency() };
        Ok(flushed?)
    }
}

fn transfer(
    regions: &Regions,
    direction: Direction,
    rank: u32,
    local: Span,
    remote: Span,
    len: usize,
) -> Result<Request<'_>, NcclError> {
    let bytes = len as u64;
    let (ours, theirs) = match direction {
        Direction::Write => ("the source", "the target"),
        Direction::Read => ("the local memory", "the remote memory"),
    };
    let from = regions.get(ours, local.handle)?.local(ours, local.offset, bytes)?;
    let to = regions.get(theirs, remote.handle)?;
    let (remote_addr, remote_handle) = to.remote(theirs, rank, remote.offset, bytes)?;
    let local = LocalSide::Memory(from);
    Ok(Request { direction, pe: Pe(rank), remote_handle, remote_addr, local, len })
}

fn atomic<'a>(
    regions: &'a Regions,
    rank: u32,
    signal: &Signal,
) -> Result<AtomicRequest<'a>, NcclError> {
    const WHAT: &str = "the signal's memory";
    let operand = match signal.operation {
        SIGNAL_INC => 1,
        SIGNAL_ADD => signal.value,
        operation => return Err(NcclError::NoOperation { operation }),
    };
    let Span { handle, offset } = signal.word;
    let word = regions.get(WHAT, handle)?;
    let (remote_addr, remote_handle) =
        word.remote(WHAT, rank, offset, Width::Eight.bytes() as u64)?;
    let (op, width) = (AtomicOp::SignalAdd, Width::Eight);
    let atomic = Atomic { op, width, float: false, operand, compare: 0 };
    Ok(AtomicRequest { pe: Pe(rank), remote_handle, remote_addr, atomic, result: None })
}
