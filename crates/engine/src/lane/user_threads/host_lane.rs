//! The host lane: user threads, one at a time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use crate::error::EngineError;
use crate::ids::Pe;
use crate::lane::Lane;
use crate::lane::idle::is_idle;
use crate::lane::user_threads::gates::{Gates, Part};
use crate::lane::user_threads::handoff::Outbox;
use crate::port::Port;
use crate::recovery::fallback_routes::FallbackRoutes;
use crate::request::Request;

/// A lane that any thread may use.
///
/// A thread that waits takes the lock for one progress iteration at a time, so other user threads,
/// and the proxy thread where it progresses this lane, get in between.
#[derive(Debug)]
pub struct HostLane<P: Port> {
    lane: Mutex<Lane<P>>,
    /// Whether the lane had segments under way when the lock was last given back. Only a hint: it
    /// spares the proxy thread the lock while user threads are not communicating.
    has_work: AtomicBool,
    outbox: Option<Outbox>,
    fallback_routes: Option<Arc<FallbackRoutes>>,
    /// Quiets that wait, and what waits behind them.
    gates: Gates,
}

impl<P: Port> HostLane<P> {
    /// A lane for user threads.
    pub fn new(lane: Lane<P>) -> Self {
        Self {
            lane: Mutex::new(lane),
            has_work: AtomicBool::new(false),
            outbox: None,
            fallback_routes: None,
            gates: Gates::default(),
        }
    }

    /// The lane, handing operations on staged memory over.
    #[must_use]
    pub fn with_outbox(self, outbox: Outbox) -> Self {
        Self { outbox: Some(outbox), ..self }
    }

    /// The lane, handing over all operations for those PEs. Needs an outbox.
    #[must_use]
    pub fn with_fallback_routes(self, fallback_routes: Arc<FallbackRoutes>) -> Self {
        Self { fallback_routes: Some(fallback_routes), ..self }
    }

    /// As [`Lane::start`].
    ///
    /// # Errors
    /// As [`Lane::start`].
    pub fn start(&self, request: &Request<'_>) -> Result<(), EngineError> {
        self.pass_gate(request.pe)?;
        if self.hand_over(request, false)? {
            return Ok(());
        }
        let mut sent = 0;
        self.wait(|lane| {
            lane.submit(request, &mut sent, crate::state::operation::OpId::NONE)?;
            if sent == request.len {
                return Ok(true);
            }
            lane.room_or_failure().map(|()| false)
        })
    }

    /// As [`Lane::complete`].
    ///
    /// # Errors
    /// As [`Lane::complete`].
    pub fn complete(&self, request: &Request<'_>) -> Result<(), EngineError> {
        self.pass_gate(request.pe)?;
        if self.hand_over(request, true)? {
            return Ok(());
        }
        let op = self.lock().begin_op();
        let mut sent = 0;
        self.wait(|lane| lane.advance_op(request, &mut sent, op))
    }

    /// As [`Lane::fence`].
    ///
    /// # Errors
    /// As [`Lane::fence`].
    pub fn fence(&self, pe: Pe) -> Result<(), EngineError> {
        self.lock().fence(pe)?;
        self.outbox.as_ref().map_or(Ok(()), |outbox| outbox.fence(pe))
    }

    /// As [`Lane::quiet`].
    ///
    /// # Errors
    /// As [`Lane::quiet`].
    pub fn quiet(&self, pe: Pe) -> Result<(), EngineError> {
        let handed_over = self.outbox.as_ref().is_some_and(|outbox| !outbox.is_quiet(pe));
        if !handed_over && self.lock().is_quiet(pe)? {
            return self.outbox.as_ref().map_or(Ok(()), |outbox| outbox.quiet(pe));
        }
        let quiet = self.gates.shut(pe);
        self.wait(|lane| Ok(quiet.is_over(Part::Lane, lane.is_quiet(pe)?)))?;
        let over = |now| quiet.is_over(Part::HandedOver, now);
        match &self.outbox {
            Some(outbox) => outbox.quiet_when(pe, over),
            None => {
                over(true);
                Ok(())
            }
        }
    }

    /// Waits behind the quiets of other threads that wait for the PE.
    #[inline]
    fn pass_gate(&self, pe: Pe) -> Result<(), EngineError> {
        match self.gates.before(pe) {
            None => Ok(()),
            Some(before) => self.wait(|_| Ok(self.gates.is_open(pe, before))),
        }
    }

    /// Hands an operation over if that is the way it goes. Whether it was.
    ///
    /// The two ways are not ordered with one another by fences, so the one waits until nothing is
    /// under way to the PE in the other. Programs hardly mix them.
    fn hand_over(&self, request: &Request<'_>, wait: bool) -> Result<bool, EngineError> {
        let Some(outbox) = &self.outbox else { return Ok(false) };
        if request.len == 0 {
            return Ok(false);
        }
        let fallback_route = self
            .fallback_routes
            .as_deref()
            .is_some_and(|fallback_routes| fallback_routes.has(request.pe));
        if !self.lock().hands_over(request, fallback_route)? {
            outbox.quiet(request.pe)?;
            return Ok(false);
        }
        if !self.lock().is_quiet(request.pe)? {
            let quiet = self.gates.shut(request.pe);
            self.wait(|lane| Ok(quiet.is_over(Part::Lane, lane.is_quiet(request.pe)?)))?;
        }
        outbox.transfer(request, wait)?;
        Ok(true)
    }

    /// Whether [`HostLane::try_progress`] may have something to do.
    #[inline(always)]
    pub fn has_work(&self) -> bool {
        self.has_work.load(Ordering::Relaxed)
    }

    /// One progress iteration, if there is anything under way and no other thread is at it. For the
    /// proxy thread: it never waits.
    ///
    /// # Errors
    /// As [`Lane::progress`].
    #[inline]
    pub fn try_progress(&self) -> Result<bool, Box<EngineError>> {
        if !self.has_work.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let mut lane = match self.lane.try_lock() {
            Ok(lane) => lane,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(false),
        };
        let progressed = lane.progress();
        self.has_work.store(lane.has_work(), Ordering::Relaxed);
        progressed
    }

    /// As [`Lane::drain_before_close`].
    pub fn drain_before_close(&self, patience: Duration) -> bool {
        self.lock().drain_before_close(patience)
    }

    /// Runs `with` on the lane.
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
            let over = !matches!(outcome, Ok(false));
            let busy = over || lane.iterate();
            self.has_work.store(lane.has_work(), Ordering::Relaxed);
            drop(lane);
            if over {
                return outcome.map(|_| ());
            }
            if is_idle(&mut idle, busy) {
                // It may wait for a peer that has ended with this PE's proxy lane, or for the lane.
                if let Some(failed) = self.outbox.as_ref().and_then(Outbox::failure) {
                    return Err(failed.clone());
                }
                // Without the lock, so that another thread can take it meanwhile.
                std::thread::yield_now();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Lane<P>> {
        self.lane.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
