//! Hosts with interfaces that reach nobody: jobs go on over the rest, which they name.

use libtest_mimic::{Failed, Trial};
use nvshmem_sim::{JobReport, JobSettings, Layout, Outcome, PeReport};
use test_support::needs::{self, Need};
use test_support::network::{self, Namespace, Network};

use crate::fabric::{DEVICES, Fabric, job_on, says};

/// PEs of each of the two hosts.
const HERE: u32 = 2;
const PES: u32 = 2 * HERE;

type Run = fn(JobSettings) -> Result<(), Failed>;

pub(crate) fn trials() -> Vec<Trial> {
    let hosts = network::possible();
    let rules = hosts.clone().and_then(|()| firewall_possible());
    let cases: [(_, Run, _); 5] = [
        ("dead_rails_are_left_out", dead_rails, &hosts),
        ("one_way_firewall", one_way_firewall, &rules),
        ("no_rail_between_hosts", no_rail, &hosts),
        ("different_nics", different_nics, &hosts),
        ("ipv6_alone", ipv6_alone, &hosts),
    ];
    let of = |fabric: Fabric| cases.map(|(name, run, need)| trial(fabric, name, run, need.clone()));
    [Fabric::Rxm, Fabric::Tcp2].into_iter().flat_map(of).collect()
}

fn trial(fabric: Fabric, name: &str, run: Run, need: Need<()>) -> Trial {
    let need = need.and_then(|()| fabric.library());
    needs::trial(format!("rails::{name}_{}", fabric.name()), need, move |_| {
        let job = job_on(fabric, "storm", PES, 1, Layout::V7);
        let mut job = job.heap(32 << 20, 1 << 20).pes_per_node(HERE);
        job.env.remove(DEVICES);
        run(job)
    })
}

fn firewall_possible() -> Need<()> {
    let made = Namespace::new().and_then(|namespace| namespace.ip(&firewall("lo")));
    made.map_err(|error| format!("there are no rules for ports here: {error}"))
}

/// Ports on which libfabric listens.
const PORTS: [&str; 2] = ["20000", "20999"];

/// Drops what comes in for those ports, so that only this side can connect.
fn firewall(interface: &str) -> [String; 3] {
    let [first, last] = PORTS;
    [
        String::from("rule add pref 100 lookup local"),
        String::from("rule del pref 0"),
        format!("rule add pref 50 iif {interface} ipproto tcp dport {first}-{last} blackhole"),
    ]
}

fn on(network: &Network, mut job: JobSettings) -> Result<JobReport, Failed> {
    for pe in 0..PES {
        job.prefix_of_pe.insert(pe, network.hosts[(pe / HERE) as usize].prefix());
    }
    Ok(job.run()?)
}

/// Gives each host these interfaces, which are up and lead nowhere.
fn add_dead(network: &Network, interfaces: &[(&str, &str)]) -> Result<(), Failed> {
    for (host, namespace) in network.hosts.iter().enumerate() {
        namespace.ip(&[String::from("link set lo up")])?;
        for (at, (name, prefix)) in interfaces.iter().enumerate() {
            // Different numbers, as for rails.
            let (near, far) = (100 + 2 * at, 101 + 2 * at);
            let (ip, bits) = prefix.split_once('/').ok_or("an address has a length")?;
            namespace.ip(&[
                format!("link add {name} index {near} type veth peer name far{at} index {far}"),
                format!("addr add {ip}{}/{bits} dev {name}", host + 1),
                format!("link set far{at} up"),
                format!("link set {name} up"),
            ])?;
        }
    }
    Ok(network.wait_for_carriers("dead", interfaces.len())?)
}

/// A link-local address, a VPN, and a rail over which one host does not reach the other.
fn dead_rails(job: JobSettings) -> Result<(), Failed> {
    let network = Network::new(2, 2)?;
    add_dead(
        &network,
        &[("deadauto", "169.254.7./16"), ("deadvpn", "10.8.0./24"), ("deadone", "10.9.0./32")],
    )?;
    network.hosts[1].ip(&[String::from("route add blackhole 10.77.1.1/32")])?;
    let report = on(&network, job)?.check()?;
    for (pe, text) in (0..).zip(report.pes.iter().map(PeReport::text)) {
        let said: Vec<&str> = text.lines().filter(|of| of.contains("rails left out")).collect();
        let is_named =
            |line: &&str| ["deadauto", "deadvpn", "rail1"].iter().all(|rail| line.contains(rail));
        let right = said.iter().filter(|line| is_named(line) && !line.contains("rail0")).count();
        // Once for each host.
        if [said.len(), right] != [usize::from(pe % HERE == 0); 2] {
            return Err(format!("PE {pe} says {said:?}:\n{report}").into());
        }
        let devices = text.lines().find(|line| line.contains("5 device(s): ")).unwrap_or("");
        let place = |name| devices.find(name);
        let doubtful = ["deadauto", "deadone"].map(place);
        if doubtful.iter().min() <= ["rail0", "rail1", "deadvpn"].map(place).iter().max() {
            return Err(format!("what may reach nobody is not the last: {devices}").into());
        }
    }
    Ok(())
}

/// Only one host can connect to the other, which is not enough: each has connections that peers
/// never open.
fn one_way_firewall(job: JobSettings) -> Result<(), Failed> {
    let [first, last] = PORTS;
    let job = job.env("FI_TCP_PORT_LOW_RANGE", first).env("FI_TCP_PORT_HIGH_RANGE", last);
    for closed in 0..2 {
        let network = Network::new(2, 1)?;
        network.hosts[closed].ip(&firewall("rail0"))?;
        let report = on(&network, job.clone())?;
        ends(&report, &["rail0 of "])?;
        // Of two that connect at the same time, providers keep the higher address's connection.
        if closed == 1 && report.pes[0].text().contains("(PE 2) does not reach ") {
            return Err(format!("the way back works:\n{report}").into());
        }
    }
    Ok(())
}

fn no_rail(job: JobSettings) -> Result<(), Failed> {
    let network = Network::new(2, 0)?;
    add_dead(&network, &[("dead0", "10.7.0./24"), ("dead1", "10.8.0./24")])?;
    ends(&on(&network, job)?, &["dead0 of ", "dead1 of ", "does not reach"])
}

/// PEs of a host have a NIC each, and one of them reaches only that of the other host's first PE.
fn different_nics(mut job: JobSettings) -> Result<(), Failed> {
    let network = Network::new(2, 2)?;
    network.hosts[0].ip(&[String::from("rule add from 10.77.0.1 to 10.77.1.2 blackhole")])?;
    for pe in 0..PES {
        job = job.env_of_pe(pe, DEVICES, format!("rail{}", pe % HERE));
    }
    ends(&on(&network, job)?, &["PE 0 and PE 3", "rail0 of ", "rail1 of "])
}

/// Checks that every PE has failed, with an error that contains these parts.
fn ends(report: &JobReport, parts: &[&str]) -> Result<(), Failed> {
    for pe in &report.pes {
        if !matches!(pe.outcome, Outcome::Failed(_)) {
            return Err(format!("PE {} {}", pe.pe, pe.outcome).into());
        }
        let text = pe.text();
        let errors: String = text.lines().filter(|line| line.contains("ERROR")).collect();
        parts.iter().chain(&["no rail joins PE "]).try_for_each(|part| says(&errors, part))?;
    }
    Ok(())
}

fn ipv6_alone(job: JobSettings) -> Result<(), Failed> {
    let network = Network::new(2, 1)?;
    for (host, namespace) in (1..).zip(&network.hosts) {
        let own = format!("addr add fd77::{host}/64 dev rail0 nodad");
        namespace.ip(&[String::from("addr flush dev rail0"), own])?;
    }
    on(&network, job)?.check()?;
    Ok(())
}
