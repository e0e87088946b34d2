use std::ffi::CStr;
use std::net::{IpAddr, UdpSocket};
use std::ptr;

use crate::objects::info::sockaddr_ip;

/// One address of one interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interface {
    pub name: String,
    pub address: IpAddr,
    /// Whether the interface reaches only this host.
    pub loopback: bool,
    /// Whether it is up and has a carrier.
    pub running: bool,
    /// Whether it likely reaches few hosts, slowly, or none: a VPN or another link to one peer, a
    /// network of one address, or a link-local address.
    pub last_resort: bool,
}

impl Interface {
    /// Lists all addresses of all interfaces; empty if the kernel refuses.
    pub fn all() -> Vec<Self> {
        let mut list = ptr::null_mut();
        // SAFETY: getifaddrs writes the head of a list, to be freed below.
        if unsafe { libc::getifaddrs(&mut list) } != 0 {
            return Vec::new();
        }
        let one_address: [IpAddr; 2] = [[0xff; 4].into(), [0xff; 16].into()];
        let mut interfaces = Vec::new();
        let mut next = list;
        while !next.is_null() {
            // SAFETY: an entry of the live list.
            let entry = unsafe { &*next };
            next = entry.ifa_next;
            // SAFETY: the kernel's socket addresses are as long as their family says.
            let address = unsafe { sockaddr_ip(entry.ifa_addr.cast(), usize::MAX) };
            let Some(address) = address else { continue };
            // SAFETY: a string that ends in a zero byte, part of the live list.
            let name = unsafe { CStr::from_ptr(entry.ifa_name) }.to_string_lossy().into_owned();
            // SAFETY: as above; the mask is of the address's family, and null where there is none.
            let mask = unsafe { sockaddr_ip(entry.ifa_netmask.cast(), usize::MAX) };
            let flag = |flag: i32| entry.ifa_flags & flag as u32 != 0;
            interfaces.push(Self {
                name,
                address,
                loopback: flag(libc::IFF_LOOPBACK),
                running: flag(libc::IFF_UP) && flag(libc::IFF_RUNNING),
                last_resort: flag(libc::IFF_POINTOPOINT)
                    || mask.is_some_and(|mask| one_address.contains(&mask))
                    || is_link_local(address),
            });
        }
        // SAFETY: from getifaddrs, freed once; nothing of it is referred to any more.
        unsafe { libc::freeifaddrs(list) };
        interfaces
    }

    /// Returns true if the name is one that the usual software gives to interfaces of containers or
    /// virtual machines of this host, which reach no other host.
    pub fn is_virtual_bridge(name: &str) -> bool {
        ["docker", "virbr", "veth", "br-", "vnet", "cni", "lxc", "lxd", "cali", "flannel", "podman"]
            .iter()
            .any(|prefix| name.starts_with(prefix))
    }
}

pub(crate) fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

pub(crate) fn is_local(address: IpAddr) -> bool {
    // Binding sends nothing; it asks the kernel, which knows all of 127.0.0.0/8 as well.
    UdpSocket::bind((address, 0)).is_ok()
}
