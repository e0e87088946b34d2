use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use crate::discovery::link::Link;
use crate::objects::info::Info;
use crate::provider::{Nic, Profile};
use crate::topology::sysfs;

/// A device of the chosen provider, ready to be opened.
#[derive(Clone, Debug)]
pub struct Device {
    /// Name of the rail in the log: the user's entry, or the NIC, interface or domain.
    pub name: String,
    /// Libfabric's name of the domain; only the provider's name for an unlisted address such as
    /// 127.0.0.2.
    pub domain: String,
    /// Libfabric's name of the fabric. Devices of one fabric reach one another.
    pub fabric: String,
    /// The source address, for providers that use IP addresses.
    pub address: Option<IpAddr>,
    /// The NIC's directory in sysfs, as NVSHMEM compares it; None unless it does RDMA.
    pub pci_path: Option<PathBuf>,
    pub(crate) profile: &'static Profile,
    pub(crate) info: Arc<Info>,
}

impl Device {
    pub(crate) fn new(name: String, profile: &'static Profile, info: Info) -> Self {
        let domain = info.domain_name();
        let pci_path = profile.nic.and_then(|nic| pci_path(nic, &info));
        Self {
            name,
            domain,
            fabric: info.fabric_name(),
            address: info.source_ip(),
            pci_path,
            profile,
            info: Arc::new(info),
        }
    }

    pub(crate) fn link(&self) -> Link {
        Link::at(self.address)
    }

    /// Returns the speed of its link in Mbit/s, from the provider, or from the kernel for the
    /// interface with its address. None if neither knows, as for loopback.
    pub fn link_speed(&self) -> Option<u32> {
        self.info.link_speed().or_else(|| self.link().speed)
    }
}

fn pci_path(nic: Nic, info: &Info) -> Option<PathBuf> {
    if let Some(function) = info.pci_function() {
        let path = sysfs().join("bus/pci/devices").join(function);
        if let Ok(path) = fs::canonicalize(path) {
            return Some(path);
        }
    }
    let domain = info.domain_name();
    let device = domain.strip_suffix(nic.domain_suffix).unwrap_or(&domain);
    let names = info.nic_name().into_iter().chain([device.to_owned()]);
    let class = sysfs().join("class").join(nic.class);
    names.into_iter().find_map(|name| fs::canonicalize(class.join(name).join("device")).ok())
}
