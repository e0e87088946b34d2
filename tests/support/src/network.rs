//! Hosts with several links each, made of network namespaces of this machine.
//!
//! Rail R is the network 10.77.R.0/24, in which host H has the address 10.77.R.(H + 1) on an
//! interface named `railR`. Its other end is in a switch, a namespace with one bridge for each
//! rail. It takes root (or `CAP_SYS_ADMIN` and `CAP_NET_ADMIN`), `unshare` and `nsenter` of
//! util-linux, and iproute2.
//!
//! A namespace has no name, only a descriptor that this process holds. So the kernel removes it,
//! with its interfaces, once this process and those inside have ended, however they ended.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const CARRIER: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(60);

/// A network of its own, empty but for `lo` when new.
#[derive(Debug)]
pub struct Namespace(File);

impl Namespace {
    pub fn new() -> io::Result<Self> {
        let mut child = Command::new("unshare")
            .args(["--net", "sh", "-c", "echo && read -r end"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        let file = File::open(format!("/proc/{}/ns/net", child.id()));
        // Closes its input, so that it ends.
        let output = child.wait_with_output()?;
        if line.is_empty() {
            return Err(failed("unshare --net", &String::from_utf8_lossy(&output.stderr)));
        }
        Ok(Self(file?))
    }

    /// A path that leads to it as long as this process holds it.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// A command to put in front of another one, which then runs inside.
    pub fn prefix(&self) -> Vec<OsString> {
        vec!["nsenter".into(), format!("--net={}", self.path()).into()]
    }

    /// Has `ip` execute commands inside, one a line; the first that fails ends it.
    pub fn ip(&self, lines: &[String]) -> io::Result<()> {
        self.call(&["ip", "-batch", "-"], &lines.join("\n")).map(drop)
    }

    fn call(&self, command: &[&str], input: &str) -> io::Result<String> {
        let prefix = self.prefix();
        let mut inside = Command::new(&prefix[0]);
        inside.args(&prefix[1..]).args(command);
        let ended = launcher::ask(inside, &format!("{input}\n"), PATIENCE)?;
        match ended.end.is_success() {
            true => Ok(ended.out),
            false => Err(failed(&format!("{} {input}", command.join(" ")), &ended.err)),
        }
    }
}

fn failed(tried: &str, said: &str) -> io::Error {
    let said = said.trim().replace('\n', "; ");
    io::Error::other(format!("{}: {said}", tried.replace('\n', "; ")))
}

/// Hosts and their rails. Removed when dropped and when this process ends.
#[derive(Debug)]
pub struct Network {
    pub hosts: Vec<Namespace>,
    switch: Namespace,
}

impl Network {
    pub fn new(n_hosts: usize, rails: usize) -> io::Result<Self> {
        let hosts = (0..n_hosts).map(|_| Namespace::new()).collect::<Result<Vec<_>, _>>()?;
        let network = Self { hosts, switch: Namespace::new()? };
        for rail in 0..rails {
            let bridge = format!("bridge{rail}");
            let made = format!("link add {bridge} type bridge");
            network.switch.ip(&[made, format!("link set {bridge} up")])?;
        }
        for (host, namespace) in network.hosts.iter().enumerate() {
            for rail in 0..rails {
                let (near, far, switch) = (nic(rail), far(host, rail), network.switch.path());
                // Were both numbers the same, the kernel would take the interface for one that
                // stands for itself, and make up to a second of it to find its carrier.
                let index = 10 + host * rails + rail;
                let other = 10_000 + index;
                namespace.ip(&[
                    String::from("link set lo up"),
                    format!(
                        "link add {near} index {index} type veth peer name {far} index {other} \
                         netns {switch}"
                    ),
                    format!("addr add 10.77.{rail}.{}/24 dev {near}", host + 1),
                    format!("link set {near} up"),
                ])?;
                let joined = format!("link set {far} master bridge{rail}");
                network.switch.ip(&[joined, format!("link set {far} up")])?;
            }
        }
        network.wait_for_carriers("rail", rails)?;
        Ok(network)
    }

    /// Takes a host's link on a rail down or up, at its other end: the host's own interface stays
    /// up without a carrier, and connections are not reset.
    pub fn set_link(&self, host: usize, rail: usize, up: bool) -> io::Result<()> {
        let state = if up { "up" } else { "down" };
        self.switch.ip(&[format!("link set {} {state}", far(host, rail))])
    }

    /// Waits until each host has so many interfaces of names that begin so, with a carrier.
    pub fn wait_for_carriers(&self, name: &str, count: usize) -> io::Result<()> {
        let name = format!(" {name}");
        let start = Instant::now();
        for host in &self.hosts {
            loop {
                // One line for each interface: its number, its name and its state. A carrier alone
                // is not enough: getifaddrs tells of IFF_RUNNING once the state has followed it.
                let up = host.call(&["ip", "-oneline", "link", "show", "up"], "")?;
                let ready = up.lines().filter(|l| l.contains(&name) && l.contains("state UP"));
                if ready.count() == count {
                    break;
                }
                if start.elapsed() > CARRIER {
                    return Err(io::Error::other(format!("links without a carrier: {up}")));
                }
                thread::sleep(Duration::from_millis(2));
            }
        }
        Ok(())
    }
}

fn nic(rail: usize) -> String {
    format!("rail{rail}")
}

/// The end of a link in the switch.
fn far(host: usize, rail: usize) -> String {
    format!("h{host}r{rail}")
}

/// Whether such networks can be made here; found by making one.
pub fn possible() -> Result<(), String> {
    let made = Network::new(3, 1);
    made.map(drop).map_err(|error| format!("there can be no hosts of namespaces here: {error}"))
}
