//! What the rail laboratory is made of: namespaces that are apart, links that carry, fail and
//! change.

use std::process::Command;

use libtest_mimic::{Arguments, Failed};
use rail_lab::{Change, End, Link, Namespace, Network, tcp};
use test_support::needs::{Need, trial};

fn main() {
    let need: Need<()> = rail_lab::possible();
    let mut trials =
        vec![trial("a_namespace_has_interfaces_of_its_own", need.clone(), |()| interfaces())];
    for n_hosts in [2, 3] {
        let name = format!("links_of_{n_hosts}_hosts_carry_fail_and_change_their_rate");
        trials.push(trial(name, need.clone(), move |()| links(n_hosts)));
    }
    trials.push(trial("a_laboratory_in_which_nothing_is_run_fails", need, |()| nothing()));
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

/// Fails with the text unless the condition holds.
fn hold(condition: bool, what: impl Into<String>) -> Result<(), Failed> {
    if condition { Ok(()) } else { Err(what.into().into()) }
}

/// Figures of nothing would look as if all were well.
fn nothing() -> Result<(), Failed> {
    let experiments = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../tests/lab");
    for arguments in
        [["--only", "no-such-run", experiments], ["--plugin-dir", "/", "/proc/self/task"]]
    {
        let output =
            Command::new(env!("CARGO_BIN_EXE_nvshmem-rail-lab")).args(arguments).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        hold(output.status.code() == Some(1), format!("{output:?}"))?;
        hold(said.contains("nothing was run"), said.as_ref())?;
        let figures = String::from_utf8_lossy(&output.stdout);
        hold(!figures.contains("MEASURE"), figures.as_ref())?;
    }
    Ok(())
}

fn interfaces() -> Result<(), Failed> {
    let list = || std::fs::read_to_string("/proc/thread-self/net/dev");
    let namespace = Namespace::new()?;
    namespace.ip(&["link add own0 type veth peer name own1".into()])?;
    let inside = namespace.ask("cat", &["/proc/thread-self/net/dev"])?;
    hold(inside.contains("own0"), format!("no own0: {inside}"))?;
    hold(!list()?.contains("own0"), "this thread has not stayed where it was")?;
    match namespace.ip(&["link set none up".into()]) {
        Ok(()) => Err("a link that is not there went up".into()),
        Err(error) => hold(error.to_string().contains("none"), error.to_string()),
    }
}

fn links(n_hosts: usize) -> Result<(), Failed> {
    let rates = ["100mbit".parse()?, "50mbit".parse()?];
    let network = Network::new(n_hosts, &rates)?;
    let tcp = |rail| tcp(&network, rail, 100_000);
    tcp(0).and(tcp(1))?;
    let before = network.carried(1)?;
    tcp(1)?;
    let after = network.carried(1)?;
    // Nothing but what was sent crosses the other rail; a request for an address at most.
    let bytes = |rail: usize| after[rail].received - before[rail].received;
    hold(bytes(1) > 2 << 20 && bytes(0) < 1000, format!("{} and {}", bytes(0), bytes(1)))?;

    for (host, end) in [(0, End::Nic), (1, End::Nic), (1, End::Far)] {
        let link = Link { host, rail: 1 };
        network.change(link, end, Change::Down)?;
        let seen = network.hosts()[host].ask("ip", &["link", "show", "rail1"])?;
        hold(seen.contains(",UP") == (end == End::Far), seen.clone())?;
        hold(!seen.contains("LOWER_UP"), seen)?;
        tcp(0)?;
        network.change(link, end, Change::Up)?;
        network.wait_for_carriers()?;
        tcp(1)?;
    }
    let link = Link { host: 1, rail: 0 };
    network.change(link, End::Nic, Change::Rate("20mbit".parse()?))?;
    let (far, name) = network.far(link);
    for (namespace, name) in [(&*network.hosts()[1], "rail0"), (far, name.as_str())] {
        let shown = namespace.ask("tc", &["qdisc", "show", "dev", name])?;
        hold(shown.contains("rate 20Mbit"), shown)?;
    }
    let none = Link { host: 0, rail: 2 };
    hold(network.change(none, End::Nic, Change::Down).is_err(), "a rail that is not there fell")
}
