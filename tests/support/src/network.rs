//! Hosts with several links each, made of network namespaces of this machine.
//!
//! Rail R is the network 10.77.R.0/24, in which host H has the address 10.77.R.(H + 1) on an
//! interface named `railR`. Two hosts are joined by a pair of virtual Ethernet interfaces for each
//! rail; more hosts are each joined to a switch, a namespace with one bridge for each rail. Both
//! ends of each link are shaped with a token bucket. It takes root (or `CAP_SYS_ADMIN` and
//! `CAP_NET_ADMIN`), `unshare` and `nsenter` of util-linux, and iproute2.
//!
//! A namespace has no name, only a descriptor that this process holds. So the kernel removes it,
//! with its interfaces, once this process and those inside have ended, however they ended.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const MTU: u32 = 9000;
/// Bytes that TCP hands down at once: less than two, as a token bucket passes a packet whole.
const GSO: u32 = 16 << 10;
/// Bytes that may leave at more than the rate after a pause. With less a link does not come to its
/// rate; more is gained by each operation on each rail.
const BURST: u32 = 24 << 10;
const LIMIT: u32 = 512 << 10;
const CARRIER: Duration = Duration::from_secs(10);

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
            return Err(failed("unshare --net", &output.stderr));
        }
        Ok(Self(file?))
    }

    /// A path that leads to it as long as this process holds it.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// A command to put in front of another one, which then runs inside.
    pub fn prefix(&self) -> Vec<String> {
        vec![String::from("nsenter"), format!("--net={}", self.path())]
    }

    /// Has `ip` execute commands inside, one a line; the first that fails ends it.
    pub fn ip(&self, lines: &[String]) -> io::Result<()> {
        self.call(&["ip", "-batch", "-"], &lines.join("\n")).map(drop)
    }

    fn call(&self, command: &[&str], input: &str) -> io::Result<String> {
        let prefix = self.prefix();
        let mut child = Command::new(&prefix[0])
            .args(&prefix[1..])
            .args(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            // A program that reads less says why.
            let _ = stdin.write_all(format!("{input}\n").as_bytes());
        }
        let output = child.wait_with_output()?;
        if !output.status.success() {
            return Err(failed(&format!("{} {input}", command.join(" ")), &output.stderr));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

fn failed(tried: &str, said: &[u8]) -> io::Error {
    let said = String::from_utf8_lossy(said);
    io::Error::other(format!("{}: {}", tried.replace('\n', "; "), said.trim().replace('\n', "; ")))
}

/// Hosts and their rails. Removed when dropped and when this process ends.
#[derive(Debug)]
pub struct Network {
    hosts: Vec<Namespace>,
    switch: Option<Namespace>,
    rails: usize,
}

impl Network {
    /// Makes 2 hosts or more, with so many rails of a rate, as `tc` has it: `400mbit`.
    pub fn new(n_hosts: usize, rails: usize, rate: &str) -> io::Result<Self> {
        let hosts = (0..n_hosts).map(|_| Namespace::new()).collect::<Result<Vec<_>, _>>()?;
        let switch = (n_hosts > 2).then(Namespace::new).transpose()?;
        let network = Self { hosts, switch, rails };
        for namespace in network.hosts.iter().chain(&network.switch) {
            // Reno, which is in every kernel: the machine's own may probe, or pace by its own idea
            // of the rate. No IPv6, whose interfaces talk by themselves.
            let settle = "cd /proc/sys/net && echo reno >ipv4/tcp_congestion_control && \
                          { [ ! -e ipv6 ] || echo 1 >ipv6/conf/default/disable_ipv6; }";
            namespace.call(&["sh", "-c", settle], "")?;
        }
        network.join()?;
        for (host, rail) in network.links() {
            network.shape(host, rail, rate)?;
        }
        network.wait_for_carriers()?;
        Ok(network)
    }

    pub fn hosts(&self) -> &[Namespace] {
        &self.hosts
    }

    /// Takes a host's link on a rail down or up, at its other end: the host's own interface stays
    /// up without a carrier, and connections are not reset.
    pub fn set_link(&self, host: usize, rail: usize, up: bool) -> io::Result<()> {
        let (namespace, name) = self.far(host, rail);
        namespace.ip(&[format!("link set {name} {}", if up { "up" } else { "down" })])
    }

    fn links(&self) -> impl Iterator<Item = (usize, usize)> {
        let rails = self.rails;
        (0..self.hosts.len()).flat_map(move |host| (0..rails).map(move |rail| (host, rail)))
    }

    fn join(&self) -> io::Result<()> {
        for rail in (0..self.rails).filter(|_| self.switch.is_some()) {
            let bridge = format!("link add bridge{rail} mtu {MTU} type bridge");
            let switch = self.switch.as_ref();
            switch.map_or(Ok(()), |it| it.ip(&[bridge, format!("link set bridge{rail} up")]))?;
        }
        for (host, rail) in self.links() {
            let name = nic(rail);
            let mut lines = vec![String::from("link set lo up")];
            // The pairs between two hosts are made by the first and found by the second.
            if self.switch.is_some() || host == 0 {
                let (far, far_name) = self.far(host, rail);
                // Were both numbers the same, the kernel would take the interface for one that
                // stands for itself, and make up to a second of it to find its carrier.
                let index = 10 + host * self.rails + rail;
                lines.push(format!(
                    "link add {name} index {index} mtu {MTU} type veth peer name {far_name} \
                     index {} mtu {MTU} netns {}",
                    10_000 + index,
                    far.path()
                ));
            }
            lines.push(format!("link set {name} gso_max_size {GSO}"));
            lines.push(format!("addr add 10.77.{rail}.{}/24 dev {name}", host + 1));
            lines.push(format!("link set {name} up"));
            self.hosts[host].ip(&lines)?;
            if let Some(switch) = &self.switch {
                let (_, far) = self.far(host, rail);
                switch.ip(&[
                    format!("link set {far} gso_max_size {GSO} master bridge{rail}"),
                    format!("link set {far} up"),
                ])?;
            }
        }
        Ok(())
    }

    fn wait_for_carriers(&self) -> io::Result<()> {
        let start = Instant::now();
        for host in &self.hosts {
            loop {
                // One line for each interface: its number, its name and its flags.
                let up = host.call(&["ip", "-oneline", "link", "show", "up"], "")?;
                let ready = up.lines().filter(|l| l.contains(" rail") && l.contains("LOWER_UP"));
                if ready.count() == self.rails {
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

    fn far(&self, host: usize, rail: usize) -> (&Namespace, String) {
        match &self.switch {
            Some(switch) => (switch, format!("h{host}r{rail}")),
            None => (&self.hosts[1 - host], nic(rail)),
        }
    }

    fn shape(&self, host: usize, rail: usize, rate: &str) -> io::Result<()> {
        for (namespace, name) in [(&self.hosts[host], nic(rail)), self.far(host, rail)] {
            let tbf = format!("tbf rate {rate} burst {BURST} limit {LIMIT}");
            let line = format!("qdisc replace dev {name} root {tbf}");
            namespace.call(&["tc", "-batch", "-"], &line)?;
        }
        Ok(())
    }
}

fn nic(rail: usize) -> String {
    format!("rail{rail}")
}

/// Whether such networks can be made here; found by making one.
pub fn possible() -> Result<(), String> {
    let made = Network::new(3, 1, "100mbit");
    made.map(drop).map_err(|error| format!("there can be no hosts of namespaces here: {error}"))
}
