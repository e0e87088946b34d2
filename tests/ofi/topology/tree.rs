//! A sysfs made from a table.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use ofi::topology::{PciAddress, Topology};
use test_support::topology::lay_out;

/// A tree of directories and links like sysfs, removed when dropped.
pub(crate) struct Tree {
    root: PathBuf,
    devices: HashMap<String, PciAddress>,
    pub(crate) topology: Topology,
}

impl Tree {
    pub(crate) fn of(machine: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("nvshmem-topology-{}-{number}", std::process::id());
        let root = std::env::temp_dir().join(name);
        let address = |text: String| text.parse().expect("the way ends in an address");
        let devices = lay_out(machine, &root).into_iter();
        let devices = devices.map(|(name, text)| (name, address(text))).collect();
        Self { topology: Topology::at(&root), root, devices }
    }

    pub(crate) fn device(&self, name: &str) -> PciAddress {
        *self.devices.get(name).unwrap_or_else(|| panic!("no {name}"))
    }

    /// The devices `kind0`, `kind1` and so on.
    pub(crate) fn all(&self, kind: &str) -> Vec<PciAddress> {
        (0..).map_while(|at| self.devices.get(&format!("{kind}{at}")).copied()).collect()
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        // What is left in the way of that is in a temporary directory.
        let _ = fs::remove_dir_all(&self.root);
    }
}
