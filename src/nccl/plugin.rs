//! State of the process for all communicators: settings, and the devices offered to NCCL.
//!
//! NICs near one another are one device, with a rail for each: NCCL gives a group one device, and
//! would otherwise make up to four groups of one rail.

use std::ffi::{CString, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::nccl::abi::{
    DEVICE_GIN_PROXY, PTR_CUDA, PTR_DMABUF, PTR_HOST, Properties, VirtualDevices,
};
use log::info;

use super::error::NcclError;
use super::group::members;
use crate::job::Job;
use crate::logging;
use crate::settings::Settings;
use engine::wire::handshake::fabric_hash;
use ofi::Device as Nic;
use ofi::topology::{Distance, PciAddress, Topology};

const MAX_RECVS: c_int = 8;

const MAX_BYTES: usize = 1 << 40;

const SPEED: u32 = 10_000;

const MAX_GROUPS: c_int = 1 << 20;

/// Default number of bounce buffers of a group for each direction: a communicator has up to eight
/// groups, and each locks the pages of its own and of same-host peers' buffers.
const STAGING_DEPTH: u16 = 4;

#[derive(Debug)]
pub(super) struct Plugin {
    pub(super) settings: Settings,
    devices: Vec<Device>,
}

#[derive(Debug)]
struct Device {
    name: CString,
    pci_path: Option<CString>,
    guid: u64,
    speed: u32,
    /// Indices of libfabric's devices that are its rails.
    nics: Vec<usize>,
}

static PLUGIN: Mutex<Option<(usize, Arc<Plugin>)>> = Mutex::new(None);

fn current() -> MutexGuard<'static, Option<(usize, Arc<Plugin>)>> {
    // Each change of it is one assignment.
    PLUGIN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Plugin {
    /// Begins a use. NCCL begins two for a communicator, for its host calls and for GIN.
    pub(super) fn init() -> Result<Arc<Self>, NcclError> {
        let mut current = current();
        if let Some((users, plugin)) = &mut *current {
            *users += 1;
            return Ok(Arc::clone(plugin));
        }
        let plugin = Arc::new(Self::new()?);
        *current = Some((1, Arc::clone(&plugin)));
        Ok(plugin)
    }

    pub(super) fn finalize() -> Result<(), NcclError> {
        let mut current = current();
        match &mut *current {
            None => return Err(NcclError::NoPlugin),
            Some((users, _)) if *users > 1 => *users -= 1,
            Some(_) => {
                *current = None;
                members::end_all();
            }
        }
        Ok(())
    }

    pub(super) fn current() -> Result<Arc<Self>, NcclError> {
        current().as_ref().map(|(_, plugin)| Arc::clone(plugin)).ok_or(NcclError::NoPlugin)
    }

    fn new() -> Result<Self, NcclError> {
        let mut settings = Settings::from_env()?;
        if std::env::var_os("NVSHMEM_LIBFABRIC_STAGING_DEPTH").is_none_or(|value| value.is_empty())
        {
            settings.staging_depth = STAGING_DEPTH;
        }
        // Only to list devices: each group has a job of its own.
        let job = Job::new(settings.clone())?;
        let nics = job.discovery.devices();
        let place = |nic: &Nic| PciAddress::of_path(nic.pci_path.as_deref()?);
        let places: Vec<Option<PciAddress>> = nics.iter().map(place).collect();
        let near = neighbourhoods(&Topology::system(), &places);
        let devices = near.into_iter().map(|near| Device::new(nics, near)).collect();
        let plugin = Self { settings, devices };
        for (number, device) in plugin.devices.iter().enumerate() {
            info!(
                target: logging::INIT,
                "device {number}: {} over provider {}, {} rail(s), {} Mbit/s",
                device.name.to_string_lossy(),
                job.discovery.provider(),
                device.nics.len(),
                device.speed,
            );
        }
        Ok(plugin)
    }

    pub(super) fn n_devices(&self) -> c_int {
        c_int::try_from(self.devices.len()).unwrap_or(c_int::MAX)
    }

    fn device(&self, device: c_int) -> Result<&Device, NcclError> {
        let found = usize::try_from(device).ok().and_then(|at| self.devices.get(at));
        found.ok_or(NcclError::NoDevice { device, devices: self.devices.len() })
    }

    pub(super) fn chosen(&self, device: c_int) -> Result<Vec<usize>, NcclError> {
        let Device { nics, .. } = self.device(device)?;
        Ok(if self.devices.len() > 1 { nics.clone() } else { Vec::new() })
    }

    pub(super) fn properties(&self, device: c_int) -> Result<Properties, NcclError> {
        let Device { name, pci_path, guid, speed, .. } = self.device(device)?;
        let mut devices = [0; 8];
        devices[0] = device;
        Ok(Properties {
            name: name.as_ptr(),
            pci_path: pci_path.as_deref().map_or(ptr::null(), |path| path.as_ptr()),
            guid: *guid,
            // Memory that NICs do not reach is staged, so all memory is supported.
            ptr_support: PTR_HOST | PTR_CUDA | PTR_DMABUF,
            reg_is_global: 0,
            force_flush: 0,
            speed: c_int::try_from(*speed).unwrap_or(c_int::MAX),
            port: 1,
            latency: 0.0,
            max_comms: MAX_GROUPS,
            max_recvs: MAX_RECVS,
            net_device_type: DEVICE_GIN_PROXY,
            net_device_version: 0,
            virtual_devices: VirtualDevices { count: 1, devices },
            max_p2p_bytes: MAX_BYTES,
            max_coll_bytes: MAX_BYTES,
            max_multi_request_size: 1,
            rail_id: -1,
            plane_id: -1,
        })
    }
}

impl Device {
    fn new(all: &[Nic], nics: Vec<usize>) -> Self {
        let of = || nics.iter().filter_map(|nic| all.get(*nic));
        let names: Vec<&str> = of().map(|nic| nic.name.as_str()).collect();
        let text = |path: &Path| CString::new(path.as_os_str().as_bytes()).ok();
        let name = names.join("+").replace('\0', "");
        Self {
            guid: fabric_hash(&name),
            name: CString::new(name).unwrap_or_default(),
            pci_path: of().next().and_then(|nic| text(nic.pci_path.as_deref()?)),
            speed: of().map(|nic| nic.link_speed().unwrap_or(SPEED)).fold(0, u32::saturating_add),
            nics,
        }
    }
}

/// Groups NICs by proximity: behind one bridge at least, or below one root complex if no bridges
/// are shown, as in virtual machines. NICs without a PCI address are one group.
fn neighbourhoods(topology: &Topology, places: &[Option<PciAddress>]) -> Vec<Vec<usize>> {
    let near = |one: usize, other: usize| match (places[one], places[other]) {
        (None, None) => true,
        (Some(one), Some(other)) => {
            let bridges = topology.shows_bridges(one) && topology.shows_bridges(other);
            let most = if bridges { Distance::Pxb } else { Distance::Phb };
            topology.distance(one, other).is_none_or(|distance| distance <= most)
        }
        _ => false,
    };
    let mut all: Vec<Vec<usize>> = Vec::new();
    for nic in 0..places.len() {
        match all.iter_mut().find(|those| those.iter().any(|other| near(nic, *other))) {
            Some(those) => those.push(nic),
            None => all.push(vec![nic]),
        }
    }
    all
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A plugin with one device, which is the first of libfabric.
    pub(in crate::nccl) fn plugin(settings: Settings) -> Plugin {
        let (name, pci_path) = (CString::default(), None);
        let device = Device { name, pci_path, guid: 0, speed: SPEED, nics: vec![0] };
        Plugin { settings, devices: vec![device] }
    }

    #[test]
    fn nics_group_by_bridge_or_together() {
        let root = test_support::scratch::Scratch::new();
        let devices = test_support::topology::lay_out("p5-32-nics", &root);
        let topology = Topology::at(&*root);
        let place = |nic: usize| {
            let name = format!("nic{nic}");
            devices.iter().find(|(known, _)| *known == name)?.1.parse::<PciAddress>().ok()
        };
        let places: Vec<Option<PciAddress>> = (0..32).map(place).collect();
        let fours: Vec<Vec<usize>> =
            (0..8).map(|group| (4 * group..4 * group + 4).collect()).collect();
        assert_eq!(neighbourhoods(&topology, &places), fours);
        assert_eq!(neighbourhoods(&topology, &[None, None]), [[0, 1]]);
        let unknown = |text: &str| Some(text.parse::<PciAddress>().unwrap());
        let places = [unknown("0001:3b:00.0"), None, unknown("0001:5b:00.0"), None];
        // sysfs has no entry of any of them.
        assert_eq!(neighbourhoods(&topology, &places), [[0, 2], [1, 3]]);
    }
}
