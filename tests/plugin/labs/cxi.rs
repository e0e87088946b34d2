//! The plugin on a persona of cxi (`tools/labs/cxi`), which keeps cxi's rules over libfabric's tcp.
//!
//! A few runs belong to every test run; with `NVSHMEM_TEST_CXI_LAB` set there are all that
//! `make cxi-lab` tells of.

use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use nvshmem_sim::traffic::resident::RESIDENT;
use nvshmem_sim::{JobSettings, Layout, MemoryKind};
use test_support::built::{cxi_lab, fake_cuda_dir};
use test_support::full;
use test_support::needs::{self, Need, is_set, libfabric2};
use test_support::pairwise::rows;

use crate::fabric::{job, says};
use crate::matrix::run;

/// Versions that the persona says it is: those between which cxi's rules change.
const VERSIONS: [&str; 5] = ["2.6", "2.4", "2.2", "1.22", "1.20"];

/// What heaps of devices are made of: NVSHMEM's, with `NVSHMEM_DISABLE_CUDA_VMM=1` and without, and
/// one whose registrations span allocations.
const KINDS: [MemoryKind; 3] =
    [MemoryKind::Device, MemoryKind::DeviceVmm, MemoryKind::DeviceVmmPieces];

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
    trials.extend(of_devices(all));
    trials.extend(of_what_runs_out());
    trials
}

/// Memory of devices, which the persona's NICs read and write, beside a kernel that stays.
fn of_devices(all: bool) -> Vec<Trial> {
    let mut trials = Vec::new();
    let versions = if all { VERSIONS.len() } else { 2 };
    let scenarios = if all { SCENARIOS.len() } else { 2 };
    for [version, kind, scenario] in rows([versions, KINDS.len(), scenarios], 3) {
        let (version, kind) = (VERSIONS[version], KINDS[kind]);
        let scenario = SCENARIOS[SCENARIOS.len() - 1 - scenario];
        let name = format!("cxi::devices_{scenario}_{}_{kind}", version.replace('.', "_"));
        trials.push(needs::trial(name, Carrier::Second.find(), move |carrier| {
            let way = match (kind, version) {
                (MemoryKind::DeviceVmmPieces, _) => {
                    ": it is of several allocations, and the provider"
                }
                (_, "2.6") => "rail(s) by dma-buf",
                _ => "rail(s) by FI_HMEM_CUDA (dma-buf: not with this provider and version)",
            };
            let job = on_cxi(with_devices(scenario, 2, kind), &carrier, version, "auto");
            // That it is staged is warned of.
            let report = match kind {
                MemoryKind::DeviceVmmPieces => job.run()?.check()?,
                _ => run(job)?,
            };
            // By one PE of the host, for all.
            let warned = format!("{report}").matches("do not reach GPU memory").count();
            if warned != usize::from(kind == MemoryKind::DeviceVmmPieces) {
                return Err(format!("{warned} warnings of it:\n{report}").into());
            }
            for pe in report.pes {
                says(&pe.text(), way)?;
                is_as_it_should_be(&pe.text())?;
            }
            Ok(())
        }));
    }
    for variable in ["FI_MR_CACHE_MAX_COUNT", "FI_MR_CUDA_CACHE_MONITOR_ENABLED"] {
        let name = format!("cxi::devices_without_{variable}");
        trials.push(needs::trial(name, Carrier::Second.find(), move |carrier| {
            // Registrations begin within allocations.
            let job = with_devices("operations", 2, MemoryKind::Device).env(variable, 0);
            let report = on_cxi(job, &carrier, "2.6", "auto").run()?.check()?;
            for pe in report.pes {
                let text = pe.text();
                let warned = text.lines().find(|line| line.contains(" WARN ")).unwrap_or_default();
                for part in ["memory of devices is staged: ", &format!("{variable}=0"), "unset it"]
                {
                    says(warned, part)?;
                }
            }
            Ok(())
        }));
    }
    for (way, monitor) in [("by_default", None), ("that_the_user_named", Some("kdreg2"))] {
        let name = format!("cxi::devices_without_a_monitor_{way}");
        trials.push(needs::trial(name, Carrier::Second.find(), move |carrier| {
            let job = without_a_monitor(&carrier, "2.4");
            let job = monitor.into_iter().fold(job, |job, name| job.env(MONITOR, name));
            // Libfabric's own log goes on, for whoever reads it.
            for log in ["", "warn"] {
                let job =
                    if log.is_empty() { job.clone() } else { job.clone().env("FI_LOG_LEVEL", log) };
                for pe in job.run()?.check()?.pes {
                    let text = pe.text();
                    let warned = text.lines().find(|line| line.contains(" WARN "));
                    for part in ["memory of devices is staged: ", "MR caching disabled", MONITOR] {
                        says(warned.unwrap_or_default(), part)?;
                    }
                    if text.contains(":core:mr:") == log.is_empty() {
                        return Err(format!("FI_LOG_LEVEL={log}:\n{text}").into());
                    }
                }
            }
            Ok(())
        }));
    }
    let name = String::from("cxi::devices_with_another_monitor");
    trials.push(needs::trial(name, Carrier::Second.find(), move |carrier| {
        for pe in run(without_a_monitor(&carrier, "2.6").env(MONITOR, "memhooks"))?.pes {
            says(&pe.text(), "rail(s) by dma-buf")?;
            is_as_it_should_be(&pe.text())?;
        }
        Ok(())
    }));
    let name = String::from("cxi::devices_as_nvidia_s_transport_sets_it");
    trials.push(needs::trial(name, Carrier::Second.find(), move |carrier| {
        let job = with_devices("connect_with_a_device", 2, MemoryKind::DeviceVmm)
            .env("FI_CXI_DISABLE_HMEM_DEV_REGISTER", 1)
            .env("FI_CXI_OPTIMIZED_MRS", 0)
            .env("FI_HMEM_CUDA_USE_GDRCOPY", 1)
            .env("NVSHMEM_LIBFABRIC_GPU_DIRECT", "always");
        for pe in run(on_cxi(job, &carrier, "2.6", "auto"))?.pes {
            says(&pe.text(), "rail(s) by dma-buf")?;
            is_as_it_should_be(&pe.text())?;
        }
        Ok(())
    }));
    let name = String::from("cxi::what_the_user_sets_stays");
    trials.push(needs::trial(name, Carrier::Second.find(), move |carrier| {
        let set = ["FI_CXI_OPTIMIZED_MRS=1", "FI_CXI_DISABLE_NON_INJECT_RMA_IDC=0"];
        let job = with_devices("connect_with_a_device", 2, MemoryKind::Device);
        let pairs = set.iter().filter_map(|set| set.split_once('='));
        let job = pairs.fold(job, |job, (name, value)| job.env(name, value));
        for pe in run(on_cxi(job, &carrier, "2.6", "auto"))?.pes {
            for set in set {
                says(&pe.text(), &format!("{set} is the user's"))?;
            }
            says(&pe.text(), COPIES)?;
        }
        Ok(())
    }));
    let name = String::from("cxi::optimised_regions_of_the_user_are_not_copied_to");
    trials.push(needs::trial(name, Carrier::Second.find(), move |carrier| {
        let job = with_devices("connect_with_a_device", 2, MemoryKind::Device);
        let job = job.env("FI_CXI_OPTIMIZED_MRS", 1);
        for pe in run(on_cxi(job, &carrier, "2.6", "auto"))?.pes {
            says(&pe.text(), "a region is optimised")?;
            if pe.text().contains(COPIES) {
                return Err(format!("{COPIES:?} in:\n{}", pe.text()).into());
            }
        }
        Ok(())
    }));
    trials
}

/// What a NIC has so much of: match entries, buffers for unexpected messages, endpoints.
fn of_what_runs_out() -> Vec<Trial> {
    let trial = |name: &str, run: fn(String) -> Result<(), Failed>| {
        needs::trial(format!("cxi::{name}"), Carrier::Second.find(), run)
    };
    vec![
        trial("more_messages_than_match_entries", |carrier| {
            let job = job("signals", 4, Layout::V7).heap(96 << 20, 1 << 20);
            let job = job.param("rounds", 60).param("most", 300_000);
            let job = job.env("FI_CXI_DEFAULT_RX_SIZE", 4).env("CXI_LAB_MATCH_ENTRIES", 5);
            run(on_cxi(job, &carrier, "2.6", "auto")).map(drop)
        }),
        trial("more_unexpected_messages_than_buffers_beside_a_kernel", |carrier| {
            let job = with_devices("signals", 4, MemoryKind::Device);
            let job = job.env("FI_CXI_DEFAULT_RX_SIZE", 1).env("CXI_LAB_OVERFLOW_BYTES", 64);
            run(on_cxi(job, &carrier, "2.6", "auto")).map(drop)
        }),
        trial("fewer_endpoints_than_lanes", |carrier| {
            let job = job("connect", 2, Layout::V7).grace(Duration::from_secs(30));
            let report = on_cxi(job, &carrier, "2.6", "auto").env("CXI_LAB_ENDPOINTS", 1).run()?;
            for pe in report.pes {
                says(&pe.text(), "host lane: fi_enable failed: No space left on device")?;
                says(&pe.text(), "the NIC's service has no room for another endpoint")?;
            }
            Ok(())
        }),
    ]
}

/// A job with a heap on the stand-in's devices, and a kernel that stays in every PE.
fn with_devices(scenario: &str, n_pes: u32, kind: MemoryKind) -> JobSettings {
    let chunk = if kind == MemoryKind::DeviceVmmPieces { 8 << 20 } else { 2 << 20 };
    let job = job(scenario, n_pes, Layout::V7).memory(kind).heap(96 << 20, chunk);
    let job = job.param("rounds", 60).param("most", 300_000).param("operations", 4_000);
    job.cuda_driver(fake_cuda_dir()).param(RESIDENT, true)
}

/// Which monitor of host memory libfabric starts.
const MONITOR: &str = "FI_MR_CACHE_MONITOR";

/// A job whose registrations begin within allocations, where the monitor that libfabric starts by
/// default does not start.
fn without_a_monitor(carrier: &str, version: &str) -> JobSettings {
    let job = with_devices("operations", 2, MemoryKind::Device).env("CXI_LAB_KDREG2", 0);
    on_cxi(job, carrier, version, "auto")
}

/// What the persona says where small writes are left to CUDA.
const COPIES: &str = "CUDA copies small writes";

/// What the persona says of a PE costs it nothing.
fn is_as_it_should_be(text: &str) -> Result<(), Failed> {
    says(text, ": the order of writes is free")?;
    let wrong = [
        "the order of writes is ordered",
        "a region is optimised",
        "GDRCopy maps",
        "CUDA is asked about memory",
        COPIES,
        "carry nothing",
    ];
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
