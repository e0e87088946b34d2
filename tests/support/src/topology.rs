//! Machines described in `tests/data/topology`, laid out as a sysfs shows them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

/// Lays a machine out below `root`. Its devices: the name in the table and the PCI address of each.
pub fn lay_out(machine: &str, root: &Path) -> Vec<(String, String)> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/topology");
    let file = data.join(format!("{machine}.txt"));
    let table = fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    fs::create_dir_all(root.join("bus/pci/devices")).expect("a directory for links");
    let mut devices = Vec::new();
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [name, way, node, physical @ ..] = fields.as_slice() else {
            panic!("{machine}: `{line}`");
        };
        let directory = root.join("devices").join(way);
        fs::create_dir_all(&directory).expect("a directory for a device");
        fs::write(directory.join("numa_node"), format!("{node}\n")).expect("its node");
        let address = way.rsplit('/').next().unwrap_or(way);
        link(root, address, way);
        if let [physical] = physical {
            let target = directory.parent().expect("its bus").join(physical);
            symlink(target, directory.join("physfn")).expect("a link to its physical function");
        }
        assert!(devices.iter().all(|(known, _)| known != name), "{name} twice");
        devices.push((String::from(*name), String::from(address)));
    }
    devices
}

/// Gives a device of a machine that is laid out another address as well.
pub fn also_at(root: &Path, address: &str, other: &str) {
    let link_of = root.join("bus/pci/devices").join(address);
    let target = fs::read_link(link_of).expect("the device is there");
    let way = target.strip_prefix("../../../devices").expect("a link of this module's");
    link(root, other, &way.to_string_lossy());
}

fn link(root: &Path, address: &str, way: &str) {
    let target = Path::new("../../../devices").join(way);
    symlink(target, root.join("bus/pci/devices").join(address)).expect("its link");
}
