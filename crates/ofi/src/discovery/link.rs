//! The link of a network interface: how fast it is, and whose.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use crate::discovery::interface::Interface;
use crate::topology::sysfs;

/// What is known of the network interface that a rail is on.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Link {
    /// Its speed in Mbit/s. None for interfaces without, such as loopback and most virtual ones.
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
        // -1 where there is none, and an error where that is not known.
        let speed = fs::read_to_string(place.join("speed")).ok();
        let speed = speed.and_then(|text| text.trim().parse().ok()).filter(|speed| *speed > 0);
        Self { speed, device: fs::canonicalize(place.join("device")).ok() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_of_an_unknown_speed() {
        assert_eq!(Link::named(&sysfs(), "lo"), Link::default());
        assert_eq!(Link::named(&sysfs(), "no such interface"), Link::default());
        assert_eq!(Link::at(None), Link::default());
    }

    #[test]
    fn a_link_is_as_fast_as_the_kernel_says() {
        let folder = std::env::temp_dir().join(format!("nvshmem-link-{}", std::process::id()));
        let place = folder.join("class/net/eth7");
        fs::create_dir_all(place.join("device")).expect("a folder");
        let links = ["-1\n", "0\n", "1\n", "100000\n", "fast\n"].map(|text| {
            fs::write(place.join("speed"), text).expect("a file");
            Link::named(&folder, "eth7")
        });
        let device = fs::canonicalize(place.join("device")).ok();
        fs::remove_dir_all(&folder).expect("removed");
        assert_eq!(
            links.each_ref().map(|link| link.speed),
            [None, None, Some(1), Some(100_000), None]
        );
        assert!(device.is_some() && links.iter().all(|link| link.device == device));
    }
}
