//! A PE that is connected: its lanes, its memory, and what monitors both.

use std::cell::UnsafeCell;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::error::JobError;
use super::memory::ProcessMemory;
use super::memory::consistency::Consistency;
use super::yielding::Yielding;
use engine::error::EngineError;
use engine::lane::host::HostLane;
use engine::lane::{Lane, Pulse};
use engine::patience::Wait;
use engine::regions::RegionTable;
use ofi::{OfiPort, Report};

/// How long a release waits for operations that have failed.
const RELEASE_PATIENCE: Duration = Duration::from_secs(1);

/// State of a job whose PEs are connected.
///
/// The fields are dropped in this order: registrations go before the endpoints they may be bound
/// to.
pub(crate) struct Connected {
    pub(crate) regions: Arc<RegionTable<ProcessMemory>>,
    /// The lane of user threads.
    pub(crate) host: HostLane<OfiPort>,
    proxy: UnsafeCell<ProxyLane>,
    pub(crate) report: Report,
    /// Most rails of a PE of the job.
    pub(crate) most_rails: usize,
    /// Whether the proxy thread has a core of its own.
    pub(crate) has_core: bool,
    /// Has memory that is registered, so it goes after all that uses that.
    pub(crate) consistency: Consistency,
    /// The proxy thread's iterations.
    pub(crate) pulse: Arc<Pulse>,
}

// SAFETY: `regions`, `host`, `report` and `consistency` may be used from any thread. `proxy` is
// touched only in `with_proxy` and other unsafe functions of this type, whose callers vouch for
// being the only thread there.
unsafe impl Sync for Connected {}

/// The proxy thread's lane, and how its loop behaves.
#[derive(Debug)]
struct ProxyLane {
    lane: Lane<OfiPort>,
    yielding: Yielding,
}

impl Connected {
    pub(crate) fn new(
        regions: Arc<RegionTable<ProcessMemory>>,
        host: HostLane<OfiPort>,
        proxy: Lane<OfiPort>,
        yielding: Yielding,
        (report, most_rails): (Report, usize),
        consistency: Consistency,
    ) -> Self {
        let has_core = yielding.has_core();
        let pulse = proxy.pulse();
        let proxy = UnsafeCell::new(ProxyLane { lane: proxy, yielding });
        Self { regions, host, proxy, report, most_rails, has_core, consistency, pulse }
    }

    /// Has memory released, and waits a while where operations that have failed may touch it still:
    /// peers that live end them soon.
    pub(crate) fn release_patiently<E>(
        &self,
        mut release: impl FnMut() -> Result<(), E>,
        is_in_use: impl Fn(&E) -> bool,
    ) -> Result<(), E> {
        let mut wait = Wait::new();
        loop {
            match release() {
                Err(failed) if is_in_use(&failed) && wait.left_of(RELEASE_PATIENCE).is_some() => {}
                done => return done,
            }
            // The proxy thread may leave this lane alone. What fails on it is told to who waits for
            // that.
            let _ = self.host.try_progress();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Makes what NICs have written to device memory visible to the device. For any thread.
    pub(crate) fn enforce_consistency(&self) -> Result<(), JobError> {
        Ok(self.consistency.enforce(self.regions.memory().reaches_devices())?)
    }

    /// Runs `with` on the proxy lane.
    ///
    /// # Safety
    /// No other thread is in this function, or in [`Connected::progress`], on the same value.
    #[inline]
    pub(crate) unsafe fn with_proxy<T>(&self, with: impl FnOnce(&mut Lane<OfiPort>) -> T) -> T {
        // SAFETY: the caller vouches for no other reference being alive. `with` gets no access to
        // `self`, so it cannot come back here.
        with(unsafe { &mut *self.proxy_lane() })
    }

    /// The proxy lane, to be used as [`Connected::with_proxy`] uses it.
    #[inline(always)]
    pub(crate) fn proxy_lane(&self) -> *mut Lane<OfiPort> {
        // SAFETY: inside the cell, whose content is not touched by this.
        unsafe { &raw mut (*self.proxy.get()).lane }
    }

    /// One iteration of the proxy thread's loop, or none while NVSHMEM hands over operations that
    /// had better go together.
    ///
    /// # Safety
    /// As [`Connected::with_proxy`].
    #[inline]
    pub(crate) unsafe fn progress(&self) -> Result<(), Box<EngineError>> {
        // SAFETY: as in `with_proxy`.
        if unsafe { &mut *self.proxy_lane() }.is_collecting() {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        let busy = unsafe { self.iterate() }?;
        // SAFETY: as in `with_proxy`.
        let proxy = unsafe { &mut *self.proxy.get() };
        if proxy.yielding.after(busy) {
            std::thread::yield_now();
        }
        Ok(())
    }

    /// As [`Connected::progress`], without giving up the core. Whether there was anything to do.
    ///
    /// # Safety
    /// As [`Connected::with_proxy`].
    #[inline(always)]
    pub(crate) unsafe fn iterate(&self) -> Result<bool, Box<EngineError>> {
        // SAFETY: as in `with_proxy`.
        let proxy = unsafe { &mut *self.proxy.get() };
        let mut turned = proxy.lane.progress();
        if self.host.has_work() {
            if let Ok(busy) = turned {
                turned = self.host.try_progress().map(|any| busy | any);
            }
        }
        turned
    }
}

impl fmt::Debug for Connected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the proxy lane: its thread may be changing it.
        f.debug_struct("Connected").field("report", &self.report).finish_non_exhaustive()
    }
}
