//! The plugin on RDMA NICs of the kernel, by `verbs;ofi_rxm`: what `tools/labs/rdma/run.sh` runs in
//! guests with soft RoCE.
//!
//! The trials are there when `NVSHMEM_TEST_RDMA` names NICs, separated by commas, and are sized for
//! an emulated processor. `NVSHMEM_TEST_RDMA_IPV6` names one without IPv4, and without a driver's
//! name in its own. With `NVSHMEM_TEST_RDMA_ELSEWHERE`, a command that runs on another host what is
//! behind it, with its own standard streams, half of the PEs are there.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use libtest_mimic::{Failed, Trial};
use nvshmem_sim::{JobSettings, MemoryKind, Remote};
use test_support::built::fake_cuda_dir;
use test_support::full;
use test_support::needs::{self, Need, libfabric2};

use crate::job::{SCENARIOS, job, run, says};
use crate::pairwise::pairwise;

/// The libfabrics used: the system's and the second one.
const LIBRARIES: [&str; 2] = ["system", "second"];

fn library(name: &str) -> Need<Option<PathBuf>> {
    if name == "system" { Ok(None) } else { libfabric2().map(Some) }
}

#[derive(Clone, Debug)]
struct Hosts {
    nics: Vec<String>,
    elsewhere: Option<Vec<OsString>>,
}

impl Hosts {
    fn find() -> Option<Self> {
        let variable = |name| std::env::var(format!("NVSHMEM_TEST_RDMA{name}")).ok();
        let nics = variable("").filter(|nics| !nics.is_empty())?;
        let elsewhere = variable("_ELSEWHERE")
            .map(|command| command.split_whitespace().map(OsString::from).collect());
        Some(Self { nics: nics.split(',').map(str::to_owned).collect(), elsewhere })
    }

    fn name(&self) -> &'static str {
        if self.elsewhere.is_some() { "two_hosts" } else { "one_host" }
    }

    /// The job on so many NICs, its second half on the other host, if there is one.
    fn on(&self, job: JobSettings, nics: usize, library: Option<PathBuf>) -> JobSettings {
        let job = job.env("NVSHMEM_LIBFABRIC_DEVICES", self.nics[..nics].join(","));
        let mut job = by(job, library);
        if let Some(agent) = &self.elsewhere {
            let (half, host, agent) = (job.n_pes / 2, String::from("the other"), agent.clone());
            let program = std::env::current_exe().expect("this test has a path");
            let remote = Remote { host, agent, program, plugin_dir: job.plugin_dir.clone() };
            job = job.host(0, half, None).host(half, half, Some(Arc::new(remote)));
        }
        job
    }
}

fn by(job: JobSettings, library: Option<PathBuf>) -> JobSettings {
    let job = job.env("NVSHMEM_LIBFABRIC_PROVIDER", "verbs");
    match library {
        Some(library) => job.env("NVSHMEM_LIBFABRIC_LIBRARY", library.display()),
        None => job,
    }
}

pub(crate) fn trials() -> Vec<Trial> {
    let Some(hosts) = Hosts::find() else { return Vec::new() };
    let shapes: &[(u32, usize)] = &[(2, 2), (2, 1), (4, 2)];
    let on = hosts.name();
    let mut trials = Vec::new();
    let mut rows = pairwise([LIBRARIES.len(), shapes.len(), SCENARIOS.len()]);
    rows.truncate(if full() { rows.len() } else { 1 });
    for [by, shape, scenario] in rows {
        let (by, (n_pes, nics), scenario) = (LIBRARIES[by], shapes[shape], SCENARIOS[scenario]);
        let nics = nics.min(hosts.nics.len());
        let name = format!("rdma::{on}::{scenario}_{by}_{n_pes}_pes_{nics}_nics");
        let hosts = hosts.clone();
        trials.push(needs::trial(name, library(by), move |library| {
            moves(hosts.on(small(scenario, n_pes), nics, library))
        }));
    }
    for by in LIBRARIES.into_iter().take(if full() { 2 } else { 1 }) {
        if let Ok(nic) = std::env::var("NVSHMEM_TEST_RDMA_IPV6") {
            let hosts = Hosts { nics: vec![nic], ..hosts.clone() };
            trials.push(over_ipv6(hosts.clone(), by));
            if hosts.elsewhere.is_none() {
                trials.push(staging_is_explained(hosts.clone(), by));
                trials.push(idle_nics_are_named(hosts, by));
            }
        }
        if full() && hosts.elsewhere.is_none() {
            trials.push(too_large_queue_is_explained(hosts.clone(), by));
        }
    }
    trials
}

fn small(scenario: &str, n_pes: u32) -> JobSettings {
    let job = job(scenario, n_pes).heap(32 << 20, 4 << 20);
    job.param("rounds", 8).param("most", 300_000).param("operations", 300)
}

fn over_ipv6(hosts: Hosts, by: &'static str) -> Trial {
    let name = format!("rdma::{}::over_ipv6_{by}", hosts.name());
    needs::trial(name, library(by), move |library| moves(hosts.on(small("signals", 2), 1, library)))
}

/// One PE of a host says that GPU memory is staged over NICs that could reach it, and that it is
/// because of their name.
fn staging_is_explained(hosts: Hosts, by: &'static str) -> Trial {
    let name = format!("rdma::{}::staging_is_explained_{by}", hosts.name());
    needs::trial(name, library(by), move |library| {
        let job = job("connect", 2).memory(MemoryKind::Device);
        let job = hosts.on(job.library_path(fake_cuda_dir()), 1, library);
        let nic = &hosts.nics[0];
        let parts = [format!("rdma dev set {nic} name mlx5_0"), String::from("FI_HMEM")];
        one_line(job, "do not reach GPU memory", &parts)
    })
}

fn idle_nics_are_named(hosts: Hosts, by_library: &'static str) -> Trial {
    let name = format!("rdma::{}::idle_nics_are_named_{by_library}", hosts.name());
    needs::trial(name, library(by_library), move |library| {
        // By their interfaces.
        let job = by(job("connect", 2), library).env("FI_VERBS_IFACE", "eth0");
        one_line(job, "carry nothing", &hosts.nics)
    })
}

/// With the size that libfabric has by itself, and soft RoCE, whose queues have 32767 entries at
/// most, does not take.
fn too_large_queue_is_explained(hosts: Hosts, by: &'static str) -> Trial {
    let name = format!("rdma::{}::too_large_queue_is_explained_{by}", hosts.name());
    needs::trial(name, library(by), move |library| {
        let job = hosts.on(job("connect", 2), 1, library).env("FI_UNIVERSE_SIZE", 1024);
        let said = format!("{}", job.run()?);
        says(&said, "fi_enable failed: Invalid argument")?;
        says(&said, "a lower FI_UNIVERSE_SIZE helps")
    })
}

fn one_line(job: JobSettings, words: &str, parts: &[String]) -> Result<(), Failed> {
    let said = format!("{}", job.run()?.check()?);
    let told: Vec<&str> = said.lines().filter(|line| line.contains(words)).collect();
    match told[..] {
        [line] if parts.iter().all(|part| line.contains(part)) => Ok(()),
        _ => Err(format!("{told:?} in:\n{said}").into()),
    }
}

fn moves(job: JobSettings) -> Result<(), Failed> {
    for pe in run(job)?.pes {
        says(&pe.text(), "provider verbs;ofi_rxm with ")?;
    }
    Ok(())
}
