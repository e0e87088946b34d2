//! A connected PE: its lanes, memory and monitors.

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
use engine::regions::RegionTable;
use engine::thread_wait::Wait;
use ofi::{OfiPort, Report};

/// Time limit for failed operations when memory is released.
const RELEASE_PATIENCE: Duration = Duration::from_secs(1);

/// State of a job whose PEs are connected.
///
/// Fields are dropped in this order: registrations before the endpoints to which they may be bound.
pub(crate) struct Connected {
    pub(crate) regions: Arc<RegionTable<ProcessMemory>>,
    pub(crate) host: HostLane<OfiPort>,
    proxy: UnsafeCell<ProxyLane>,
    pub(crate) report: Report,
    /// Maximum number of rails of a PE of the job.
    pub(crate) most_rails: usize,
    /// Whether the proxy thread has a core of its own.
    pub(crate) has_core: bool,
    /// Has registered memory, so it is dropped after its users.
    pub(crate) consistency: Consistency,
    pub(crate) pulse: Arc<Pulse>,
}

// SAFETY: any thread may use `regions`, `host`, `report` and `consistency`. `proxy` is accessed
// only by `with_proxy` and other unsafe functions of this type, whose callers promise to be the
// only thread there.
unsafe impl Sync for Connected {}

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

    /// Releases memory. Waits a while if failed operations may access it: live peers end them soon.
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
            // The proxy thread may not drive this lane; waiting callers get its failures.
            let _ = self.host.try_progress();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Makes NICs' earlier writes to device memory visible to the device. For any thread.
    pub(crate) fn enforce_consistency(&self) -> Result<(), JobError> {
        Ok(self.consistency.enforce(self.regions.memory().fabric.reaches_devices())?)
    }

    /// Runs `with` on the proxy lane.
    ///
    /// # Safety
    /// No other thread is in this function, or in [`Connected::progress`], on the same value.
    #[inline]
    pub(crate) unsafe fn with_proxy<T>(&self, with: impl FnOnce(&mut Lane<OfiPort>) -> T) -> T {
        // SAFETY: no other reference is alive, by the caller's promise. `with` has no access to
        // `self`, so it cannot re-enter.
        with(unsafe { &mut *self.proxy_lane() })
    }

    /// Returns the proxy lane, to be used as [`Connected::with_proxy`] does.
    #[inline(always)]
    pub(crate) fn proxy_lane(&self) -> *mut Lane<OfiPort> {
        // SAFETY: a pointer into the cell; its content is not accessed.
        unsafe { &raw mut (*self.proxy.get()).lane }
    }

    /// Iterates the proxy thread's loop, unless NVSHMEM submits operations to share a copy.
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

    /// Runs one iteration without yielding the core. Returns whether anything was due.
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
        // Without the proxy lane, which its thread may be changing.
        f.debug_struct("Connected").field("report", &self.report).finish_non_exhaustive()
    }
}
