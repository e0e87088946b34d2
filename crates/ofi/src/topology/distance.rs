//! The distance of two PCI devices.

use std::fmt;
use std::fs;
use std::path::{Component, PathBuf};

use super::address::PciAddress;
use super::text::numa_node;

/// Distance of two devices by what their traffic crosses; nearer is less.
///
/// The ladder and its words are those of NCCL and of `nvidia-smi topo`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Distance {
    /// Nothing: functions of one device.
    Loc,
    /// One PCIe switch.
    Pix,
    /// Several PCIe switches.
    Pxb,
    /// A host bridge: the root complex of a processor.
    Phb,
    /// The way between root complexes of one NUMA node.
    Node,
    /// The link between NUMA nodes.
    Sys,
}

impl Distance {
    /// Every distance, the nearest first.
    pub const ALL: [Self; 6] = [Self::Loc, Self::Pix, Self::Pxb, Self::Phb, Self::Node, Self::Sys];
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format!("{self:?}").to_uppercase())
    }
}

/// Where the kernel shows devices: `SYSFS_PATH`, which libibverbs follows with its NICs, or `/sys`.
pub fn sysfs() -> PathBuf {
    let named = std::env::var_os("SYSFS_PATH").filter(|path| !path.is_empty());
    named.map_or_else(|| PathBuf::from("/sys"), PathBuf::from)
}

/// The devices of a machine, as a sysfs shows them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Topology {
    root: PathBuf,
}

struct Place {
    /// The root complex, the bridges below it, and the device.
    way: Vec<String>,
    numa_node: Option<u32>,
}

impl Topology {
    /// This machine's, where libibverbs looks for it.
    pub fn system() -> Self {
        Self::at(sysfs())
    }

    /// That of a sysfs, or of something that looks like one, mounted at `root`.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The distance of two devices. None when sysfs does not show one of them.
    ///
    /// A virtual function is where its physical function is. Where one of the devices has no NUMA
    /// node, all is one node: that is what the kernel says on machines that have only one.
    pub fn distance(&self, one: PciAddress, other: PciAddress) -> Option<Distance> {
        let (one, other) = (self.physical(one)?, self.physical(other)?);
        if one.is_same_device(other) {
            return Some(Distance::Loc);
        }
        let (one, other) = (self.place(one)?, self.place(other)?);
        let common = one.way.iter().zip(&other.way).take_while(|(a, b)| a == b).count();
        Some(match common {
            // Not even the root complex.
            0 => match (one.numa_node, other.numa_node) {
                (Some(one), Some(other)) if one != other => Distance::Sys,
                _ => Distance::Node,
            },
            1 => Distance::Phb,
            // A switch has a bridge for each of its ports: one above, and one towards each device.
            _ if one.way.len().max(other.way.len()) - common <= 2 => Distance::Pix,
            _ => Distance::Pxb,
        })
    }

    /// Whether sysfs shows a bridge on the way to a device. Virtual machines often show none: then
    /// a distance of [`Distance::Phb`] says nothing of the switches that there are.
    pub fn shows_bridges(&self, device: PciAddress) -> bool {
        self.place(device).is_some_and(|place| place.way.len() > 2)
    }

    /// The NUMA node of a device, or of its physical function, if sysfs shows one.
    pub fn numa_node(&self, device: PciAddress) -> Option<u32> {
        let own = self.place(device)?.numa_node;
        own.or_else(|| self.place(self.physical(device)?)?.numa_node)
    }

    fn physical(&self, device: PciAddress) -> Option<PciAddress> {
        let directory = self.directory(device)?;
        match fs::canonicalize(directory.join("physfn")) {
            Ok(physical) => PciAddress::of_path(&physical),
            Err(_) => Some(device),
        }
    }

    fn place(&self, device: PciAddress) -> Option<Place> {
        let directory = self.directory(device)?;
        let devices = fs::canonicalize(self.root.join("devices")).ok()?;
        let below = directory.strip_prefix(devices).ok()?;
        let name = |part: Component<'_>| part.as_os_str().to_str().map(String::from);
        // Whatever a platform puts above its root complexes is not part of the way.
        let way: Vec<String> = below
            .components()
            .filter_map(name)
            .skip_while(|part| !part.starts_with("pci"))
            .collect();
        let node = fs::read_to_string(directory.join("numa_node")).ok();
        Some(Place { way, numa_node: node.and_then(|node| numa_node(&node)) })
    }

    fn directory(&self, device: PciAddress) -> Option<PathBuf> {
        let link = self.root.join("bus/pci/devices").join(device.to_string());
        fs::canonicalize(link).ok()
    }
}
