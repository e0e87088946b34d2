//! A PE's part of a job, from the discovery of its devices to its end.

use std::sync::OnceLock;
use std::time::Duration;

use log::info;

use super::connect::collectives::Collectives;
use super::connect::connect;
use super::connected::Connected;
use super::counters::Counters;
use super::error::JobError;
use super::memory::memory_kinds;
use crate::logging;
use crate::settings::{ConsistencyChoice, Settings};
use engine::lane::Lane;
use ofi::fork::{self, JobGuard};
use ofi::posix_signals::Blocked;
use ofi::{Devices, Discovery};

/// Time limit at the end for operations left in flight by a failure; a dead peer never ends them.
const DRAIN_PATIENCE: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) settings: Settings,
    pub(crate) discovery: Discovery,
    connected: OnceLock<Connected>,
    counters: Counters,
    /// Declared last: rails are closed before.
    _present: JobGuard,
}

impl Job {
    pub(crate) fn new(settings: Settings) -> Result<Self, JobError> {
        if fork::is_child() {
            return Err(JobError::Child);
        }
        let present = JobGuard::enter();
        // Whether all PEs are on one host is unknown until the host has filled in the transport.
        // Only providers over plain sockets need it, and search again then.
        let discovery = {
            let _blocked = Blocked::here();
            Discovery::run(&settings.ofi(), true, memory_kinds())?
        };
        Ok(Self {
            settings,
            discovery,
            connected: OnceLock::new(),
            counters: Counters::default(),
            _present: present,
        })
    }

    /// Returns the devices' PCI paths if the host is to choose: all have one, and none is named.
    pub(crate) fn offered_devices(&self) -> Vec<&std::path::Path> {
        if matches!(self.settings.devices, Devices::Include(_)) {
            return Vec::new();
        }
        let paths = self.discovery.devices().iter().map(|device| device.pci_path.as_deref());
        paths.collect::<Option<Vec<_>>>().unwrap_or_default()
    }

    /// Returns true if NVSHMEM is to request consistency, which memory registered later may need.
    pub(crate) fn enforces_consistency(&self) -> bool {
        match self.settings.consistency {
            ConsistencyChoice::None => false,
            ConsistencyChoice::Flush => true,
            ConsistencyChoice::Auto => self.discovery.reaches_devices(),
        }
    }

    #[inline]
    pub(crate) fn connected(&self) -> Result<&Connected, JobError> {
        // Not `ok_or`: every call would make an error, and drop it.
        match self.connected.get() {
            Some(connected) => Ok(connected),
            None => Err(JobError::NotConnected),
        }
    }

    #[inline(always)]
    pub(crate) fn connection(&self) -> Option<&Connected> {
        self.connected.get()
    }

    /// Waits, before the end, for operations that a failure has left in flight.
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

    /// Connects all PEs, once. Collective: all succeed, or all get an error with the reasons of
    /// those that failed. `chosen`: devices that the host picked of those offered.
    pub(crate) fn connect(
        &self,
        collectives: &dyn Collectives,
        chosen: &[usize],
    ) -> Result<(), JobError> {
        let connected = connect(&self.settings, &self.discovery, collectives, chosen)?;
        info!(target: logging::TRANSPORT, "{}", connected.report);
        if let Some(pattern) = &self.settings.counters {
            self.counters.write_to(pattern, connected.host.with(Lane::me));
        }
        // The lanes of a second call are dropped.
        let _ = self.connected.set(connected);
        Ok(())
    }

    /// Reports the lanes' counters, once; nothing if the job was never connected.
    ///
    /// # Safety
    /// As [`Connected::with_proxy`].
    #[cold]
    pub(crate) unsafe fn tell_counters(&self) {
        if let Some(connected) = self.connection() {
            // SAFETY: the caller's promise.
            unsafe { self.counters.tell(connected) };
        }
    }
}
