//! The plugin on a persona of cxi (`tools/labs/cxi`), which keeps cxi's rules over libfabric's tcp.
//!
//! A few runs belong to every test run; with `NVSHMEM_TEST_CXI_LAB` set there are all that
//! `make cxi-lab` tells of.

use libtest_mimic::{Failed, Trial};
use nvshmem_sim::{JobSettings, Layout, MemoryKind};
use test_support::built::{cxi_lab, fake_cuda_dir};
use test_support::full;
use test_support::needs::{self, Need, is_set, libfabric2};
use test_support::pairwise::rows;

use crate::fabric::job;
use crate::matrix::run;

/// Versions that the persona says it is: those between which cxi's rules change.
const VERSIONS: [&str; 4] = ["2.6", "2.4", "2.2", "1.22"];

const SCENARIOS: [&str; 5] = ["storm", "signals", "atomics", "operations", "order"];

/// What is asked of the plugin for the level of threading.
const THREADING: [&str; 4] = ["auto", "domain", "completion", "safe"];

/// The libfabric that carries the data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Carrier {
    Second,
    System,
}

impl Carrier {
    const ALL: [Self; 2] = [Self::Second, Self::System];

    fn name(self) -> &'static str {
        match self {
            Self::Second => "second",
            Self::System => "system",
        }
    }

    /// The library to name.
    fn find(self) -> Need<String> {
        match self {
            Self::Second => libfabric2().map(|path| path.display().to_string()),
            Self::System => Ok(String::from("libfabric.so.1")),
        }
    }
}

fn on_cxi(job: JobSettings, carrier: &str, version: &str, threading: &str) -> JobSettings {
    let job = job
        .env("NVSHMEM_LIBFABRIC_PROVIDER", "cxi")
        .env("NVSHMEM_LIBFABRIC_LIBRARY", cxi_lab().display())
        .env("CXI_LAB_LIBFABRIC", carrier)
        .env("CXI_LAB_VERSION", version);
    if threading == "auto" { job } else { job.debug("threading", threading) }
}

pub(crate) fn trials() -> Vec<Trial> {
    let all = full() || is_set("NVSHMEM_TEST_CXI_LAB");
    let shapes: &[(u32, u8)] = if all { &[(2, 2), (4, 1), (4, 4)] } else { &[(2, 2)] };
    let sizes = [
        if all { VERSIONS.len() } else { 2 },
        if all { Carrier::ALL.len() } else { 1 },
        if all { THREADING.len() } else { 2 },
        shapes.len(),
        if all { Layout::ALL.len() } else { 1 },
        if all { SCENARIOS.len() } else { 2 },
    ];
    let mut trials = Vec::new();
    for [version, carrier, threading, shape, layout, scenario] in rows(sizes, 5) {
        let (version, carrier, threading) =
            (VERSIONS[version], Carrier::ALL[carrier], THREADING[threading]);
        let (n_pes, nics) = shapes[shape];
        let layout = Layout::ALL[Layout::ALL.len() - 1 - layout];
        let scenario = SCENARIOS[scenario];
        let name = format!(
            "cxi::{scenario}_{}_{}_{threading}_{n_pes}_pes_{nics}_nics_layout_{layout}",
            version.replace('.', "_"),
            carrier.name()
        );
        trials.push(needs::trial(name, carrier.find(), move |carrier| {
            // Chunks are registered while the proxy thread polls.
            let job = job(scenario, n_pes, layout).heap(32 << 20, 1 << 20).heap_grows();
            let job = job.param("rounds", 60).param("most", 300_000).param("operations", 4_000);
            let job = on_cxi(job, &carrier, version, threading).env("CXI_LAB_NICS", nics);
            for pe in run(job)?.pes {
                says(&pe.text(), "provider cxi with ")?;
                is_as_it_should_be(&pe.text())?;
            }
            Ok(())
        }));
    }
    let versions = if all { &VERSIONS[..] } else { &VERSIONS[..2] };
    for &version in versions {
        let name = format!("cxi::memory_of_devices_{}", version.replace('.', "_"));
        trials.push(needs::trial(name, Carrier::Second.find(), move |carrier| {
            // The persona registers memory of devices, and moves none of it.
            let job = job("connect_with_a_device", 2, Layout::V7).memory(MemoryKind::Device);
            let job =
                job.cuda_driver(fake_cuda_dir()).env("NVSHMEM_LIBFABRIC_GPU_DIRECT", "always");
            let by = if version == "2.6" {
                "rail(s) by dma-buf"
            } else {
                "rail(s) by FI_HMEM_CUDA (dma-buf: not with this provider and version)"
            };
            for pe in run(on_cxi(job, &carrier, version, "auto"))?.pes {
                says(&pe.text(), by)?;
                is_as_it_should_be(&pe.text())?;
            }
            Ok(())
        }));
    }
    trials.push(needs::trial(
        "cxi::what_the_user_sets_stays",
        Carrier::Second.find(),
        move |carrier| {
            let variable = "FI_CXI_DISABLE_NON_INJECT_RMA_IDC";
            let job = job("connect_with_a_device", 2, Layout::V7).memory(MemoryKind::Device);
            let job = job.cuda_driver(fake_cuda_dir()).env(variable, 0);
            for pe in run(on_cxi(job, &carrier, "2.6", "auto"))?.pes {
                says(&pe.text(), &format!("{variable}=0 is the user's"))?;
                says(&pe.text(), COPIES)?;
            }
            Ok(())
        },
    ));
    trials
}

/// What the persona says where small writes are left to CUDA.
const COPIES: &str = "CUDA copies small writes";

/// What the persona says of a PE costs it nothing.
fn is_as_it_should_be(text: &str) -> Result<(), Failed> {
    says(text, ": the order of writes is free")?;
    let wrong = ["the order of writes is ordered", COPIES];
    if let Some(wrong) = wrong.into_iter().find(|wrong| text.contains(wrong)) {
        return Err(format!("{wrong:?} in:\n{text}").into());
    }
    let queues = text.lines().filter_map(|line| line.strip_suffix(" completions"));
    let sizes = queues.filter_map(|line| line.rsplit(' ').next()?.parse::<usize>().ok());
    match sizes.min() {
        Some(16384..) => Ok(()),
        least => Err(format!("the smallest queue is {least:?}:\n{text}").into()),
    }
}

fn says(text: &str, part: &str) -> Result<(), Failed> {
    if text.contains(part) { Ok(()) } else { Err(format!("no {part:?} in:\n{text}").into()) }
}
