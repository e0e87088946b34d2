//! The link of a network interface: how fast it is, and whose.

use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;

use crate::discovery::interface::Interface;
use crate::topology::sysfs;

/// What is known of the network interface that a rail is on.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Link {
    /// Its speed in Mbit/s. None for interfaces without, such as loopback and most virtual ones.
    pub(crate) speed: Option<u32>,
    /// The device's directory in sysfs.
    pub(crate) device: Option<PathBuf>,
}

impl Link {
    /// That of the interface that has an address. Nothing is known of it where there is none.
    pub(crate) fn at(address: Option<IpAddr>) -> Self {
        let found = Interface::all().into_iter().find(|one| Some(one.address) == address);
        found.map(|interface| Self::named(&interface.name)).unwrap_or_default()
    }

    fn named(interface: &str) -> Self {
        let place = sysfs().join("class/net").join(interface);
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
        assert_eq!(Link::named("lo"), Link::default());
        assert_eq!(Link::named("no such interface"), Link::default());
        assert_eq!(Link::at(None), Link::default());
    }
}
