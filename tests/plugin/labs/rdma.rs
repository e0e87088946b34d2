//! The plugin on RDMA NICs of the kernel, by `verbs;ofi_rxm`: what `make rdma-lab` runs in guests
//! with soft RoCE.
//!
//! The trials are there when `NVSHMEM_TEST_RDMA` names NICs, separated by commas, and are sized for
//! an emulated processor. `NVSHMEM_TEST_RDMA_IPV6` names one without IPv4, and without a driver's
//! name in its own. With `NVSHMEM_TEST_RDMA_ELSEWHERE`, a command that runs on another host what is
//! behind it, with its own standard streams, half of the PEs are there.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use libtest_mimic::{Failed, Trial};
use nvshmem_sim::{JobSettings, Layout, MemoryKind, Remote};
use test_support::built::fake_cuda_dir;
use test_support::needs::{self, Need, libfabric2};
use test_support::pairwise::rows;

use crate::fabric::{job, says};
use crate::matrix::run;

const SCENARIOS: [&str; 5] = ["signals", "storm", "atomics", "operations", "order"];

/// Three layouts: by which the host calls is no matter of the fabric, and all of them run on
/// others.
const LAYOUTS: [Layout; 3] = [Layout::V7, Layout::V3a, Layout::V5];

/// Which libfabric is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Library {
    System,
    Second,
}

impl Library {
    const ALL: [Self; 2] = [Self::System, Self::Second];

    fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Second => "second",
        }
    }

    fn find(self) -> Need<Option<PathBuf>> {
        match self {
            Self::System => Ok(None),
            Self::Second => libfabric2().map(Some),
        }
    }
}

/// Where the PEs are.
#[derive(Clone, Debug)]
struct Place {
    nics: Vec<String>,
    /// What starts PEs on another host.
    elsewhere: Option<Vec<OsString>>,
}

impl Place {
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

    /// The job, its second half on the other host, if there is one.
    fn on(&self, job: JobSettings, nics: usize, library: Option<PathBuf>) -> JobSettings {
        let mut job = job
            .env("NVSHMEM_LIBFABRIC_PROVIDER", "verbs")
            .env("NVSHMEM_LIBFABRIC_DEVICES", self.nics[..nics].join(","));
        if let Some(library) = library {
            job = job.env("NVSHMEM_LIBFABRIC_LIBRARY", library.display());
        }
        if let Some(agent) = &self.elsewhere {
            let (half, host, agent) = (job.n_pes / 2, String::from("the other"), agent.clone());
            let program = std::env::current_exe().expect("this test has a path");
            let remote = Remote { host, agent, program, plugin_dir: job.plugin_dir.clone() };
            job = job.host(0, half, None).host(half, half, Some(Arc::new(remote)));
        }
        job
    }
}

pub(crate) fn trials() -> Vec<Trial> {
    let Some(place) = Place::find() else { return Vec::new() };
    let short = std::env::var("NVSHMEM_TEST_RDMA_EXTENT").is_ok_and(|extent| extent == "short");
    let shapes: &[(u32, usize)] = if short { &[(2, 2)] } else { &[(2, 2), (2, 1), (4, 2)] };
    let libraries = if short { 1 } else { Library::ALL.len() };
    let layouts = if short { 1 } else { LAYOUTS.len() };
    let scenarios = if short { 1 } else { SCENARIOS.len() };
    let mut trials = Vec::new();
    for [library, shape, layout, scenario] in rows([libraries, shapes.len(), layouts, scenarios], 3)
    {
        let (library, (n_pes, nics)) = (Library::ALL[library], shapes[shape]);
        let (layout, scenario) = (LAYOUTS[layout], SCENARIOS[scenario]);
        let nics = nics.min(place.nics.len());
        let on = place.name();
        let name = format!(
            "rdma::{on}::{scenario}_{}_{n_pes}_pes_{nics}_nics_layout_{layout}",
            library.name()
        );
        let place = place.clone();
        trials.push(needs::trial(name, library.find(), move |library| {
            moves(place.on(small(scenario, n_pes, layout), nics, library))
        }));
    }
    if let Ok(nic) = std::env::var("NVSHMEM_TEST_RDMA_IPV6") {
        let place = Place { nics: vec![nic], ..place.clone() };
        for library in &Library::ALL[..libraries] {
            trials.push(ipv6_alone(&place, *library));
            if place.elsewhere.is_none() {
                trials.push(staging_is_explained(&place, *library));
                trials.push(idle_nics_are_told(&place, *library));
            }
        }
    }
    if !short && place.elsewhere.is_none() {
        for library in Library::ALL {
            let place = place.clone();
            let name = format!("rdma::a_queue_that_does_not_fit_is_explained_{}", library.name());
            let need = is_soft(&place.nics[0]).and_then(|()| library.find());
            trials.push(needs::trial(name, need, move |library| {
                // As libfabric has it by itself.
                let job = place.on(job("connect", 2, Layout::V7), 1, library);
                let report = job.env("FI_UNIVERSE_SIZE", 1024).run()?;
                let said = format!("{report}");
                let parts =
                    ["fi_enable failed: Invalid argument", "a lower FI_UNIVERSE_SIZE helps"];
                match parts.into_iter().find(|part| !said.contains(part)) {
                    None => Ok(()),
                    Some(part) => Err(format!("{part:?} is not said:\n{said}").into()),
                }
            }));
        }
    }
    trials
}

/// A scenario, as large as an emulated processor gets through.
fn small(scenario: &'static str, n_pes: u32, layout: Layout) -> JobSettings {
    let job = job(scenario, n_pes, layout).heap(32 << 20, 4 << 20);
    job.param("rounds", 8).param("most", 300_000).param("operations", 300)
}

/// A NIC that has addresses of IPv6 alone, and a GID for each, which verbs lists as well.
fn ipv6_alone(place: &Place, library: Library) -> Trial {
    let name = format!("rdma::{}::signals_{}_2_pes_1_nics_ipv6", place.name(), library.name());
    let place = place.clone();
    needs::trial(name, library.find(), move |library| {
        moves(place.on(small("signals", 2, Layout::V7), 1, library))
    })
}

/// One PE of a host says that GPU memory is staged over NICs that could reach it, and that it is
/// because of their name.
fn staging_is_explained(place: &Place, library: Library) -> Trial {
    let name = format!("rdma::{}::staging_{}_2_pes_1_nics_is_told", place.name(), library.name());
    let place = place.clone();
    needs::trial(name, library.find(), move |library| {
        let job = job("connect_with_a_device", 2, Layout::V7).memory(MemoryKind::Device);
        let job = place.on(job.cuda_driver(fake_cuda_dir()), 1, library);
        let report = job.run()?.check()?;
        let said = format!("{report}");
        let told: Vec<&str> =
            said.lines().filter(|line| line.contains("do not reach GPU memory")).collect();
        let nic = &place.nics[0];
        let parts = [format!("rdma dev set {nic} name mlx5_0"), String::from("FI_HMEM")];
        match told[..] {
            [line] if parts.iter().all(|part| line.contains(part)) => Ok(()),
            _ => Err(format!("{told:?} in:\n{said}").into()),
        }
    })
}

/// One PE of a host says that an active NIC is not used, and no more than that.
fn idle_nics_are_told(place: &Place, library: Library) -> Trial {
    let name = format!("rdma::{}::idle_{}_2_pes_2_nics_are_told", place.name(), library.name());
    let hidden = place.nics[0].clone();
    needs::trial(name, library.find(), move |library| {
        let mut job = job("connect", 2, Layout::V7).env("NVSHMEM_LIBFABRIC_PROVIDER", "verbs");
        if let Some(library) = library {
            job = job.env("NVSHMEM_LIBFABRIC_LIBRARY", library.display());
        }
        // By their interfaces.
        let report = job.env("FI_VERBS_IFACE", "eth0").run()?.check()?;
        let said = format!("{report}");
        let told: Vec<&str> = said.lines().filter(|line| line.contains("carry nothing")).collect();
        match told[..] {
            [line] if line.contains(&hidden) => Ok(()),
            _ => Err(format!("{told:?} in:\n{said}").into()),
        }
    })
}

/// Whether a device is soft RoCE, whose queues have 32767 entries at most.
fn is_soft(nic: &str) -> Need<()> {
    let parent = PathBuf::from("/sys/class/infiniband").join(nic).join("parent");
    if parent.exists() { Ok(()) } else { Err(format!("{nic} is no soft RoCE, and may have room")) }
}

/// The job succeeds, over verbs.
fn moves(job: JobSettings) -> Result<(), Failed> {
    for pe in run(job)?.pes {
        let text = pe.text();
        says(&text, "provider verbs;ofi_rxm with ")?;
    }
    Ok(())
}
