//! Registration of all memory of the process, with the fabric or for staging.
//!
//! The fabric reaches host memory. Memory that only devices reach, and managed memory, which
//! migrates, is staged. A process that has not loaded CUDA has neither, and pays one look-up in the
//! dynamic loader's list for each registration.

pub(super) mod consistency;
pub mod direct;
mod meeting;
pub(crate) mod origins;
pub(super) mod shared_bounce;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;

use log::{info, warn};

use self::direct::register_direct;
use self::origins::{Origin, Origins};
use crate::logging;
use crate::settings::Settings;
use cuda::{
    DeviceRange, Driver, GDRCOPY_LIBRARY, LoadError, Memory, StagedRegion, Staging, StagingOptions,
    WordsOptions,
};
use engine::port::copies::{Reach, Stager};
use engine::port::{Access, MemoryPort, PortError, Registered};
use ofi::{DirectRefusal, MemoryKinds, OfiMemory, OfiRegion};

pub(crate) fn memory_kinds() -> MemoryKinds {
    match Driver::of_process() {
        Ok(_) => MemoryKinds::HostAndDevices,
        Err(_) => MemoryKinds::Host,
    }
}

fn staging_options(settings: &Settings) -> StagingOptions {
    StagingOptions {
        bounce_len: settings.staging_chunk,
        bounces: settings.staging_depth,
        words: words_options(settings),
        context: settings.staging_context,
        // A launch takes some 10 µs.
        resident: settings.resident.then_some(Duration::from_micros(100)),
    }
}

pub(crate) fn words_options(settings: &Settings) -> WordsOptions {
    WordsOptions {
        gdrcopy: settings.may_use_gdrcopy().then(|| GDRCOPY_LIBRARY.to_owned()),
        dma_buf: settings.may_map_dma_bufs(),
        ..WordsOptions::default()
    }
}

/// Registers memory of any kind, for several threads at once.
#[derive(Debug)]
pub(crate) struct ProcessMemory {
    pub(crate) fabric: OfiMemory,
    pub(crate) staging: Arc<Staging>,
    /// The host's information about addresses that are being registered now.
    pub(crate) origins: Origins,
    said_why_staged: Once,
    said_slow: Once,
    speaks: AtomicBool,
    said_held_up: Once,
    said_unusable: Once,
}

/// A registration, until dropped.
#[derive(Debug)]
pub(crate) enum Registration {
    /// With the fabric.
    Fabric { region: OfiRegion },
    /// With the fabric, and staged for access to words.
    Direct { _words: StagedRegion, region: OfiRegion },
    /// Staged.
    Staged { _region: StagedRegion },
}

enum Located {
    /// The CPU and the fabric reach it by its address.
    Host,
    /// The driver's copies reach it; `alias` is the same memory at other addresses.
    Device { range: DeviceRange, alias: Option<DeviceRange> },
}

impl ProcessMemory {
    pub(crate) fn new(fabric: OfiMemory, settings: &Settings) -> Self {
        Self {
            fabric,
            staging: Staging::new(staging_options(settings)),
            origins: Origins::default(),
            said_why_staged: Once::new(),
            said_slow: Once::new(),
            speaks: AtomicBool::new(false),
            said_held_up: Once::new(),
            said_unusable: Once::new(),
        }
    }

    pub(crate) fn speak(&self) {
        self.speaks.store(true, Ordering::Relaxed);
    }

    /// Logs once why device memory is staged.
    fn say_why_staged(&self, refusal: &DirectRefusal) {
        if refusal.is_slow && self.speaks.load(Ordering::Relaxed) {
            self.said_slow.call_once(|| {
                warn!(
                    target: logging::MEM,
                    "the NICs of this host do not reach GPU memory, so it is staged through host memory, which is slower: \
                     {refusal}. NVSHMEM_LIBFABRIC_GPU_DIRECT=never says that it is meant so"
                );
            });
        } else {
            self.said_why_staged.call_once(|| {
                info!(target: logging::MEM, "memory of devices is staged: {refusal}");
            });
        }
    }

    pub(crate) fn uses_devices(&self) -> bool {
        self.driver().is_some()
    }

    /// Returns CUDA's driver, once the process has loaded it.
    fn driver(&self) -> Option<&'static Driver> {
        match Driver::of_process() {
            Ok(driver) => Some(driver),
            Err(LoadError::NotInUse { .. }) => None,
            Err(unusable) => {
                self.said_unusable.call_once(|| {
                    warn!(
                        target: logging::MEM,
                        "{unusable}; memory of devices cannot be told from host memory",
                    );
                });
                None
            }
        }
    }

    fn find(
        driver: &'static Driver,
        addr: usize,
        len: usize,
        origin: Origin,
    ) -> Result<Located, PortError> {
        let alias = |alias: usize| match Memory::examine(driver, alias, len) {
            Ok(Memory::Device(range) | Memory::Managed(range)) => Ok(range),
            Ok(Memory::Host(kind)) => Err(format!("the alias at {alias:#x} is {kind}")),
            Err(error) => Err(format!("the alias at {alias:#x}: {error}")),
        };
        let mut refused = match Memory::examine(driver, addr, len) {
            Ok(Memory::Host(_)) => return Ok(Located::Host),
            Ok(Memory::Device(range) | Memory::Managed(range)) => {
                // For the CPU mapping: not every method maps a second mapping.
                let alias = origin.alias.and_then(|at| alias(at).ok());
                return Ok(Located::Device { range, alias });
            }
            Err(refused) => PortError::from(refused),
        };
        match origin.alias.map(alias) {
            Some(Ok(range)) => {
                info!(
                    target: logging::MEM,
                    "{len} bytes at {addr:#x} are reached at {:#x}: {refused}", range.addr(),
                );
                return Ok(Located::Device { range, alias: None });
            }
            Some(Err(reason)) => refused.text = format!("{}; {reason}", refused.text),
            None => {}
        }
        if origin.on_host {
            info!(
                target: logging::MEM,
                "{len} bytes at {addr:#x} are taken for host memory, as NVSHMEM says: {refused}",
            );
            return Ok(Located::Host);
        }
        Err(refused)
    }

    fn register_host(
        &self,
        addr: usize,
        len: usize,
        access: Access,
    ) -> Result<Registered<Registration>, PortError> {
        let registered = self.fabric.register(addr, len, access)?;
        Ok(registered.owned_by(|region| Registration::Fabric { region }))
    }

    fn stage(
        &self,
        addr: usize,
        range: DeviceRange,
        alias: Option<DeviceRange>,
        access: Access,
    ) -> Result<StagedRegion, PortError> {
        let region = self.staging.register(addr, range, alias, access)?;
        // Kernels wait for peers' puts, and seldom for their own.
        if region.is_held_up() && access.is_remote() {
            let range = region.range();
            self.said_held_up.call_once(|| {
                let (len, kind, context) = (range.len(), range.kind(), range.context());
                warn!(
                    target: logging::MEM,
                    "{len} bytes of {kind} belong to {context}: while a call of the program waits until that is idle (cudaFree, \
                     cudaFreeHost, cudaHostUnregister, a module that is loaded or unloaded), none of them is copied, so such a \
                     call and a kernel that waits for these bytes wait for one another. Memory of the VMM interface is not held \
                     up, as NVSHMEM's heap is unless NVSHMEM_DISABLE_CUDA_VMM is set"
                );
            });
        }
        Ok(region)
    }
}

impl MemoryPort for ProcessMemory {
    type Region = Registration;

    fn register(
        &self,
        addr: usize,
        len: usize,
        access: Access,
    ) -> Result<Registered<Registration>, PortError> {
        let Some(driver) = self.driver() else {
            return self.register_host(addr, len, access);
        };
        let (range, alias) = match Self::find(driver, addr, len, self.origins.of(addr))? {
            Located::Host => return self.register_host(addr, len, access),
            Located::Device { range, alias } => (range, alias),
        };
        match register_direct(&self.fabric, addr, &range, access) {
            Ok(registered) => {
                // Words, and payloads of messages, are accessed through the driver.
                let words = self.stage(addr, range, alias, access)?;
                let registered = Registered { reach: Reach::Fabric, ..registered };
                Ok(registered.owned_by(|region| Registration::Direct { _words: words, region }))
            }
            Err(refusal) if refusal.is_error => Err(PortError {
                call: "registering memory of a device",
                code: libc::EOPNOTSUPP,
                text: refusal.to_string(),
            }),
            Err(refusal) => {
                self.say_why_staged(&refusal);
                let region = self.stage(addr, range, alias, access)?;
                Ok(Registered::staged(Registration::Staged { _region: region }))
            }
        }
    }

    fn close(&self, region: &mut Registration) -> Result<(), PortError> {
        match region {
            Registration::Fabric { region } | Registration::Direct { region, .. } => {
                self.fabric.close(region)
            }
            // Dropping it ends the registration.
            Registration::Staged { .. } => Ok(()),
        }
    }

    fn take_stager(&self) -> Option<Stager> {
        self.staging.take_stager()
    }

    fn make_stager(&self) -> Result<Option<Stager>, PortError> {
        Ok(self.staging.make_stager()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::tests::{connect, settings};
    use crate::logging::heard::heard;

    /// PE 0 is the first of its host.
    #[test]
    fn staging_reason_is_logged_once() {
        connect(2, &settings(1, &[]), None, |pe| {
            let job = pe.job.unwrap();
            let memory = job.connected().unwrap().regions.memory();
            assert!(!memory.uses_devices() && memory.driver().is_none());
            let said = |is_slow| {
                let reasons = vec![String::from("on purpose")];
                let refusal = DirectRefusal { reasons, is_error: false, is_slow };
                heard(|| memory.say_why_staged(&refusal)).1
            };
            let is_slow = pe.pe == 0;
            let first = said(true);
            let expected = if is_slow { "WARN the NICs" } else { "INFO memory of devices" };
            assert!(first.contains(expected) && first.contains("on purpose"), "{first}");
            assert_eq!(said(true), "");
            assert_eq!(said(false).is_empty(), !is_slow, "what is slow is another thing");
            assert_eq!(said(false), "");
            let bytes = [0_u64; 8];
            let registered = memory.register(bytes.as_ptr() as usize, 64, Access::Local);
            let mut owner = registered.unwrap().owner;
            memory.close(&mut owner).unwrap();
            assert!(format!("{owner:?}").contains("closed: true"), "{owner:?}");
        });
    }
}
