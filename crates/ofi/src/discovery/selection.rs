//! Selection of the listed devices that become rails, and their order.
//!
//! The policy works on names and addresses, without libfabric.

use std::net::{IpAddr, Ipv4Addr};

use crate::discovery::interface::{Interface, is_link_local};
use crate::error::Refusal;
use crate::options::Devices;
use crate::provider::Profile;

/// Properties of a listed device on which the choice depends.
#[derive(Clone, Debug, Default)]
pub(crate) struct Listed {
    pub(crate) domain: String,
    pub(crate) interface: Option<String>,
    pub(crate) nic: Option<String>,
    pub(crate) ip: Option<IpAddr>,
    pub(crate) loopback: bool,
    /// Whether the interface is up; true if none is known.
    pub(crate) running: bool,
    /// Whether it is to be the last rail, as [`Interface::last_resort`].
    pub(crate) last_resort: bool,
}

impl Listed {
    fn name(&self) -> &str {
        self.nic.as_ref().or(self.interface.as_ref()).unwrap_or(&self.domain)
    }

    /// Returns true if a user's entry, a name or an IP address, means this device.
    pub(crate) fn is_called(&self, name: &str) -> bool {
        let names = [Some(&self.domain), self.interface.as_ref(), self.nic.as_ref()];
        names.into_iter().flatten().any(|own| own == name)
            || self.ip.is_some_and(|ip| name.parse() == Ok(ip))
    }

    /// Ranks its address among those of the same device, the lowest being the best. verbs lists
    /// each GID as an InfiniBand address (`AF_IB`) beside the IP addresses of the port: on RoCE the
    /// kernel cannot connect these, and InfiniBand without IPoIB has no others (libfabric,
    /// `vrb_get_sib` of `prov/verbs/src/verbs_info.c`; Linux, `rdma_cap_af_ib`). A link-local
    /// address contains the number of an interface of this host, and works elsewhere only if the
    /// number is the same there.
    fn rank(&self) -> u8 {
        match self.ip {
            Some(ip) if is_link_local(ip) => 2,
            Some(IpAddr::V4(_)) => 0,
            Some(IpAddr::V6(_)) => 1,
            None => 3,
        }
    }

    fn describe(&self) -> String {
        let mut names = vec![self.name()];
        if self.domain != names[0] {
            names.push(&self.domain);
        }
        match self.ip {
            Some(ip) => format!("{} ({ip})", names.join("/")),
            None => names.join("/"),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DeviceSource {
    /// The list entry with this index.
    Listed(usize),
    /// A query for this source address.
    Address(IpAddr),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ChosenDevice {
    /// Name of the rail: the user's entry, if any.
    pub(crate) name: String,
    pub(crate) source: DeviceSource,
}

/// Chosen devices, and the listed ones that were not chosen.
pub(crate) type Selection = (Vec<ChosenDevice>, Vec<Refusal>);

pub(crate) fn describe(listed: &[Listed]) -> String {
    let mut described: Vec<String> = Vec::new();
    for device in listed {
        let text = device.describe();
        if !described.contains(&text) {
            described.push(text);
        }
    }
    if described.is_empty() { String::from("nothing") } else { described.join(", ") }
}

/// # Errors
/// The first entry of an include list that matches nothing.
pub(crate) fn select(
    devices: &Devices,
    listed: &[Listed],
    profile: &'static Profile,
    single_host: bool,
) -> Result<Selection, String> {
    let (mut choices, mut refusals) = match devices {
        Devices::Any | Devices::Exclude(_) => default_choice(listed, profile, single_host),
        Devices::Include(entries) => {
            let choose = |entry: &String| match find(entry, listed, profile) {
                Some(source) => Ok(ChosenDevice { name: entry.clone(), source }),
                None => Err(entry.clone()),
            };
            (entries.iter().map(choose).collect::<Result<_, _>>()?, Vec::new())
        }
    };
    if let Devices::Exclude(entries) = devices {
        let is_called = |choice: &ChosenDevice, entry: &String| match choice.source {
            DeviceSource::Listed(index) => choice.name == *entry || listed[index].is_called(entry),
            DeviceSource::Address(ip) => entry.parse() == Ok(ip),
        };
        choices.retain(|choice| {
            let is_excluded = entries.iter().any(|entry| is_called(choice, entry));
            if is_excluded {
                let reason = String::from("excluded by NVSHMEM_LIBFABRIC_DEVICES");
                refusals.push(Refusal::new(profile, Some(choice.name.clone()), reason));
            }
            !is_excluded
        });
    }
    number_repetitions(&mut choices);
    Ok((choices, refusals))
}

fn find(entry: &str, listed: &[Listed], profile: &'static Profile) -> Option<DeviceSource> {
    // Every host has the address 127.0.0.2, and none lists it.
    let address = || entry.parse().ok().filter(|_| *profile.by_address).map(DeviceSource::Address);
    best(listed, |device| device.is_called(entry)).map(DeviceSource::Listed).or_else(address)
}

fn best(listed: &[Listed], is_of_device: impl Fn(&Listed) -> bool) -> Option<usize> {
    let entries = listed.iter().enumerate().filter(|(_, entry)| is_of_device(entry));
    entries.min_by_key(|(_, entry)| entry.rank()).map(|(at, _)| at)
}

fn default_choice(listed: &[Listed], profile: &'static Profile, single_host: bool) -> Selection {
    let (mut choices, mut refusals) = (Vec::new(), Vec::new());
    if *profile.interfaces && single_host {
        // Two rails, so that tests on one machine cover several rails.
        for ip in [Ipv4Addr::new(127, 0, 0, 1), Ipv4Addr::new(127, 0, 0, 2)] {
            let listed = listed.iter().position(|device| device.ip == Some(ip.into()));
            let source = listed.map_or(DeviceSource::Address(ip.into()), DeviceSource::Listed);
            choices.push(ChosenDevice { name: ip.to_string(), source });
        }
        return (choices, refusals);
    }
    // IPv4 wherever there is some, as hosts with both have to choose alike.
    let mut ipv4 = listed.iter().filter(|device| device.ip.is_some_and(|ip| ip.is_ipv4()));
    let has_ipv4 = ipv4.any(|device| !device.last_resort && interface_reason(device).is_none());
    // Those that may reach nobody are the last rails.
    let mut order: Vec<(usize, &Listed)> = listed.iter().enumerate().collect();
    order.sort_by_key(|(_, device)| device.last_resort);
    for (index, device) in order {
        match reason_against(index, listed, profile, has_ipv4) {
            Some(reason) => {
                let refusal = Refusal::new(profile, Some(device.describe()), reason);
                if !refusals.contains(&refusal) {
                    refusals.push(refusal);
                }
            }
            None => {
                let (name, source) = (device.name().to_owned(), DeviceSource::Listed(index));
                choices.push(ChosenDevice { name, source });
            }
        }
    }
    (choices, refusals)
}

fn reason_against(
    index: usize,
    listed: &[Listed],
    profile: &'static Profile,
    has_ipv4: bool,
) -> Option<String> {
    let device = &listed[index];
    if *profile.interfaces {
        if let Some(reason) = interface_reason(device) {
            return Some(String::from(reason));
        }
        // A link-local address of IPv6 holds with an interface's number, which its peers lack.
        if device.ip.is_some_and(|ip| ip.is_ipv6() && (has_ipv4 || is_link_local(ip))) {
            return Some(String::from("IPv6; name the address in NVSHMEM_LIBFABRIC_DEVICES"));
        }
    }
    // One rail per device, however many entries the provider lists for it.
    let used = best(listed, |other| other.domain == device.domain)?;
    (used != index).then(|| format!("listed again; {} is used", listed[used].describe()))
}

fn interface_reason(device: &Listed) -> Option<&'static str> {
    let interface = device.interface.as_ref().unwrap_or(&device.domain);
    if device.loopback {
        return Some("loopback reaches no other host");
    }
    if Interface::is_virtual_bridge(interface) {
        return Some(
            "looks like a bridge of containers or virtual machines; name it in \
             NVSHMEM_LIBFABRIC_DEVICES to use it",
        );
    }
    (!device.running).then_some("the interface is down")
}

/// Numbers rails on one device: `shm`, `shm#2`.
fn number_repetitions(choices: &mut [ChosenDevice]) {
    for index in (0..choices.len()).rev() {
        let name = &choices[index].name;
        let before = choices[..index].iter().filter(|choice| choice.name == *name).count();
        if before > 0 {
            choices[index].name = format!("{name}#{}", before + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::{Provider, candidates};

    fn tcp() -> &'static Profile {
        candidates(Provider::TcpRxm)[0]
    }

    fn device(domain: &str, ip: &str) -> Listed {
        let ip: IpAddr = ip.parse().expect("test address");
        Listed {
            domain: domain.to_owned(),
            interface: Some(domain.to_owned()),
            nic: None,
            ip: Some(ip),
            loopback: domain == "lo",
            running: domain != "down0",
            last_resort: domain == "wg0" || is_link_local(ip),
        }
    }

    fn host() -> Vec<Listed> {
        vec![
            device("eth0", "fd00::2"),
            device("eth0", "192.0.2.2"),
            device("eth0", "192.0.2.2"),
            device("eth1", "198.51.100.2"),
            device("docker0", "172.17.0.1"),
            device("down0", "203.0.113.1"),
            device("lo", "127.0.0.1"),
        ]
    }

    fn names(selection: &Selection) -> Vec<&str> {
        selection.0.iter().map(|choice| choice.name.as_str()).collect()
    }

    fn include(entries: &[&str]) -> Devices {
        Devices::Include(entries.iter().map(|entry| entry.to_string()).collect())
    }

    #[test]
    fn every_real_interface_is_one_rail() {
        let selection = select(&Devices::Any, &host(), tcp(), false).unwrap();
        assert_eq!(names(&selection), ["eth0", "eth1"]);
        assert_eq!(selection.0[0].source, DeviceSource::Listed(1), "IPv4 and the first entry");
        let reason = |device: &str| {
            let is_of = |refusal: &&Refusal| refusal.device.iter().any(|at| at.contains(device));
            let of = selection.1.iter().find(is_of);
            of.map(|refusal| refusal.reason.as_str()).unwrap_or_default()
        };
        assert!(reason("docker0").contains("bridge"));
        assert!(reason("down0").contains("down"));
        assert!(reason("lo").contains("loopback"));
        assert!(reason("fd00::2").contains("IPv6"));
    }

    /// Output of `fi_info -p "verbs;ofi_rxm"` of libfabric 1.17 and 2.5.1 in a guest of
    /// `make labs`: NICs of soft RoCE, one with IPv6 alone, and their GIDs, no IP addresses here.
    fn roce() -> Vec<Listed> {
        let entries = [
            ("rxe0", "10.77.0.1"),
            ("rxe0", "fe80::5054:ff:fe00:100"),
            ("rxe0", "fi_sockaddr_ib://[fe80::5054:ff:fe00:100]:0xffff:0x13f:0x0"),
            ("rocep2s0", "fd77::1"),
            ("rocep2s0", "fe80::5054:ff:fe00:102"),
            ("rocep2s0", "fi_sockaddr_ib://[fe80::5054:ff:fe00:102]:0xffff:0x13f:0x0"),
            ("rocep2s0", "fi_sockaddr_ib://[fd77::1]:0xffff:0x13f:0x0"),
        ];
        let listed = |(nic, ip): (&str, &str)| Listed {
            domain: nic.to_owned(),
            nic: Some(nic.to_owned()),
            ip: ip.parse().ok(),
            running: true,
            ..Listed::default()
        };
        entries.into_iter().map(listed).collect()
    }

    #[test]
    fn nic_uses_connecting_address() {
        let verbs = candidates(Provider::Verbs)[0];
        let mut listed = roce();
        // In whatever order.
        for _ in 0..2 {
            for devices in [Devices::Any, include(&["rxe0", "rocep2s0"])] {
                let selection = select(&devices, &listed, verbs, false).unwrap();
                let ip = |choice: &ChosenDevice| match choice.source {
                    DeviceSource::Listed(at) => listed[at].ip.map(|ip| ip.to_string()),
                    DeviceSource::Address(_) => None,
                };
                let mut used: Vec<_> = selection.0.iter().filter_map(ip).collect();
                used.sort();
                assert_eq!(used, ["10.77.0.1", "fd77::1"], "{devices:?}");
            }
            listed.reverse();
        }
        // InfiniBand without IPoIB has no other.
        listed.retain(|entry| entry.ip.is_none());
        let selection = select(&Devices::Any, &listed, verbs, false).unwrap();
        assert_eq!(names(&selection), ["rxe0", "rocep2s0"]);
        let link_local = include(&["fe80::5054:ff:fe00:102"]);
        let selection = select(&link_local, &roce(), verbs, false).unwrap();
        assert_eq!(selection.0[0].source, DeviceSource::Listed(4), "whoever names one gets it");
    }

    #[test]
    fn unmatched_entry_is_named() {
        let unknown = select(&include(&["eth1", "mlx5_7"]), &host(), tcp(), false).unwrap_err();
        assert_eq!(unknown, "mlx5_7");
        let efa = candidates(Provider::Efa)[0];
        let unknown = select(&include(&["127.0.0.2"]), &host(), efa, false).unwrap_err();
        assert_eq!(unknown, "127.0.0.2", "efa cannot be opened by an address it does not list");
    }

    #[test]
    fn doubtful_interfaces_come_last() {
        let mut listed = vec![
            device("wg0", "10.8.0.1"),
            device("eth2", "169.254.7.7"),
            device("eth0", "fd00::2"),
            device("eth3", "fe80::3"),
            device("docker0", "172.17.0.1"),
        ];
        // Without IPv4 but of these, IPv6 is used.
        let selection = select(&Devices::Any, &listed, tcp(), false).unwrap();
        assert_eq!(names(&selection), ["eth0", "wg0", "eth2"]);
        listed.push(device("eth1", "192.0.2.2"));
        let selection = select(&Devices::Any, &listed, tcp(), false).unwrap();
        assert_eq!(names(&selection), ["eth1", "wg0", "eth2"]);
        // The user's order stays.
        let selection = select(&include(&["wg0", "eth1"]), &listed, tcp(), false).unwrap();
        assert_eq!(names(&selection), ["wg0", "eth1"]);
    }

    #[test]
    fn exclude_list_takes_from_the_default() {
        for (entry, single_host, left) in [
            ("eth0", false, "eth1"),
            ("198.51.100.2", false, "eth0"),
            ("127.0.0.2", true, "127.0.0.1"),
        ] {
            let exclude = Devices::Exclude(vec![entry.to_owned()]);
            let selection = select(&exclude, &host(), tcp(), single_host).unwrap();
            assert_eq!(names(&selection), [left]);
            assert!(selection.1.iter().any(|refusal| refusal.reason.contains("excluded")));
        }
    }

    #[test]
    fn nics_match_by_name_or_domain() {
        let listed = [Listed {
            domain: String::from("rdmap0s6-rdm"),
            nic: Some(String::from("rdmap0s6")),
            running: true,
            ..Listed::default()
        }];
        let efa = candidates(Provider::Efa)[0];
        for name in ["rdmap0s6", "rdmap0s6-rdm"] {
            let selection = select(&include(&[name]), &listed, efa, false).unwrap();
            assert_eq!(selection.0[0].source, DeviceSource::Listed(0));
        }
        let selection = select(&Devices::Any, &listed, efa, false).unwrap();
        assert_eq!(names(&selection), ["rdmap0s6"]);
    }
}
