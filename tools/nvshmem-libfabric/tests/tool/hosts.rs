//! `--hosts`: hosts that are network namespaces of this machine, and an agent that starts a shell
//! in one.
//!
//! What an agent does when a host is off, has no such program or another version, it does for hosts
//! of these names.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use libtest_mimic::{Failed, Trial};
use test_support::needs;
use test_support::network::{self, Network};

use crate::bed::{Case, Scratch, TOOL, executable, refuses, says, script, signal, tool, wait};
use crate::qualify::{RIGHT, qualify, rows};

pub(crate) fn trials() -> Vec<Trial> {
    let case = |name: &str, run: fn() -> Case| {
        needs::trial(format!("hosts::{name}"), network::possible(), move |()| run())
    };
    let mut trials = vec![
        case("two", two),
        case("pairs_of_three", three),
        case("unfit_hosts", unfit),
        case("killed_pe", killed_pe),
        case("killed_tool", killed_tool),
    ];
    if test_support::full() {
        trials.extend([case("perf", perf), case("qualify", qualified)]);
    }
    trials
}

struct Bed {
    scratch: Scratch,
    network: Network,
}

impl Bed {
    /// Hosts `a`, `b` and `c` for as many as there are; and others that are of no use. The agent
    /// writes down what it was asked, and the process that its shell becomes.
    fn new(hosts: usize, rails: usize) -> Result<Self, Failed> {
        let (scratch, network) = (Scratch::new(), Network::new(hosts, rails)?);
        let hosts = ["a", "b", "c"].iter().zip(&network.hosts);
        let inside = hosts.map(|(name, host)| {
            format!("{name}|*-{name}) set -- --net={} \"$@\" ;;\n", host.path())
        });
        let inside = inside.collect::<String>();
        // What is old says so, whatever it is asked; what does not work is not for this processor.
        script(&scratch.join("old/bin/nvshmem-libfabric"), "echo nvshmem-libfabric 0.0.1");
        executable(&scratch.join("broken/bin/nvshmem-libfabric"), "\u{7f}ELF");
        let at = scratch.display();
        script(
            &scratch.join("agent"),
            &format!(
                "host=$1; shift; echo \"$host $*\" >>{at}/asked; echo $$ >>{at}/process-$host\n\
                 echo Welcome to $host\n\
                 case $host in\n{inside}\
                 off) echo 'ssh: connect to host off port 22: No route to host' >&2; exit 255 ;;\n\
                 esac\n\
                 exec nsenter \"$@\""
            ),
        );
        Ok(Self { scratch, network })
    }

    fn on(&self, hosts: &str, mut command: Command) -> Command {
        command.args(["--hosts", hosts, "--ssh"]).arg(self.scratch.join("agent"));
        // The hosts share the cores of this machine, and the plugin knows of one host only.
        command.env("NVSHMEM_LIBFABRIC_YIELD", "always");
        command
    }

    fn selftest(&self, hosts: &str) -> Command {
        self.on(hosts, tool("selftest --provider tcp --plugin-dir PLUGINS"))
    }

    fn processes(&self, host: &str) -> Vec<u32> {
        let text = fs::read_to_string(self.scratch.join(format!("process-{host}")));
        text.unwrap_or_default().lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// A self-test with a PE on each of two hosts, and these.
    fn running(&self) -> Result<(Child, [u32; 2]), Failed> {
        let mut command = self.selftest("a,b");
        let tool = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let pe_on = |host| {
            let is_pe = |process: &u32| is_tool(*process);
            let pe = || self.processes(host).get(1).copied().filter(is_pe);
            wait(&format!("a PE on {host}"), pe)
        };
        Ok((tool, [pe_on("a")?, pe_on("b")?]))
    }

    fn all_gone(&self) -> Case {
        let gone = || {
            let mut all = ["a", "b"].into_iter().flat_map(|host| self.processes(host));
            (!all.any(is_tool)).then_some(())
        };
        Ok(wait("the end of all PEs", gone)?)
    }
}

fn is_tool(process: u32) -> bool {
    let program = fs::read_link(format!("/proc/{process}/exe"));
    program.is_ok_and(|program| program == Path::new(TOOL))
}

fn two() -> Case {
    let bed = Bed::new(2, 2)?;
    let told = ["\n  1  tcp", "  a: rail", "\n  2  tcp", "  b: rail", "5 of 5 passed"];
    let text = says(&mut bed.selftest("a,b:2"), 0, &told)?;
    assert_eq!(text.matches("  a, b\n").count(), 5, "{text}");
    // What every user of a host can see.
    let asked = fs::read_to_string(bed.scratch.join("asked"))?;
    let bare = asked.lines().all(|line| line == "a /bin/sh" || line == "b /bin/sh");
    assert!(bare && asked.lines().count() == 2 + 5 * 3, "{asked}");
    Ok(())
}

fn perf() -> Case {
    let bed = Bed::new(2, 1)?;
    let line = "perf --milliseconds 1 --max 64 --provider tcp --plugin-dir PLUGINS";
    let perf = |hosts: &str| bed.on(hosts, tool(line));
    let told = ["two PEs on two hosts, memory of the host; ", "\n#get_latency\n", " 0 wrong."];
    says(&mut perf("a,b"), 0, &told)?;
    for hosts in ["a", "a,b:2"] {
        refuses(&mut perf(hosts), 2, &["PE(s), and 2 are measured"])?;
    }
    Ok(())
}

fn qualified() -> Case {
    let bed = Bed::new(2, 2)?;
    let out = bed.scratch.join("out.txt");
    let hosts = "some-login@first-host-a,some-login@first-host-b";
    let mut command = bed.on(hosts, qualify(&out, "--provider tcp"));
    says(&mut command, 0, &["tcp, 2 host(s), short"])?;
    let file = rows(&out, &[("one-nic/", RIGHT)])?;
    assert!(!file.contains("some-login") && !file.contains("first-host"), "{file}");
    Ok(())
}

/// Two of three hosts do not reach each other, which is told.
fn three() -> Case {
    let bed = Bed::new(3, 2)?;
    let hosts = &bed.network.hosts;
    hosts[1].ip(&[String::from("link set rail1 down")])?;
    hosts[2].ip(&[String::from("link set rail0 down")])?;
    let reason = "hint: no way between their rails is likely: b: rail0; c: rail1.";
    let text = says(&mut bed.selftest("a,b,c"), 1, &["2 of 3 passed", reason])?;
    for (verdict, hosts) in [("ok", "  a, b"), ("ok", "  a, c"), ("FAILED", "  b, c")] {
        let mut lines = text.lines();
        assert!(lines.any(|line| line.starts_with(verdict) && line.ends_with(hosts)), "{text}");
    }
    Ok(())
}

fn unfit() -> Case {
    let bed = Bed::new(2, 1)?;
    let at = bed.scratch.display();
    for (hosts, option, told) in [
        ("a,off", "", "\n  off: it is not reached: "),
        ("a,off", "", "No route to host\nhint: `ssh HOST true`"),
        ("a,b", "--prefix /none", "\n  b: it has no /none/bin/nvshmem-libfabric"),
        ("a,b", &format!("--prefix {at}/old"), "\n  a: it has 0.0.1, and this host "),
        ("a,b", &format!("--prefix {at}/broken"), "\n  b: the tool there does not work: "),
        ("a", "", "the hosts take 1 PE(s)"),
        ("a,-oProxyCommand=id", "", "a host is a name"),
        ("a,b", "--provider shm", "shm is memory of one host"),
    ] {
        let line = format!("selftest --plugin-dir PLUGINS {option}");
        refuses(&mut bed.on(hosts, tool(&line)), 2, &[told])?;
    }
    let none = "a: it is not reached: `/none/ssh a`: it cannot be started: ";
    for (line, told) in [
        ("selftest --hosts a,b --plugin-dir PLUGINS --ssh /none/ssh", none),
        ("selftest --hosts a,b --plugin-dir PLUGINS --ssh '", "a quotation has no end"),
        ("selftest --ssh ssh", "--hosts"),
    ] {
        refuses(&mut tool(line), 2, &[told])?;
    }
    Ok(())
}

/// A PE that dies is told with its host.
fn killed_pe() -> Case {
    let bed = Bed::new(2, 1)?;
    let (tool, [_, pe]) = bed.running()?;
    signal(pe, "-KILL")?;
    let output = tool.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let told = text.contains("PE 1 on b was ended by signal 9");
    assert!(output.status.code() == Some(1) && told, "{output:?}");
    bed.all_gone()
}

/// Nothing stays on hosts when the tool is killed.
fn killed_tool() -> Case {
    let bed = Bed::new(2, 1)?;
    let (mut tool, _) = bed.running()?;
    tool.kill()?;
    tool.wait()?;
    bed.all_gone()
}
