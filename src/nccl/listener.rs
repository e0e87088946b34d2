//! A listener: a socket for the other ranks of a group, and the handle with its addresses.
//!
//! NCCL gives every rank the handles of all. That of rank 0 has the addresses of the group's
//! bootstrap, and the number by which its ranks know one another, which never crosses our network.
//!
//! | bytes of a handle | content (little endian) |
//! |---|---|
//! | 0..8 | magic and version |
//! | 8..16 | the number, drawn for this listener |
//! | 16..18 | port |
//! | 18 | number of addresses |
//! | 19.. | 17 bytes each: 4 or 6, and the address |

use std::ffi::c_int;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::nccl::abi::HANDLE_BYTES;

use super::error::NcclError;
use crate::bootstrap::{TcpBootstrap, TcpOptions};
use ofi::Interface;

/// Prefix of every handle. The last byte is its version.
const MAGIC: [u8; 8] = *b"nvlfgrp\x01";

const ADDRESSES: usize = (HANDLE_BYTES - 19) / 17;

const PATIENCE: Duration = Duration::from_secs(120);

const PROBE: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub(super) struct Listener {
    pub(super) device: c_int,
    /// None once it has made a group.
    socket: Mutex<Option<TcpListener>>,
    pub(super) handle: [u8; HANDLE_BYTES],
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Handle {
    number: u64,
    port: u16,
    addresses: Vec<IpAddr>,
}

impl Listener {
    pub(super) fn new(device: c_int) -> Result<Self, NcclError> {
        let number = getrandom::u64().map_err(|error| NcclError::Listen(error.into()))?;
        let named = std::env::var("NCCL_SOCKET_IFNAME").unwrap_or_default();
        let mut addresses = addresses(&Interface::all(), &named);
        addresses.truncate(ADDRESSES);
        let socket = TcpListener::bind((listens_at(&addresses), 0)).map_err(NcclError::Listen)?;
        let at = socket.local_addr().map_err(NcclError::Listen)?;
        let handle = Handle { number, port: at.port(), addresses }.encode();
        Ok(Self { device, socket: Mutex::new(Some(socket)), handle })
    }

    /// Makes the bootstrap of a group in which this rank is `rank`, from the handles of all. A rank
    /// that has aborted listens no longer, and is not waited for. Collective.
    pub(super) fn meet(
        &self,
        handles: &[&[u8; HANDLE_BYTES]],
        rank: u32,
    ) -> Result<TcpBootstrap, NcclError> {
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner).take();
        let socket = socket.ok_or(NcclError::Used)?;
        let decoded = handles.first().and_then(|handle| Handle::decode(handle));
        let center = decoded.ok_or(NcclError::NoHandle { rank: 0 })?;
        let options = TcpOptions {
            address: center.address(),
            me: rank,
            n_pes: handles.len() as u32,
            job: center.number,
            patience: PATIENCE,
        };
        Ok(if rank == 0 {
            let is_there = |rank: u32| {
                let handle = handles.get(rank as usize).and_then(|handle| Handle::decode(handle));
                handle.is_none_or(|handle| handle.listens())
            };
            TcpBootstrap::center(options, socket, &is_there)?
        } else {
            TcpBootstrap::join_listening(options)?
        })
    }
}

impl Handle {
    fn encode(&self) -> [u8; HANDLE_BYTES] {
        let mut bytes = [0; HANDLE_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..16].copy_from_slice(&self.number.to_le_bytes());
        bytes[16..18].copy_from_slice(&self.port.to_le_bytes());
        bytes[18] = self.addresses.len().min(ADDRESSES) as u8;
        for (place, address) in bytes[19..].chunks_exact_mut(17).zip(&self.addresses) {
            match address {
                IpAddr::V4(address) => {
                    place[0] = 4;
                    place[1..5].copy_from_slice(&address.octets());
                }
                IpAddr::V6(address) => {
                    place[0] = 6;
                    place[1..].copy_from_slice(&address.octets());
                }
            }
        }
        bytes
    }

    fn decode(bytes: &[u8; HANDLE_BYTES]) -> Option<Self> {
        let rest = bytes.strip_prefix(&MAGIC)?;
        let (number, rest) = rest.split_first_chunk()?;
        let (port, rest) = rest.split_first_chunk()?;
        let (count, places) = rest.split_first()?;
        let address = |place: &[u8]| match *place.first()? {
            4 => Some(IpAddr::from(*place[1..].first_chunk::<4>()?)),
            6 => Some(IpAddr::from(*place[1..].first_chunk::<16>()?)),
            _ => None,
        };
        let places = places.chunks_exact(17).take((*count).into());
        Some(Self {
            number: u64::from_le_bytes(*number),
            port: u16::from_le_bytes(*port),
            addresses: places.map(address).collect::<Option<_>>()?,
        })
    }

    fn listens(&self) -> bool {
        let refuses = |address: &IpAddr| {
            let at = SocketAddr::new(*address, self.port);
            let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
            TcpStream::connect_timeout(&at, PROBE).is_err_and(refused)
        };
        self.addresses.is_empty() || !self.addresses.iter().all(refuses)
    }

    fn address(&self) -> String {
        let at = |address: &IpAddr| SocketAddr::new(*address, self.port).to_string();
        self.addresses.iter().map(at).collect::<Vec<_>>().join(",")
    }
}

/// The address to listen at: that in the handle, or any if the handle has several.
fn listens_at(told: &[IpAddr]) -> IpAddr {
    match told {
        [one] => *one,
        // IPv6 sockets need not accept IPv4, nor be supported.
        all if all.iter().all(IpAddr::is_ipv4) => Ipv4Addr::UNSPECIFIED.into(),
        _ => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// Addresses by which other hosts may reach this one, the likeliest first. If `named`, as NCCL
/// reads it (beginnings of names, or whole ones behind `=`), selects interfaces, only the first
/// one's; else all that lead out of the host and no `^` excludes; else loopback's first.
fn addresses(interfaces: &[Interface], named: &str) -> Vec<IpAddr> {
    // A link-local address is valid only with an interface's number.
    let is_link_local =
        |one: &Interface| matches!(one.address, IpAddr::V6(it) if it.is_unicast_link_local());
    let all = || interfaces.iter().filter(|one| one.running && !is_link_local(one));
    let (excludes, named) = named.strip_prefix('^').map_or((false, named), |rest| (true, rest));
    let (exact, names) = named.strip_prefix('=').map_or((false, named), |rest| (true, rest));
    let is_named = |one: &&Interface| {
        let mut names = names.split(',').filter(|name| !name.is_empty());
        names.any(|name| if exact { one.name == name } else { one.name.starts_with(name) })
    };
    let leads_out = |one: &&Interface| !one.loopback && !Interface::is_virtual_bridge(&one.name);
    let address = |one: &Interface| one.address;
    if !excludes {
        if let Some(first) = all().find(is_named) {
            return vec![first.address];
        }
    }
    let wanted = |one: &&Interface| leads_out(one) && !(excludes && is_named(one));
    let outward: Vec<IpAddr> = all().filter(wanted).map(address).collect();
    if !outward.is_empty() {
        return outward;
    }
    all().filter(|one| one.loopback).map(address).take(1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, address: &str) -> Interface {
        let address = address.parse().unwrap();
        let (loopback, running, last_resort) = (name == "lo", true, false);
        Interface { name: name.into(), address, loopback, running, last_resort }
    }

    #[test]
    fn foreign_handles_are_refused() {
        let addresses = ["10.0.0.7", "fd00::7"].map(|text| text.parse().unwrap());
        let handle = Handle { number: 77, port: 4711, addresses: addresses.into() };
        let bytes = handle.encode();
        assert_eq!(Handle::decode(&bytes), Some(handle.clone()));
        assert_eq!(handle.address(), "10.0.0.7:4711,[fd00::7]:4711");
        for at in [0, 7, 19] {
            let mut other = bytes;
            other[at] ^= 1;
            assert_eq!(Handle::decode(&other), None, "{at}");
        }
        assert_eq!(Handle::decode(&[0; HANDLE_BYTES]), None);
    }

    #[test]
    fn listener_binds_announced_address() {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        for (told, at) in [
            (&["127.0.0.1"][..], "127.0.0.1"),
            (&["fd00::7"], "fd00::7"),
            (&["10.0.0.7", "10.1.0.7"], "0.0.0.0"),
            (&["10.0.0.7", "fd00::7"], "::"),
        ] {
            let told: Vec<IpAddr> = told.iter().map(|told| address(told)).collect();
            assert_eq!(listens_at(&told), address(at));
        }
    }

    #[test]
    fn announced_addresses_are_reachable() {
        let all = [
            interface("lo", "127.0.0.1"),
            interface("docker0", "172.17.0.1"),
            interface("eth0", "10.0.0.7"),
            interface("eth0", "fe80::7"),
            interface("ib0", "10.1.0.7"),
        ];
        let told = |named: &str| -> Vec<String> {
            addresses(&all, named).iter().map(ToString::to_string).collect()
        };
        assert_eq!(told(""), ["10.0.0.7", "10.1.0.7"]);
        assert_eq!(told("ib"), ["10.1.0.7"]);
        assert_eq!(told("eth,ib"), ["10.0.0.7"]);
        assert_eq!(told("=ib"), ["10.0.0.7", "10.1.0.7"], "there is none of that name");
        assert_eq!(told("lo"), ["127.0.0.1"]);
        assert_eq!(told("^eth,docker"), ["10.1.0.7"]);
        assert_eq!(told("^=eth"), ["10.0.0.7", "10.1.0.7"]);
        let loopback = [interface("lo", "127.0.0.1"), interface("lo", "::1")];
        assert_eq!(addresses(&loopback, ""), [all[0].address], "better than nothing");
    }
}
