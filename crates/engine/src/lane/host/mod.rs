//! The host lane: user threads' access to the fabric, and the handover to the proxy lane.
//!
//! Operations on staged memory take messages and copies, which belong to the proxy lane, and reach
//! it through a bounded queue. Fences do not order the two routes with one another, so an operation
//! on one waits until the other has nothing in flight to its PE; programs hardly mix them.

pub mod handover;
mod outstanding;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use crate::error::EngineError;
use crate::group::CompletionId;
use crate::ids::Pe;
use crate::lane::Lane;
use crate::lane::host::handover::Outbox;
use crate::lane::idle::is_idle;
use crate::op::QueueEntry;
use crate::port::Port;
use crate::request::Request;

/// A lane that any thread may use at any time.
///
/// A thread that waits takes the lock for one progress iteration at a time, so other user threads,
/// and the proxy thread where it progresses this lane, get in between.
#[derive(Debug)]
pub struct HostLane<P: Port> {
    lane: Mutex<Lane<P>>,
    /// Whether the lane had work when the lock was last released. A hint that spares the proxy
    /// thread the lock while user threads do not communicate.
    has_work: AtomicBool,
    /// Takes operations on staged memory, and all for PEs that this rail does not lead to.
    outbox: Option<Outbox>,
    detours: HashSet<Pe>,
}

impl<P: Port> HostLane<P> {
    pub fn new(lane: Lane<P>) -> Self {
        let has_work = AtomicBool::new(false);
        Self { lane: Mutex::new(lane), has_work, outbox: None, detours: HashSet::new() }
    }

    /// Hands over operations on staged memory.
    #[must_use]
    pub fn with_outbox(self, outbox: Outbox) -> Self {
        Self { outbox: Some(outbox), ..self }
    }

    /// Hands over all operations for some PEs.
    #[must_use]
    pub fn with_detours(self, detours: impl IntoIterator<Item = Pe>) -> Self {
        Self { detours: detours.into_iter().collect(), ..self }
    }

    pub fn start(&self, request: &Request<'_>) -> Result<(), EngineError> {
        if self.hand_over(request, false)? {
            return Ok(());
        }
        self.wait(|lane| lane.offer(request, CompletionId::NONE))
    }

    pub fn complete(&self, request: &Request<'_>) -> Result<(), EngineError> {
        if self.hand_over(request, true)? {
            return Ok(());
        }
        let mut group = None;
        let mut is_offered = false;
        let done = self.wait(|lane| {
            group = group.or_else(|| lane.core.groups.start());
            // All groups are in use: tried again after an iteration.
            let Some(id) = group else { return Ok(false) };
            if !is_offered {
                is_offered = lane.offer(request, id)?;
            }
            if !is_offered || !lane.core.groups.is_done(id) {
                return Ok(false);
            }
            lane.core.reach_peer(request.pe).map(|_| true)
        });
        if let Some(id) = group {
            self.end_group(id);
        }
        done
    }

    pub fn fence(&self, pe: Pe) -> Result<(), EngineError> {
        self.lock().fence(pe)?;
        self.outbox.as_ref().map_or(Ok(()), |outbox| outbox.fence(pe))
    }

    /// Blocks until everything that user threads have issued to the PE so far is visible there, and
    /// everything read has landed. Does not wait for what other threads issue meanwhile.
    pub fn quiet(&self, pe: Pe) -> Result<(), EngineError> {
        self.quiet_lane(pe)?;
        self.outbox.as_ref().map_or(Ok(()), |outbox| outbox.quiet(pe))
    }

    fn quiet_lane(&self, pe: Pe) -> Result<(), EngineError> {
        if self.lock().is_quiet(pe)? {
            return Ok(());
        }
        let mut group = None;
        let done = self.wait(|lane| {
            lane.core.reach_peer(pe)?;
            if group.is_none() {
                // Without a group, also later operations to the PE are waited for.
                let Some(id) = lane.core.groups.start() else { return lane.is_quiet(pe) };
                lane.mark_quiet(pe, id);
                group = Some(id);
            }
            Ok(group.is_some_and(|id| lane.core.groups.is_done(id)))
        });
        if let Some(id) = group {
            self.end_group(id);
        }
        done?;
        // The group also ends when the peer fails.
        self.lock().core.reach_peer(pe).map(drop)
    }

    fn end_group(&self, id: CompletionId) {
        // A group that still counts work is given up: an error is the last act of a lane.
        let mut lane = self.lock();
        if lane.core.groups.is_done(id) {
            lane.core.groups.finish(id);
        }
    }

    /// Hands over an operation on staged memory. Returns false if the operation is none.
    fn hand_over(&self, request: &Request<'_>, wait: bool) -> Result<bool, EngineError> {
        let Some(outbox) = &self.outbox else { return Ok(false) };
        if request.len == 0 {
            return Ok(false);
        }
        if !self.detours.contains(&request.pe) && !self.lock().hands_over(request)? {
            // Fences do not order the two routes, so the other one has to be empty.
            outbox.quiet(request.pe)?;
            return Ok(false);
        }
        self.quiet_lane(request.pe)?;
        outbox.transfer(request, wait)?;
        Ok(true)
    }

    /// Returns true if [`HostLane::try_progress`] may have something to do.
    #[inline(always)]
    pub fn has_work(&self) -> bool {
        self.has_work.load(Ordering::Relaxed)
    }

    /// Makes one progress iteration if anything is in flight and the lane is free; never waits.
    #[inline]
    pub fn try_progress(&self) -> Result<bool, Box<EngineError>> {
        if !self.has_work() {
            return Ok(false);
        }
        let mut lane = match self.lane.try_lock() {
            Ok(lane) => lane,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(false),
        };
        let progressed = lane.progress();
        // A stale hint costs one lock or delays one iteration.
        self.has_work.store(lane.has_work(), Ordering::Relaxed);
        progressed
    }

    pub fn drain_before_close(&self, patience: Duration) -> bool {
        self.lock().drain_before_close(patience)
    }

    /// Calls `with` with the lane locked.
    pub fn with<T>(&self, with: impl FnOnce(&Lane<P>) -> T) -> T {
        with(&self.lock())
    }

    fn wait(
        &self,
        mut done: impl FnMut(&mut Lane<P>) -> Result<bool, EngineError>,
    ) -> Result<(), EngineError> {
        let mut idle = 0;
        loop {
            let mut lane = self.lock();
            let outcome = done(&mut lane);
            let is_over = !matches!(outcome, Ok(false));
            let busy = is_over || lane.iterate();
            self.has_work.store(lane.has_work(), Ordering::Relaxed);
            drop(lane);
            if is_over {
                return outcome.map(|_| ());
            }
            if is_idle(&mut idle, busy) {
                // The wait may depend on the proxy lane, which may have failed.
                if let Some(failed) = self.outbox.as_ref().and_then(Outbox::failure) {
                    return Err(failed.clone());
                }
                // Yields without the lock, so that another thread can take it.
                std::thread::yield_now();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Lane<P>> {
        self.lane.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<P: Port> Lane<P> {
    /// Ends a group once everything submitted to a peer so far is finished.
    pub(crate) fn mark_quiet(&mut self, pe: Pe, group: CompletionId) {
        self.core.groups.begin(group);
        let peer = self.core.peers.get_mut(pe);
        peer.queue.push_back(QueueEntry::Quiet(group));
        self.core.queued += 1;
        let peer = self.core.peers.get_mut(pe);
        peer.update_fast_path();
        self.core.make_ready(pe);
    }

    /// Returns true if an operation of a user thread is, or may be, on staged memory.
    pub(crate) fn hands_over(&mut self, request: &Request<'_>) -> Result<bool, EngineError> {
        let (remote, _) = request.remote()?;
        let crate::request::LocalSide::Memory(addr) = request.local else {
            return Ok(remote.is_staged());
        };
        let devices = self.core.regions.has_devices();
        let found = self.core.regions.lookup(addr, request.len);
        let is_unknown = found.fabric.is_none() && (devices || self.core.needs_desc);
        // Posting reports a region that ends too early, where the fabric needs one.
        let is_cut = self.core.needs_desc && found.cut.is_some() && !found.device;
        Ok(remote.is_staged() || is_unknown && !is_cut)
    }
}
