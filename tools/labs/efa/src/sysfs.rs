//! The directory in place of sysfs: where NICs are, and which driver they have.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::config::Config;

pub(crate) fn name(config: &Config, nic: u16) -> String {
    let (bus, device) = config.persona.place(nic);
    format!("rdmap{bus}s{device}")
}

/// Makes what the provider reads of all NICs, unless another process has, and returns the root.
pub(crate) fn make(config: &Config) -> io::Result<PathBuf> {
    let root = config.dir.join("sys");
    let driver = root.join("bus/pci/drivers/efa");
    fs::create_dir_all(&driver)?;
    fs::create_dir_all(root.join("class/infiniband_verbs"))?;
    fs::write(root.join("class/infiniband_verbs/abi_version"), "6\n")?;
    for nic in 0..config.nics {
        let (bus, device) = config.persona.place(nic);
        let pci = root.join(format!("devices/pci0000:{bus:02x}/0000:{bus:02x}:{device:02x}.0"));
        fs::create_dir_all(&pci)?;
        link(&driver, &pci.join("driver"))?;
        let class = root.join("class/infiniband").join(name(config, nic));
        fs::create_dir_all(&class)?;
        link(&pci, &class.join("device"))?;
    }
    Ok(root)
}

fn link(target: &Path, name: &Path) -> io::Result<()> {
    match symlink(target, name) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}
