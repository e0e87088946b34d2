//! `selftest --hosts`: hosts that are network namespaces of this machine, and an agent that starts
//! a shell in one.
//!
//! What an agent does when a host is off, has no such program or another version, it does for hosts
//! of these names.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use libtest_mimic::{Failed, Trial};
use test_support::needs;
use test_support::network::{self, Network};

use super::qualify::{RIGHT, all_are};
use crate::bed::{Scratch, TOOL, bad, expect, plugins, signal, tool, wait};

pub(crate) fn trials() -> Vec<Trial> {
    let case = |name: &str, run: fn() -> Result<(), Failed>| {
        needs::trial(format!("hosts::{name}"), network::possible(), move |()| run())
    };
    let mut trials = vec![
        case("operations_between_two_hosts", two),
        case("pairs_of_three_hosts_and_two_that_do_not_reach_each_other", three),
        case("hosts_that_cannot_take_part_are_told", refused),
        case("a_pe_that_dies_is_told_with_its_host", dies),
        case("nothing_stays_on_hosts_when_the_tool_is_killed", killed),
    ];
    if test_support::full() {
        trials.push(case("figures_between_two_hosts", figures));
        trials.push(case("everything_and_its_figures_between_two_hosts", qualify));
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
        let bed = Self { scratch: Scratch::new(), network: Network::new(hosts, rails)? };
        let inside: Vec<String> = ["a", "b", "c"]
            .iter()
            .zip(bed.network.hosts())
            .map(|(name, host)| format!("{name}|*-{name}) set -- --net={} \"$@\" ;;", host.path()))
            .collect();
        // What is old says so, whatever it is asked; what does not work is not for this processor.
        bed.scratch.script("old/bin/nvshmem-libfabric", "echo nvshmem-libfabric 0.0.1");
        bed.scratch.executable("broken/bin/nvshmem-libfabric", "\u{7f}ELF");
        bed.scratch.script(
            "agent",
            &format!(
                "host=$1; shift; echo \"$host $*\" >>{at}/asked; echo $$ >>{at}/process-$host\n\
                 echo Welcome to $host\n\
                 case $host in\n{}\n\
                 off) echo 'ssh: connect to host off port 22: No route to host' >&2; exit 255 ;;\n\
                 esac\n\
                 exec nsenter \"$@\"",
                inside.join("\n"),
                at = bed.scratch.path().display(),
            ),
        );
        Ok(bed)
    }

    fn selftest(&self, hosts: &str) -> Command {
        let mut command = tool(&["selftest", "--provider", "tcp", "--hosts", hosts, "--ssh"]);
        command.arg(self.scratch.at("agent")).arg("--plugin-dir").arg(plugins());
        // The hosts share the cores of this machine, and the plugin knows of one host only.
        command.env("NVSHMEM_LIBFABRIC_YIELD", "always");
        command
    }

    fn processes(&self, host: &str) -> Vec<u32> {
        let text = fs::read_to_string(self.scratch.at(&format!("process-{host}")));
        text.unwrap_or_default().lines().filter_map(|line| line.parse().ok()).collect()
    }

    fn pe_on(&self, host: &str) -> Result<u32, Failed> {
        let pe = wait(&format!("a PE on {host}"), || {
            let pe = self.processes(host).get(1).copied()?;
            is_tool(pe).then_some(pe)
        });
        Ok(pe?)
    }
}

fn is_tool(process: u32) -> bool {
    let program = fs::read_link(format!("/proc/{process}/exe"));
    program.is_ok_and(|program| program == Path::new(TOOL))
}

fn ends(command: &mut Command) -> Result<(Option<i32>, String), Failed> {
    let output = command.output()?;
    let (out, err) = (&output.stdout, &output.stderr);
    let text = format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(err));
    Ok((output.status.code(), text))
}

fn two() -> Result<(), Failed> {
    let bed = Bed::new(2, 2)?;
    let (status, text) = ends(&mut bed.selftest("a,b:2"))?;
    let told = ["\n  1  tcp", "  a: rail", "\n  2  tcp", "  b: rail", "5 of 5 passed"];
    let right = status == Some(0) && told.iter().all(|told| text.contains(told));
    expect(right, || format!("{status:?}\n{text}"))?;
    expect(text.matches("  a, b\n").count() == 5, || text.clone())?;
    // What every user of a host can see.
    let asked = fs::read_to_string(bed.scratch.at("asked"))?;
    let bare = asked.lines().all(|line| line == "a /bin/sh" || line == "b /bin/sh");
    expect(bare && asked.lines().count() == 2 + 5 * 3, || asked.clone())
}

fn figures() -> Result<(), Failed> {
    let bed = Bed::new(2, 1)?;
    let perf = |hosts: &str| {
        let mut command =
            tool(&["perf", "--milliseconds", "1", "--max", "64", "--provider", "tcp"]);
        command.args(["--hosts", hosts, "--ssh"]).arg(bed.scratch.at("agent"));
        command.arg("--plugin-dir").arg(plugins()).env("NVSHMEM_LIBFABRIC_YIELD", "always");
        command
    };
    let (status, text) = ends(&mut perf("a,b"))?;
    let told = ["two PEs on two hosts, memory of the host; ", "\n#get_latency\n", " 0 wrong."];
    let right = status == Some(0) && told.iter().all(|told| text.contains(told));
    expect(right, || format!("{status:?}\n{text}"))?;
    for hosts in ["a", "a,b:2"] {
        let said = bad(&mut perf(hosts), 2)?;
        expect(said.contains("PE(s), and 2 are measured"), || said.clone())?;
    }
    Ok(())
}

fn qualify() -> Result<(), Failed> {
    let bed = Bed::new(2, 2)?;
    let out = bed.scratch.at("out.txt");
    let hosts = "some-login@first-host-a,some-login@first-host-b";
    let mut command = tool(&["qualify", "--short", "--provider", "tcp", "--hosts", hosts, "--ssh"]);
    command.arg(bed.scratch.at("agent")).arg("--plugin-dir").arg(plugins()).arg("--out").arg(&out);
    let (status, text) = ends(command.env("NVSHMEM_LIBFABRIC_YIELD", "always"))?;
    expect(status == Some(0) && text.contains("tcp, 2 host(s), short"), || {
        format!("{status:?}\n{text}")
    })?;
    all_are(&out, "one-nic/", RIGHT)?;
    let file = fs::read_to_string(&out)?;
    let told = ["some-login", "first-host"].iter().any(|secret| file.contains(secret));
    expect(!told, || file.clone())
}

fn three() -> Result<(), Failed> {
    let bed = Bed::new(3, 2)?;
    let hosts = bed.network.hosts();
    hosts[1].ip(&[String::from("link set rail1 down")])?;
    hosts[2].ip(&[String::from("link set rail0 down")])?;
    let (status, text) = ends(&mut bed.selftest("a,b,c"))?;
    let row = |verdict: &str, hosts: &str| {
        text.lines().any(|line| line.starts_with(verdict) && line.ends_with(hosts))
    };
    let rows = row("ok", "  a, b") && row("ok", "  a, c") && row("FAILED", "  b, c");
    let right = status == Some(1) && rows && text.contains("2 of 3 passed");
    expect(right, || format!("{status:?}\n{text}"))?;
    let reason = "hint: no way between their rails is likely: b: rail0; c: rail1.";
    expect(text.contains(reason), || text.clone())
}

fn refused() -> Result<(), Failed> {
    let bed = Bed::new(2, 1)?;
    let at = |name: &str| bed.scratch.at(name).display().to_string();
    let cases: [(&str, &[&str], &[&str]); 9] = [
        (
            "a,off",
            &[],
            &["\n  off: it is not reached: ", "No route to host\nhint: `ssh HOST true`"],
        ),
        (
            "a,b",
            &["--prefix", "/nonexistent"],
            &["\n  b: it has no /nonexistent/bin/nvshmem-libfabric"],
        ),
        ("a,b", &["--prefix", &at("old")], &["\n  a: it has 0.0.1, and this host "]),
        ("a,b", &["--prefix", &at("broken")], &["\n  b: the tool there does not work: "]),
        (
            "a,b",
            &["--ssh", "/nonexistent/ssh"],
            &["\n  a: it is not reached: `/nonexistent/ssh a`: it cannot be started: "],
        ),
        ("a,b", &["--ssh", "ssh '"], &["a quotation has no end"]),
        ("a", &[], &["the hosts take 1 PE(s)"]),
        ("a,-oProxyCommand=id", &[], &["a host is a name"]),
        ("a,b", &["--provider", "shm"], &["shm is memory of one host"]),
    ];
    for (hosts, options, told) in cases {
        let mut command = tool(&["selftest", "--plugin-dir"]);
        command.arg(plugins()).args(["--hosts", hosts]).args(options);
        if !options.contains(&"--ssh") {
            command.arg("--ssh").arg(bed.scratch.at("agent"));
        }
        let said = bad(&mut command, 2)?;
        expect(told.iter().all(|told| said.contains(told)), || {
            format!("{told:?} is not in\n{said}")
        })?;
    }
    let said = bad(&mut tool(&["selftest", "--ssh", "ssh"]), 2)?;
    expect(said.contains("--hosts"), || said.clone())
}

fn dies() -> Result<(), Failed> {
    let bed = Bed::new(2, 1)?;
    let mut command = bed.selftest("a,b");
    let tool = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let pe = bed.pe_on("b")?;
    signal(pe, "-KILL")?;
    let output = tool.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let told = text.contains("PE 1 on b was ended by signal 9");
    expect(output.status.code() == Some(1) && told, || format!("{output:?}"))?;
    all_gone(&bed)
}

fn killed() -> Result<(), Failed> {
    let bed = Bed::new(2, 1)?;
    let mut tool = bed.selftest("a,b").stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    bed.pe_on("a")?;
    bed.pe_on("b")?;
    tool.kill()?;
    tool.wait()?;
    all_gone(&bed)
}

fn all_gone(bed: &Bed) -> Result<(), Failed> {
    let ended = wait("the end of all PEs", || {
        let mut all = ["a", "b"].into_iter().flat_map(|host| bed.processes(host));
        (!all.any(is_tool)).then_some(())
    });
    Ok(ended?)
}
