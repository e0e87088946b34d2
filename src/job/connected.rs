//! The state behind one PE of a job.

use std::cell::UnsafeCell;
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use log::info;

use super::consistency::Consistency;
use super::counters::{self, Publisher};
use super::error::JobError;
use super::heartbeat::Pulse;
use super::memory::ProcessMemory;
use crate::cuda::Driver;
use crate::engine::error::EngineError;
use crate::engine::lane::user_threads::host_lane::HostLane;
use crate::engine::lane::{Lane, is_idle};
use crate::engine::patience::Wait;
use crate::engine::state::regions::RegionTable;
use crate::logging;
use crate::ofi::fork::{self, Present};
use crate::ofi::signals::Blocked;
use crate::ofi::{Discovery, MemoryKinds, OfiPort, Report};
use crate::settings::{ConsistencyChoice, Devices, Settings};

/// How long the end waits for operations that a failure has left under way. A peer that lives ends them
/// much sooner, and one that does not never.
const DRAIN_PATIENCE: Duration = Duration::from_millis(500);

/// How long the release of memory waits for operations that have failed and may touch it; with this much more where
/// rails are opened again.
const RELEASE_PATIENCE: Duration = Duration::from_secs(1);

/// One PE's part of a job, from the discovery of its devices to its end.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) settings: Settings,
    /// The devices there are, as found at init.
    pub(crate) discovery: Discovery,
    connected: OnceLock<Connected>,
    /// Whether its counters have been told.
    pub(super) counters_are_told: AtomicBool,
    /// Of its counters while it runs, if its settings ask for it.
    pub(super) publisher: OnceLock<Publisher>,
    /// The last field: rails are closed before.
    _present: Present,
}

impl Job {
    /// Finds libfabric, a provider and its devices. Nothing is opened before the PEs connect.
    pub(crate) fn new(settings: Settings) -> Result<Self, JobError> {
        if fork::is_child() {
            return Err(JobError::Child);
        }
        let present = Present::new();
        // Whether all PEs are on one host is not known before the host has filled in the
        // transport. It matters for plain sockets only, which look again then.
        let discovery = {
            let _blocked = Blocked::new();
            Discovery::run(&settings, true, memory_kinds())?
        };
        Ok(Self {
            settings,
            discovery,
            connected: OnceLock::new(),
            counters_are_told: AtomicBool::new(false),
            publisher: OnceLock::new(),
            _present: present,
        })
    }

    /// The PCI paths of the devices, if the host is to choose among them: when all have one and the
    /// user has not named those to use.
    pub(crate) fn offered_devices(&self) -> Vec<&std::path::Path> {
        if matches!(self.settings.devices, Devices::Include(_)) {
            return Vec::new();
        }
        let paths = self.discovery.devices().iter().map(|device| device.pci_path.as_deref());
        paths.collect::<Option<Vec<_>>>().unwrap_or_default()
    }

    /// Whether NVSHMEM is to ask for consistency: where it may turn out to need something. Nothing is
    /// registered yet, so whether it does is not known.
    pub(crate) fn enforces_consistency(&self) -> bool {
        match self.settings.consistency {
            ConsistencyChoice::None => false,
            ConsistencyChoice::Read | ConsistencyChoice::WriteRead => true,
            ConsistencyChoice::Auto | ConsistencyChoice::Flush => self.discovery.reaches_devices(),
        }
    }

    /// The lanes.
    #[inline]
    pub(crate) fn connected(&self) -> Result<&Connected, JobError> {
        match self.connected.get() {
            Some(connected) => Ok(connected),
            None => Err(JobError::NotConnected),
        }
    }

    /// The lanes, if they are there.
    #[inline(always)]
    pub(crate) fn connection(&self) -> Option<&Connected> {
        self.connected.get()
    }

    /// Whether the lanes are there.
    pub(crate) fn is_connected(&self) -> bool {
        self.connected.get().is_some()
    }

    /// Before the end: lets what a failure has left under way come to its end.
    ///
    /// # Safety
    /// As [`Connected::with_proxy`].
    pub(crate) unsafe fn drain_before_close(&self) {
        let Some(connected) = self.connection() else { return };
        // SAFETY: the caller's promise.
        let proxy = unsafe { connected.with_proxy(|lane| lane.drain_before_close(DRAIN_PATIENCE)) };
        if !proxy || !connected.host.drain_before_close(DRAIN_PATIENCE) {
            info!(
                target: logging::TRANSPORT,
                "operations are under way still after {DRAIN_PATIENCE:?}: their endpoints are closed under them"
            );
        }
    }

    /// Puts the lanes in place.
    pub(crate) fn set_connected(&self, connected: Connected) {
        info!(target: logging::TRANSPORT, "{}", connected.report);
        if !self.is_connected() {
            // SAFETY: it is this function's alone.
            unsafe { counters::publish(self, &connected) };
        }
        // The host connects once; a second set of lanes would be dropped.
        let _ = self.connected.set(connected);
    }
}

/// What memory this process has. A program that uses devices has CUDA loaded when it starts NVSHMEM.
pub(crate) fn memory_kinds() -> MemoryKinds {
    match Driver::of_process() {
        Ok(_) => MemoryKinds::HostAndDevices,
        Err(_) => MemoryKinds::Host,
    }
}

/// What exists once the PEs are connected.
///
/// The fields are dropped in this order: registrations go before the endpoints they may be bound
/// to.
pub(crate) struct Connected {
    /// Memory of this PE.
    pub(crate) regions: RegionTable<ProcessMemory>,
    /// How long a release waits for operations that have failed.
    patience: Duration,
    /// The lane of user threads.
    pub(crate) host: HostLane<OfiPort>,
    proxy: UnsafeCell<ProxyLane>,
    /// What was opened.
    pub(crate) report: Report,
    /// Has memory that is registered, so it goes after all that uses that.
    pub(crate) consistency: Consistency,
    /// The proxy thread's turns.
    pub(crate) pulse: Arc<Pulse>,
}

// SAFETY: `regions`, `host`, `report` and `consistency` may be used from any thread. `proxy` is touched only in
// `with_proxy`, whose callers vouch for being the only thread there.
unsafe impl Sync for Connected {}

/// The proxy thread's lane, and how its loop behaves.
#[derive(Debug)]
struct ProxyLane {
    lane: Lane<OfiPort>,
    /// Whether progress of the host lane is ours to make.
    drives_host: bool,
    /// Whether idle turns give up the core.
    yields: bool,
    idle: u32,
}

impl Connected {
    /// `drives_host`: the proxy progresses the host lane too. `yields`: it gives up its core when
    /// it finds nothing to do.
    pub(crate) fn new(
        regions: RegionTable<ProcessMemory>,
        host: HostLane<OfiPort>,
        proxy: Lane<OfiPort>,
        drives_host: bool,
        yields: bool,
        report: Report,
        consistency: Consistency,
    ) -> Self {
        let proxy = ProxyLane { lane: proxy, drives_host, yields, idle: 0 };
        let (proxy, patience) = (UnsafeCell::new(proxy), RELEASE_PATIENCE);
        Self { regions, patience, host, proxy, report, consistency, pulse: Arc::default() }
    }

    /// The same, with rails that are opened again when something on them has not moved for so long.
    pub(crate) fn with_rail_timeout(self, timeout: Option<Duration>) -> Self {
        let patience = timeout.map_or(self.patience, |timeout| 2 * RELEASE_PATIENCE + timeout);
        Self { patience, ..self }
    }

    /// Has memory released, and waits a while where operations that have failed may touch it still: peers that live
    /// end them soon, and rails that can be opened again are.
    pub(crate) fn release_patiently<E>(
        &self,
        mut release: impl FnMut() -> Result<(), E>,
        is_in_use: impl Fn(&E) -> bool,
    ) -> Result<(), E> {
        let mut wait = Wait::new();
        loop {
            match release() {
                Err(failed) if is_in_use(&failed) && wait.left_of(self.patience).is_some() => {
                    // The proxy thread may leave this lane alone. What fails on it is told to who waits for that.
                    let _ = self.host.try_progress();
                    std::thread::sleep(Duration::from_millis(1));
                }
                released => return released,
            }
        }
    }

    /// Makes what NICs have written to device memory visible to the device.
    ///
    /// # Safety
    /// As [`Connected::with_proxy`].
    pub(crate) unsafe fn enforce_consistency(&self) -> Result<(), JobError> {
        let Self { consistency, regions, .. } = self;
        // SAFETY: the caller's promise.
        unsafe { self.with_proxy(|lane| consistency.enforce(lane, regions)) }
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

    /// One turn of the proxy thread's loop.
    ///
    /// # Safety
    /// As [`Connected::with_proxy`].
    #[inline]
    pub(crate) unsafe fn progress(&self) -> Result<(), EngineError> {
        // SAFETY: the caller's promise.
        let busy = unsafe { self.turn() }?;
        // SAFETY: as in `with_proxy`.
        let proxy = unsafe { &mut *self.proxy.get() };
        if proxy.yields && is_idle(&mut proxy.idle, busy) {
            std::thread::yield_now();
        }
        Ok(())
    }

    /// As [`Connected::progress`], without giving up the core. Whether there was anything to do.
    ///
    /// # Safety
    /// As [`Connected::with_proxy`].
    #[inline(always)]
    pub(crate) unsafe fn turn(&self) -> Result<bool, EngineError> {
        // SAFETY: as in `with_proxy`.
        let proxy = unsafe { &mut *self.proxy.get() };
        self.pulse.beat();
        let mut turned = proxy.lane.progress();
        if proxy.drives_host && self.host.has_work() {
            if let Ok(busy) = turned {
                turned = self.host.try_progress().map(|any| busy | any);
            }
        }
        self.pulse.beat();
        turned
    }

    /// Whether the proxy thread has a core of its own.
    pub(crate) fn has_core(&self) -> bool {
        // SAFETY: never changed; no reference to the rest is made.
        unsafe { !(*self.proxy.get()).yields }
    }
}

impl fmt::Debug for Connected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the proxy lane: its thread may be changing it.
        f.debug_struct("Connected").field("report", &self.report).finish_non_exhaustive()
    }
}
