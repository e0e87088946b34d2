//! Hosts joined by rails: what the lab is made of.
//!
//! Each rail is a network by itself, 10.77.RAIL.0/24, in which host H has the address
//! 10.77.RAIL.(H + 1), on an interface named `railRAIL`. Two hosts are joined by a pair of virtual
//! Ethernet interfaces for each rail. More hosts are each joined to a switch: a namespace with one
//! bridge for each rail. Every interface that sends onto a link is shaped with a token bucket, so a
//! link has its rate in each direction by itself.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::error::LabError;
use crate::namespace::Namespace;
use crate::rate::Rate;

/// The largest packet. What TCP carries in such packets is 99.2 % of what is on the wire.
const MTU: u32 = 9000;

/// What TCP hands down at once as one packet (segmentation offload), in bytes: less than two of
/// them, as the token bucket passes a packet whole or not at all.
const GSO: u32 = 16 << 10;

/// Bytes that may leave at more than the rate after a pause: two packets, and what a timer that is
/// late may cost. With less a link does not come to its rate; and an operation gains that much on
/// each rail that it uses, so it is to be small.
const BURST: u32 = 18 << 10;
const LATE: Duration = Duration::from_micros(50);

/// Bytes that wait at a shaped interface before packets are dropped.
const LIMIT: u32 = 512 << 10;

/// Numbers of interfaces are made of these.
const MOST_HOSTS: usize = 64;
const MOST_RAILS: usize = 32;

/// How long the kernel may take until a new link is in service.
const CARRIER: Duration = Duration::from_secs(10);

/// A link: of one host, on one rail.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Link {
    /// Counted from 0.
    pub host: usize,
    /// Counted from 0.
    pub rail: usize,
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "host{}/rail{}", self.host, self.rail)
    }
}

/// One end of a link.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// The host's own interface: its NIC. Down, it has no route to the rail any more.
    #[default]
    Nic,
    /// What it is joined to: the switch, or the interface of the only other host. Down, the host's
    /// own interface is up but has no carrier.
    Far,
}

/// What becomes of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// The interface is taken down, as by `ip link set down`. Connections are not reset.
    Down,
    /// It is taken up again.
    Up,
    /// The link gets another rate, in both directions.
    Rate(Rate),
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Down => f.write_str("down"),
            Change::Up => f.write_str("up"),
            Change::Rate(rate) => rate.fmt(f),
        }
    }
}

/// Bytes that an interface has carried, as the kernel counts them: whole packets, and everything
/// beside the payload as well.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Carried {
    /// Sent by the host.
    pub sent: u64,
    /// Received by the host.
    pub received: u64,
}

/// Hosts and their rails. Removed when dropped and when this process ends.
#[derive(Debug)]
pub struct Network {
    hosts: Vec<Arc<Namespace>>,
    /// Between more than two hosts.
    switch: Option<Namespace>,
    rails: usize,
}

impl Network {
    /// Makes `n_hosts` hosts with a rail of each of the rates.
    ///
    /// # Errors
    /// The kernel or `ip` and `tc` refuse something; see [`crate::possible`].
    pub fn new(n_hosts: usize, rates: &[Rate]) -> Result<Network, LabError> {
        if !(2..=MOST_HOSTS).contains(&n_hosts) || !(1..=MOST_RAILS).contains(&rates.len()) {
            let text = format!("{n_hosts} hosts with {} rails", rates.len());
            let why = format!("a lab has 2 to {MOST_HOSTS} hosts with 1 to {MOST_RAILS} rails");
            return Err(LabError::text(text, why));
        }
        let hosts = (0..n_hosts).map(|_| Namespace::new().map(Arc::new));
        let hosts = hosts.collect::<Result<Vec<_>, _>>()?;
        let switch = (n_hosts > 2).then(Namespace::new).transpose()?;
        for namespace in hosts.iter().map(|host| &**host).chain(&switch) {
            namespace.inside(settle)?;
        }
        let network = Network { hosts, switch, rails: rates.len() };
        network.join()?;
        for (rail, rate) in rates.iter().enumerate() {
            for host in 0..n_hosts {
                network.shape(Link { host, rail }, "add", *rate)?;
            }
        }
        network.wait_for_carriers()?;
        Ok(network)
    }

    /// The hosts' networks.
    pub fn hosts(&self) -> &[Arc<Namespace>] {
        &self.hosts
    }

    /// Number of rails.
    pub fn rails(&self) -> usize {
        self.rails
    }

    /// Address of a host on a rail.
    pub fn address(link: Link) -> String {
        format!("10.77.{}.{}", link.rail, link.host + 1)
    }

    /// Changes a link. At [`End::Far`] it is taken down or up from outside of the host.
    ///
    /// # Errors
    /// There is no such link, or `ip` or `tc` refuses.
    pub fn change(&self, link: Link, end: End, change: Change) -> Result<(), LabError> {
        if link.host >= self.hosts.len() || link.rail >= self.rails {
            return Err(LabError::text(link.to_string(), "this lab has no such link"));
        }
        let state = match change {
            Change::Rate(rate) => return self.shape(link, "change", rate),
            Change::Down => "down",
            Change::Up => "up",
        };
        let (namespace, name) = match end {
            End::Nic => (&*self.hosts[link.host], nic(link.rail)),
            End::Far => self.far(link),
        };
        namespace.ip(&[format!("link set {name} {state}")])
    }

    /// What a host has carried, by rail.
    ///
    /// # Errors
    /// The kernel's list of interfaces is not as expected.
    pub fn carried(&self, host: usize) -> Result<Vec<Carried>, LabError> {
        const LIST: &str = "/proc/thread-self/net/dev";
        let text = self.hosts[host]
            .inside(|| std::fs::read_to_string(LIST).map_err(|e| LabError::new(LIST, e)))?;
        (0..self.rails)
            .map(|rail| {
                carried(&text, &nic(rail))
                    .ok_or_else(|| LabError::text(LIST, format!("no {}: {text}", nic(rail))))
            })
            .collect()
    }

    /// Makes the interfaces and joins them.
    fn join(&self) -> Result<(), LabError> {
        if let Some(switch) = &self.switch {
            let bridges = (0..self.rails).flat_map(|rail| {
                [
                    format!("link add bridge{rail} mtu {MTU} type bridge"),
                    format!("link set bridge{rail} up"),
                ]
            });
            switch.ip(&bridges.collect::<Vec<_>>())?;
        }
        for (host, namespace) in self.hosts.iter().enumerate() {
            let mut lines = vec!["link set lo up".to_string()];
            let mut far_lines = Vec::new();
            for rail in 0..self.rails {
                let link = Link { host, rail };
                let (name, address) = (nic(rail), Network::address(link));
                // The pairs between two hosts are made by the first and found by the second.
                if self.switch.is_some() || host == 0 {
                    let (far, far_name) = self.far(link);
                    let far_place = far.path();
                    // Were both numbers the same, the kernel would take the interface for one that
                    // stands for itself and make up to a second of it to find its carrier.
                    let index = 10 + host * MOST_RAILS + rail;
                    let far_index = 10_000 + index;
                    lines.push(format!(
                        "link add {name} index {index} mtu {MTU} type veth peer name {far_name} \
                         index {far_index} mtu {MTU} netns {far_place}"
                    ));
                    if self.switch.is_some() {
                        far_lines.push(format!(
                            "link set {far_name} gso_max_size {GSO} master \
                             bridge{rail} up"
                        ));
                    }
                }
                lines.push(format!("link set {name} gso_max_size {GSO}"));
                lines.push(format!("addr add {address}/24 dev {name}"));
                lines.push(format!("link set {name} up"));
            }
            namespace.ip(&lines)?;
            if let Some(switch) = &self.switch {
                switch.ip(&far_lines)?;
            }
        }
        Ok(())
    }

    /// Waits until every host's interfaces are in service: libfabric passes over those that are
    /// not.
    ///
    /// # Errors
    /// They are not, for longer than that takes.
    pub fn wait_for_carriers(&self) -> Result<(), LabError> {
        let start = Instant::now();
        for (host, namespace) in self.hosts.iter().enumerate() {
            loop {
                // One line for each interface: its number, its name and its flags.
                let up = namespace.ask("ip", &["-oneline", "link", "show", "up"])?;
                let ready = up.lines().filter(|l| l.contains(" rail") && l.contains("LOWER_UP"));
                if ready.count() == self.rails {
                    break;
                }
                if start.elapsed() > CARRIER {
                    let tried = format!("waiting for the links of host{host}");
                    return Err(LabError::text(tried, up));
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        Ok(())
    }

    /// The other end of a link, with its name there.
    pub fn far(&self, link: Link) -> (&Namespace, String) {
        match &self.switch {
            Some(switch) => (switch, format!("h{}r{}", link.host, link.rail)),
            None => (&self.hosts[1 - link.host], nic(link.rail)),
        }
    }

    /// Gives a link its rate in both directions. Between two hosts each end is a host's own, and is
    /// shaped twice alike.
    fn shape(&self, link: Link, verb: &str, rate: Rate) -> Result<(), LabError> {
        let burst = BURST + (rate.bytes_per_second() * LATE.as_secs_f64()) as u32;
        let line = |name: &str| {
            let rate = rate.for_tc();
            format!("qdisc {verb} dev {name} root tbf rate {rate} burst {burst} limit {LIMIT}")
        };
        self.hosts[link.host].tc(&[line(&nic(link.rail))])?;
        let (far, name) = self.far(link);
        match verb {
            // When the lab is made, the other host has its turn.
            "add" if self.switch.is_none() => Ok(()),
            _ => far.tc(&[line(&name)]),
        }
    }
}

/// The name of the interface for a rail, on every host.
pub(crate) fn nic(rail: usize) -> String {
    format!("rail{rail}")
}

/// Makes all labs alike, in an empty namespace. Congestion control is Reno, which is in every
/// kernel and free for every namespace: the machine's own may probe, or pace by its own idea of the
/// rate. There is no IPv6, whose interfaces talk by themselves.
fn settle() -> Result<(), LabError> {
    const CONTROL: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
    const IPV6: &str = "/proc/sys/net/ipv6/conf/default/disable_ipv6";
    std::fs::write(CONTROL, "reno").map_err(|e| LabError::new(CONTROL, e))?;
    match std::fs::write(IPV6, "1") {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(LabError::new(IPV6, e)),
        _ => Ok(()),
    }
}

/// Reads a line of `/proc/net/dev`: the name, eight numbers of what was received, eight of what was
/// sent, bytes first.
fn carried(list: &str, name: &str) -> Option<Carried> {
    let of_line = |line: &str| {
        let (interface, numbers) = line.split_once(':')?;
        (interface.trim() == name).then_some(())?;
        let mut numbers = numbers.split_whitespace().map(str::parse);
        let received = numbers.next()?.ok()?;
        Some(Carried { received, sent: numbers.nth(7)?.ok()? })
    };
    list.lines().find_map(of_line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_list_of_interfaces_is_read() {
        let list = "Inter-|   Receive    |  Transmit\n face |bytes packets errs drop fifo frame \
                    compressed multicast|bytes packets errs drop fifo colls carrier compressed\n\
                    \x20   lo:  1 1 0 0 0 0 0 0  2 1 0 0 0 0 0 0\n rail1: 30 1 0 0 0 0 0 0 40 1 0 \
                    0 0 0 0 0\nrail10: 5 1 0 0 0 0 0 0 6 1 0 0 0 0 0 0\n";
        assert_eq!(carried(list, "rail1"), Some(Carried { received: 30, sent: 40 }));
        assert_eq!(carried(list, "rail10"), Some(Carried { received: 5, sent: 6 }));
        assert_eq!(carried(list, "rail2"), None);
    }
}
