//! A sysfs made from a table.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use nvshmem_transport_libfabric::topology::{PciAddress, Topology};

/// A tree of directories and links like sysfs, removed when dropped.
pub(crate) struct Tree {
    root: PathBuf,
    devices: HashMap<String, PciAddress>,
    pub(crate) topology: Topology,
}

impl Tree {
    /// The machine that a file of `tests/data/topology` describes.
    pub(crate) fn of(machine: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/topology");
        let file = data.join(format!("{machine}.txt"));
        let table = fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));

        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("nvshmem-topology-{}-{number}", std::process::id());
        let root = std::env::temp_dir().join(name);
        let links = root.join("bus/pci/devices");
        fs::create_dir_all(&links).expect("a directory for links");
        let mut tree =
            Self { topology: Topology::at(&root), root: root.clone(), devices: HashMap::new() };
        for line in table.lines().filter(|line| !line.starts_with('#')) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let [name, way, node, physical @ ..] = fields.as_slice() else {
                panic!("{machine}: `{line}`");
            };
            let directory = root.join("devices").join(way);
            fs::create_dir_all(&directory).expect("a directory for a device");
            fs::write(directory.join("numa_node"), format!("{node}\n")).expect("its node");
            let address = PciAddress::of_path(&directory).expect("the way ends in an address");
            // As in sysfs, links are relative.
            let target = Path::new("../../../devices").join(way);
            symlink(target, links.join(address.to_string())).expect("its link");
            if let [physical] = physical {
                let target = directory.parent().expect("its bus").join(physical);
                symlink(target, directory.join("physfn")).expect("a link to its physical function");
            }
            assert!(tree.devices.insert(String::from(*name), address).is_none(), "{name} twice");
        }
        tree
    }

    /// A device by its name in the table.
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
