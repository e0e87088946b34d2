//! The link of a network interface: its speed and device.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use crate::discovery::interface::Interface;
use crate::topology::sysfs;

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Link {
    /// Speed in Mbit/s; None for loopback and most virtual interfaces.
    pub(crate) speed: Option<u32>,
    pub(crate) device: Option<PathBuf>,
}

impl Link {
    pub(crate) fn at(address: Option<IpAddr>) -> Self {
        let found = Interface::all().into_iter().find(|one| Some(one.address) == address);
        found.map(|interface| Self::named(&sysfs(), &interface.name)).unwrap_or_default()
    }

    fn named(sysfs: &Path, interface: &str) -> Self {
        let place = sysfs.join("class/net").join(interface);
        // -1 without a link, and an error if the speed is unknown.
        let speed = fs::read_to_string(place.join("speed")).ok();
        let speed = speed.and_then(|text| text.trim().parse().ok()).filter(|speed| *speed > 0);
        Self { speed, device: fs::canonicalize(place.join("device")).ok() }
    }
}

#[cfg(test)]
mod tests {
    use test_support::scratch::Scratch;

    use super::*;

    #[test]
    fn speed_is_what_the_kernel_says() {
        let sysfs = Scratch::new();
        fs::create_dir_all(sysfs.join("class/net/eth7/device")).expect("a folder");
        let device = fs::canonicalize(sysfs.join("class/net/eth7/device")).ok();
        assert!(device.is_some());
        for (text, speed) in
            [("-1\n", None), ("0\n", None), ("100000\n", Some(100_000)), ("fast\n", None)]
        {
            sysfs.write("class/net/eth7/speed", text);
            assert_eq!(Link::named(&sysfs, "eth7"), Link { speed, device: device.clone() });
        }
        assert_eq!(Link::named(&sysfs, "no such interface"), Link::default());
    }
}
