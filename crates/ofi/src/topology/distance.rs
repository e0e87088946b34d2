use std::fmt;
use std::fs;
use std::path::{Component, PathBuf};

use super::address::PciAddress;
use super::text::numa_node;

/// Distance of two devices by what their traffic crosses; nearer is less.
///
/// The levels and their names are those of NCCL and of `nvidia-smi topo`.
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
    /// The connection between root complexes of one NUMA node.
    Node,
    /// The link between NUMA nodes.
    Sys,
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format!("{self:?}").to_uppercase())
    }
}

/// Returns the path of sysfs: `SYSFS_PATH`, which libibverbs heeds, or `/sys`.
pub fn sysfs() -> PathBuf {
    let named = std::env::var_os("SYSFS_PATH").filter(|path| !path.is_empty());
    named.map_or_else(|| PathBuf::from("/sys"), PathBuf::from)
}

/// The devices of a machine, as a sysfs shows them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Topology {
    root: PathBuf,
}

struct PciPath {
    /// Root complex, bridges below it, and device.
    bridges: Vec<String>,
    numa_node: Option<u32>,
}

impl Topology {
    /// Returns this machine's topology, from the sysfs that libibverbs uses.
    pub fn system() -> Self {
        Self::at(sysfs())
    }

    /// Returns the topology of a sysfs, or a copy of one, at `root`.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Returns the distance of two devices; None if sysfs does not show both.
    ///
    /// A virtual function is at its physical function. If a device has no NUMA node, both count as
    /// on one: machines with only one node report none.
    pub fn distance(&self, one: PciAddress, other: PciAddress) -> Option<Distance> {
        let (one, other) = (self.physical(one)?, self.physical(other)?);
        if one.is_same_device(other) {
            return Some(Distance::Loc);
        }
        let (one, other) = (self.path(one)?, self.path(other)?);
        let common = one.bridges.iter().zip(&other.bridges).take_while(|(a, b)| a == b).count();
        Some(match common {
            // Different root complexes.
            0 => match (one.numa_node, other.numa_node) {
                (Some(one), Some(other)) if one != other => Distance::Sys,
                _ => Distance::Node,
            },
            1 => Distance::Phb,
            // A switch has a bridge for each of its ports: one upstream, one towards each device.
            _ if one.bridges.len().max(other.bridges.len()) - common <= 2 => Distance::Pix,
            _ => Distance::Pxb,
        })
    }

    /// Returns true if sysfs shows a bridge above a device. Virtual machines often show none: then
    /// [`Distance::Phb`] says nothing about switches.
    pub fn shows_bridges(&self, device: PciAddress) -> bool {
        self.path(device).is_some_and(|path| path.bridges.len() > 2)
    }

    fn physical(&self, device: PciAddress) -> Option<PciAddress> {
        let directory = self.directory(device)?;
        match fs::canonicalize(directory.join("physfn")) {
            Ok(physical) => PciAddress::of_path(&physical),
            Err(_) => Some(device),
        }
    }

    fn path(&self, device: PciAddress) -> Option<PciPath> {
        let directory = self.directory(device)?;
        let devices = fs::canonicalize(self.root.join("devices")).ok()?;
        let below = directory.strip_prefix(devices).ok()?;
        let name = |part: Component<'_>| part.as_os_str().to_str().map(String::from);
        // Directories above the root complexes, which some platforms have, do not count.
        let bridges: Vec<String> = below
            .components()
            .filter_map(name)
            .skip_while(|part| !part.starts_with("pci"))
            .collect();
        let node = fs::read_to_string(directory.join("numa_node")).ok();
        Some(PciPath { bridges, numa_node: node.and_then(|node| numa_node(&node)) })
    }

    fn directory(&self, device: PciAddress) -> Option<PathBuf> {
        let link = self.root.join("bus/pci/devices").join(device.to_string());
        fs::canonicalize(link).ok()
    }
}
