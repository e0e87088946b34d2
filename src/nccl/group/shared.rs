//! Shared state of the threads of a group: lane (under a lock), registered memory, failure.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::nccl::abi::{SIGNAL_ADD, SIGNAL_INC};
use log::{error, warn};

use crate::job::heartbeat::Heartbeat;
use crate::job::{Job, JobError};
use crate::logging;
use crate::nccl::error::NcclError;
use crate::nccl::memory::Regions;
use crate::nccl::requests::{Ended, RequestId, Requests};
use engine::atomic::{Atomic, AtomicOp, Width};
use engine::error::EngineError;
use engine::ids::Pe;
use engine::lane::Lane;
use engine::port::{Access, Direction};
use engine::request::{AtomicRequest, LocalSide, PutSignalRequest, Request};
use engine::thread_wait::Wait;
use engine::wire::handle::HandleBytes;
use ofi::OfiPort;

/// Greatest time for which passes are waited for.
const MAX_COLLECTING: Duration = Duration::from_micros(50);

const LET_GO: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(in crate::nccl) struct Shared {
    state: Mutex<State>,
    failed: OnceLock<String>,
    ended: Ended,
    /// Count of NCCL's progress calls. Changed under the lock.
    progress: AtomicU64,
    pub(super) has_core: bool,
}

/// State under the lock.
#[derive(Debug)]
pub(super) struct State {
    /// The job with the lane; None after the end. Threads that register memory hold a clone.
    job: Option<Arc<Job>>,
    /// Checks that some thread makes progress, as long as there is a job.
    pub(super) heartbeat: Option<Heartbeat>,
    requests: Requests,
    pub(super) regions: Regions,
    passes: Passes,
}

/// Passes of NCCL's proxy thread that bring operations, for which the lane's iteration waits: NCCL
/// hands over one operation of each queue in a pass, and an iteration that stores a word of a
/// device, or starts a copy, takes longer than many passes.
#[derive(Debug, Default)]
struct Passes {
    /// Whether an operation was started since the last call for progress.
    started: bool,
    /// Start of the first of them, and the block of the latest.
    since: Option<(Instant, BlockId)>,
    /// Twice what the last iteration took that moved something.
    limit: Duration,
}

impl Passes {
    /// Returns true if the lane waits for the next pass, after one over a block.
    fn collect(&mut self, block: BlockId, now: impl FnOnce() -> Instant) -> bool {
        let is_fresh = std::mem::take(&mut self.started);
        if !is_fresh && self.since.is_none_or(|(_, latest)| latest == block) {
            // This pass has brought no operation.
            self.since = None;
            return false;
        }
        let now = now();
        let (since, latest) = self.since.unwrap_or((now, block));
        // Passes over other blocks do not count.
        self.since = Some((since, if is_fresh { block } else { latest }));
        now.duration_since(since) < self.limit
    }

    /// Begins anew after an iteration. `took`: the time of one that moved something.
    fn iterated(&mut self, took: Option<Duration>) {
        self.since = None;
        self.limit = took.map_or(self.limit, |took| MAX_COLLECTING.min(2 * took));
    }
}

/// Names a block of contexts of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::nccl) struct BlockId(pub(in crate::nccl) usize);

/// Memory of a put or get: a handle and an offset in bytes.
#[derive(Clone, Copy, Debug)]
pub(in crate::nccl) struct Span {
    pub(in crate::nccl) handle: *mut c_void,
    pub(in crate::nccl) offset: u64,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::nccl) struct Signal {
    pub(in crate::nccl) word: Span,
    pub(in crate::nccl) value: u64,
    pub(in crate::nccl) operation: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Helped {
    Moved,
    /// `waits`: NCCL waits for operations that move with iterations alone.
    Nothing {
        waits: bool,
    },
    /// Another thread has the lane.
    Taken,
}

impl Shared {
    pub(super) fn new(job: Job, ranks: u32, has_core: bool) -> Self {
        let state = State {
            job: Some(Arc::new(job)),
            heartbeat: None,
            requests: Requests::new(ranks),
            regions: Regions::default(),
            passes: Passes::default(),
        };
        Self {
            state: Mutex::new(state),
            failed: OnceLock::new(),
            ended: Ended::new(),
            progress: AtomicU64::new(0),
            has_core,
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // A panic under the lock has been reported to NCCL as a failure of the communicator.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn job(&self) -> Result<Arc<Job>, NcclError> {
        self.lock().job.clone().ok_or_else(|| self.over())
    }

    pub(super) fn register_here(
        &self,
        base: usize,
        len: usize,
        access: Access,
    ) -> Result<HandleBytes, NcclError> {
        let job = self.job()?;
        Ok(job.connected()?.regions.register(base, len, access).map_err(JobError::from)?)
    }

    #[cold]
    fn over(&self) -> NcclError {
        NcclError::Failed { why: self.failure().unwrap_or("it has ended").to_owned() }
    }

    /// Runs a function with the lane of a job that is under the lock.
    #[inline]
    fn with_lane<T>(
        &self,
        job: Option<&Job>,
        run: impl FnOnce(&mut Lane<OfiPort>) -> T,
    ) -> Result<T, NcclError> {
        let connected = job.and_then(Job::connection).ok_or_else(|| self.over())?;
        // SAFETY: the job is borrowed from the locked state, as for every use of the lane.
        Ok(unsafe { connected.with_proxy(run) })
    }

    /// Ends the job: closes its endpoints, after operations in flight if they end soon. Returns
    /// false if they are still open, as another thread is registering memory.
    #[must_use]
    pub(super) fn end(&self) -> bool {
        let (job, heartbeat) = {
            let mut state = self.lock();
            (state.job.take(), state.heartbeat.take())
        };
        drop(heartbeat);
        let Some(mut job) = job else { return true };
        // SAFETY: the lane is used only through the job in the locked state, which is gone.
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

    pub(super) fn check_unused(&self, base: usize, len: usize) -> Result<(), EngineError> {
        let state = self.lock();
        let connected =
            state.job.as_deref().and_then(Job::connection).ok_or(EngineError::Abandoned)?;
        // SAFETY: the lock is held, as for every use of the lane.
        unsafe { connected.with_proxy(|lane| lane.check_unused(base, len)) }
    }

    pub(in crate::nccl) fn failure(&self) -> Option<&str> {
        self.failed.get().map(String::as_str)
    }

    /// Sets the failure, and logs the first one.
    #[cold]
    pub(super) fn fail(&self, why: &str) {
        if self.failed.set(why.to_owned()).is_ok() {
            error!(target: logging::TRANSPORT, "the group has failed: {why}");
        }
    }

    #[inline]
    fn check(&self) -> Result<(), NcclError> {
        match self.failed.get() {
            None => Ok(()),
            Some(why) => Err(NcclError::Failed { why: why.clone() }),
        }
    }

    #[inline]
    fn begin(
        &self,
        rank: u32,
        what: (Direction, usize),
        start: impl FnOnce(&mut Lane<OfiPort>, &Regions) -> Result<(), NcclError>,
    ) -> Result<RequestId, NcclError> {
        self.check()?;
        let mut state = self.lock();
        let State { job, requests, regions, passes, .. } = &mut *state;
        passes.started = true;
        self.with_lane(job.as_deref(), |lane| {
            let (request, batch) = requests.begin(lane, rank, what);
            let before = lane.enter_batch(batch);
            let started = start(lane, regions);
            lane.enter_batch(before);
            match started {
                Ok(()) => Ok(request),
                Err(refused) => {
                    requests.take_back(lane, request, &self.ended);
                    // An invalid argument is no failure of the group.
                    if let Some(failed) = lane.failure() {
                        self.fail(&failed.to_string());
                    }
                    Err(refused)
                }
            }
        })?
    }

    pub(in crate::nccl) fn transfer(
        &self,
        direction: Direction,
        rank: u32,
        (local, remote): (Span, Span),
        len: usize,
    ) -> Result<RequestId, NcclError> {
        self.begin(rank, (direction, len), |lane, regions| {
            let request = transfer(regions, direction, rank, local, remote, len)?;
            Ok(lane.start(&request)?)
        })
    }

    /// Starts a put of `len` bytes, possibly 0, and a signal ordered after it and all earlier puts.
    pub(in crate::nccl) fn put_signal(
        &self,
        rank: u32,
        (local, remote): (Span, Span),
        len: usize,
        signal: &Signal,
    ) -> Result<RequestId, NcclError> {
        self.begin(rank, (Direction::Write, len), |lane, regions| {
            let signal = atomic(regions, rank, signal)?;
            if len == 0 {
                return Ok(lane.atomic(&signal)?);
            }
            let part = transfer(regions, Direction::Write, rank, local, remote, len)?;
            if lane.try_put_signal(&part, &signal) {
                return Ok(());
            }
            Ok(lane.put_signal(&PutSignalRequest { parts: &[part], signal })?)
        })
    }

    /// True if a request is complete. Makes progress if NCCL tests it repeatedly without calling
    /// for progress, as it does when it flushes.
    #[inline]
    pub(in crate::nccl) fn is_done(&self, request: RequestId) -> Result<bool, NcclError> {
        self.check()?;
        let is_done = match self.ended.is_done(request) {
            Some(false) if !self.ended.is_tested_again(request) => return Ok(false),
            Some(true) => true,
            known => self.is_done_by_lane(request, known)?,
        };
        if is_done {
            self.ended.told(request);
        }
        Ok(is_done)
    }

    #[inline(never)]
    fn is_done_by_lane(&self, request: RequestId, known: Option<bool>) -> Result<bool, NcclError> {
        let mut state = self.lock();
        if known.is_none() {
            let is_over = self.is_over(&mut state, request)?;
            if is_over || !self.ended.is_tested_again(request) {
                return Ok(is_over);
            }
        }
        self.count_progress();
        self.iterate(&mut state)?;
        self.is_over(&mut state, request)
    }

    fn is_over(&self, state: &mut State, request: RequestId) -> Result<bool, NcclError> {
        let State { job, requests, .. } = state;
        let quiet = |lane: &mut Lane<OfiPort>| requests.is_quiet(lane, request);
        self.ended.is_done(request).map_or_else(|| self.with_lane(job.as_deref(), quiet), Ok)
    }

    /// Makes progress for NCCL, after a pass over a block of contexts. Defers it to the next pass
    /// while passes bring operations, for twice the time of an iteration at most.
    pub(in crate::nccl) fn progress(&self, block: BlockId) -> Result<(), NcclError> {
        self.check()?;
        self.ended.progress_called();
        let mut state = self.lock();
        self.count_progress();
        if state.passes.collect(block, Instant::now) {
            return Ok(());
        }
        self.iterate(&mut state).map(drop)
    }

    /// Counts NCCL's progress for the helper. Under the lock.
    fn count_progress(&self) {
        let made = self.progress.load(Ordering::Relaxed);
        self.progress.store(made.wrapping_add(1), Ordering::Relaxed);
    }

    /// Makes progress for the helper, unless another thread has the lane.
    pub(super) fn help(&self) -> Helped {
        let Ok(mut state) = self.state.try_lock() else { return Helped::Taken };
        // Calls of NCCL report a failure.
        match self.iterate(&mut state) {
            Ok(true) => Helped::Moved,
            Ok(false) | Err(_) => Helped::Nothing { waits: !state.requests.is_empty() },
        }
    }

    fn iterate(&self, state: &mut State) -> Result<bool, NcclError> {
        let State { job, requests, passes, .. } = state;
        let Some(connected) = job.as_deref().and_then(Job::connection) else {
            return Err(self.over());
        };
        let begun = Instant::now();
        // SAFETY: the lock is held, which every use of the lane is under.
        let moved = unsafe { connected.iterate() };
        passes.iterated(matches!(moved, Ok(true)).then(|| begun.elapsed()));
        let failure = self.with_lane(job.as_deref(), |lane| {
            requests.iterated(lane, &self.ended);
            lane.failure().cloned()
        })?;
        match (moved, failure) {
            (Ok(moved), None) => Ok(moved),
            (Ok(_), Some(failed)) => Err(self.lane_failed(&failed)),
            (Err(failed), _) => Err(self.lane_failed(&failed)),
        }
    }

    #[cold]
    fn lane_failed(&self, failed: &EngineError) -> NcclError {
        let why = failed.to_string();
        self.fail(&why);
        NcclError::Failed { why }
    }

    pub(super) fn progress_made(&self) -> u64 {
        self.progress.load(Ordering::Relaxed)
    }

    /// Reports this job's counters, unless another thread has the lock.
    pub(super) fn tell_counters(&self) {
        let Ok(state) = self.state.try_lock() else { return };
        if let Some(job) = state.job.as_deref() {
            // SAFETY: the lock is held, which every use of the lane is under.
            unsafe { job.tell_counters() };
        }
    }

    /// Makes the data of completed gets visible to the device.
    pub(in crate::nccl) fn flush(&self) -> Result<(), NcclError> {
        self.check()?;
        let state = self.lock();
        let Some(job) = state.job.as_deref() else { return Err(self.over()) };
        Ok(job.connected()?.enforce_consistency()?)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::tests::{connect, settings};

    #[test]
    fn tests_take_no_lock() {
        connect(1, &settings(1, &[]), None, |pe| {
            let shared = Shared::new(pe.job.unwrap(), 1, true);
            let request = shared.begin(0, (Direction::Write, 8), |_, _| Ok(())).unwrap();
            let taken = shared.lock();
            assert!(!shared.is_done(request).unwrap(), "no iteration has told of it");
            drop(taken);
            assert!(shared.is_done(request).unwrap(), "NCCL waits for it");
        });
    }

    #[test]
    fn passes_wait_for_two_iterations() {
        let (one, other, start) = (BlockId(1), BlockId(2), Instant::now());
        let at = |us| move || start + Duration::from_micros(us);
        let mut passes = Passes::default();
        let pass = |passes: &mut Passes, block, started, us| {
            passes.started = started;
            passes.collect(block, at(us))
        };
        assert!(!pass(&mut passes, one, true, 0), "nothing is known of iterations");
        passes.iterated(Some(Duration::from_micros(10)));
        assert!(pass(&mut passes, one, true, 1) && pass(&mut passes, one, true, 20));
        assert!(pass(&mut passes, other, false, 20), "another block's pass");
        assert!(!pass(&mut passes, one, true, 21), "the first has waited for 20 us");
        passes.iterated(None);
        assert!(pass(&mut passes, one, true, 30));
        assert!(!pass(&mut passes, one, false, 31), "it brings nothing");
        passes.iterated(Some(Duration::from_millis(1)));
        assert!(pass(&mut passes, one, true, 50) && pass(&mut passes, one, true, 99));
        assert!(!pass(&mut passes, one, true, 100), "50 us at most");
    }
}
