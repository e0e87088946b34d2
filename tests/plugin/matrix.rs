//! Traffic over real fabrics: the scenarios of the simulator, on rows of fabric, memory, PEs,
//! rails, layout and setting.
//!
//! Each value of each factor is in a row, and so is each pair that the layers below the engine can
//! tell apart: a fabric and a signal protocol, a fabric and a mode of progress. Staging knows
//! nothing of layouts: its rows have each kind of heap, each of its settings and each signal
//! protocol.

use libtest_mimic::{Failed, Trial};
use nvshmem_sim::Layout::{self, V3a, V3b, V4, V5, V6, V7};
use nvshmem_sim::MemoryKind::{self, Device, DeviceVmm, Host};
use nvshmem_sim::traffic::RESIDENT;
use nvshmem_sim::{JobReport, JobSettings};
use test_support::full;

use crate::fabric::Fabric::{self, Rxm, Rxm2, Shm, Shm2, Tcp2};
use crate::fabric::{DEVICES, devices, job_on, says, trial};
use crate::staged::device::{Needs, job as staged_job, staged};

/// A setting of the plugin, by the end of its variable, or a debug key in lower case.
type Setting = Option<(&'static str, &'static str)>;

#[derive(Clone, Copy, Debug)]
struct Row(Fabric, MemoryKind, u32, u8, Layout, Setting);

impl Row {
    fn trial(
        self,
        scenario: &'static str,
        end: &str,
        edit: impl FnOnce(JobSettings) -> JobSettings + Send + 'static,
        parts: &'static [&'static str],
    ) -> Trial {
        let Self(fabric, kind, n_pes, rails, layout, setting) = self;
        let words = setting.map(|(name, value)| format!("_{name}-{value}").to_lowercase());
        let end = words.unwrap_or_default() + if end.is_empty() { "" } else { "_" } + end;
        let name = format!("{scenario}_{}_{n_pes}x{rails}-v{layout}{end}", fabric.name());
        let run = move || {
            let job = match kind {
                Host => job_on(fabric, scenario, n_pes, rails, layout),
                kind => staged_job(fabric, kind, scenario, n_pes, rails, layout),
            };
            let report = run(edit(with(job, setting)))?;
            let mut all = report.pes.iter().flat_map(|pe| parts.iter().map(move |part| (pe, part)));
            all.try_for_each(|(pe, part)| says(&pe.text(), part))
        };
        match kind {
            Host => trial(name, Some(fabric), run),
            // More PEs than two share a machine's GPU badly.
            _ if n_pes > 2 => staged(format!("{kind}::{name}"), fabric, Needs::StandIn, run),
            _ => staged(format!("{kind}::{name}"), fabric, Needs::Any, run),
        }
    }
}

fn with(job: JobSettings, setting: Setting) -> JobSettings {
    match setting {
        Some((key, value)) if key.starts_with(|c: char| c.is_ascii_lowercase()) => {
            job.debug(key, value)
        }
        Some((name, value)) => job.env(format!("NVSHMEM_LIBFABRIC_{name}"), value),
        None => job,
    }
}

/// The heap grows while the proxy thread runs.
const GROWING: &str = "growing";
/// A kernel stays on the device of each PE.
const KERNEL: &str = "under_kernel";

const COUNTED: &str = "targets can count the segments of a put";

const DEPTH_1: Setting = Some(("queue_depth", "1"));

const OPERATIONS: [(Row, &str); 15] = [
    (Row(Shm, Host, 2, 1, V3a, None), ""),
    (Row(Tcp2, Host, 2, 2, V3b, None), GROWING),
    (Row(Rxm, Host, 4, 4, V4, None), GROWING),
    (Row(Shm2, Host, 2, 2, V5, DEPTH_1), ""),
    (Row(Rxm2, Host, 2, 1, V6, Some(("threading", "safe"))), GROWING),
    (Row(Tcp2, Host, 4, 2, V7, None), GROWING),
    (Row(Rxm, Host, 2, 2, V7, Some(("threading", "domain"))), GROWING),
    (Row(Shm, Host, 4, 2, V7, None), GROWING),
    (Row(Rxm, Host, 2, 1, V7, Some(("YIELD", "never"))), ""),
    (Row(Rxm, Device, 2, 1, V3a, Some(("consistency", "flush"))), ""),
    (Row(Shm, Device, 2, 2, V7, None), KERNEL),
    (Row(Tcp2, DeviceVmm, 2, 1, V6, Some(("STAGING_CHUNK", "4K"))), KERNEL),
    (Row(Rxm, Device, 2, 4, V4, Some(("STAGING_DEPTH", "1"))), ""),
    (Row(Tcp2, DeviceVmm, 4, 2, V5, None), GROWING),
    (Row(Rxm, DeviceVmm, 2, 2, V7, DEPTH_1), ""),
];

const SIGNALS: [(Row, &str, bool); 16] = [
    (Row(Tcp2, Host, 2, 2, V7, None), "counted", true),
    (Row(Rxm, Host, 2, 2, V6, None), "counted", false),
    (Row(Rxm2, Host, 2, 2, V7, None), "counted", true),
    (Row(Shm2, Host, 2, 2, V7, None), "counted", true),
    (Row(Shm, Host, 2, 1, V7, DEPTH_1), "counted", false),
    (Row(Tcp2, Host, 4, 4, V4, None), "auto", false),
    (Row(Rxm, Host, 2, 1, V3b, None), "chained", true),
    (Row(Shm, Host, 4, 2, V5, Some(("threading", "domain"))), "eager", false),
    (Row(Rxm2, Host, 2, 2, V7, None), "auto", false),
    (Row(Shm2, Host, 2, 2, V3a, None), "chained", false),
    (Row(Tcp2, Host, 2, 1, V7, Some(("threading", "safe"))), "eager", true),
    (Row(Rxm, Host, 4, 2, V7, DEPTH_1), "auto", false),
    (Row(Tcp2, DeviceVmm, 2, 2, V7, None), "auto", false),
    (Row(Rxm, Device, 2, 2, V6, Some(("STAGING_CHUNK", "4M"))), "counted", false),
    (Row(Shm, DeviceVmm, 4, 2, V5, DEPTH_1), "eager", false),
    (Row(Tcp2, Device, 2, 4, V3b, Some(("STAGING_DEPTH", "1"))), "chained", false),
];

const PLAIN: [(&str, Row); 10] = [
    ("order", Row(Tcp2, Host, 3, 2, V3a, None)),
    ("order", Row(Rxm, Host, 3, 2, V6, None)),
    ("order", Row(Shm, Host, 3, 2, V7, None)),
    ("order", Row(Tcp2, DeviceVmm, 2, 2, V3a, None)),
    ("storm", Row(Rxm, Host, 4, 2, V7, DEPTH_1)),
    ("storm", Row(Shm, Device, 2, 2, V7, DEPTH_1)),
    ("cycles", Row(Rxm, Host, 2, 2, V7, None)),
    // The host of layout 5 unloads the plugin each time.
    ("cycles", Row(Shm, Host, 2, 2, V5, None)),
    ("cycles", Row(Rxm, Device, 2, 2, V7, None)),
    ("atomics", Row(Rxm, Device, 2, 1, V6, None)),
];

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    trials.extend(OPERATIONS.map(|(row, how)| operations(row, how)));
    trials.extend(SIGNALS.map(|(row, protocol, cut)| signals(row, protocol, cut)));
    trials.extend(PLAIN.map(|(scenario, row)| row.trial(scenario, "", |job| job, &[])));
    trials.extend(others());
    trials
}

fn operations(row: Row, how: &'static str) -> Trial {
    let edit = move |job: JobSettings| {
        // Room for 8 PEs, in chunks that the larger transfers cross.
        let job = if row.1 == Host { job.heap(64 << 20, 1 << 20) } else { job };
        match how {
            GROWING => job.heap_grows(),
            KERNEL => job.param(RESIDENT, true),
            _ => job,
        }
    };
    // Where the host asks for consistency, flushes change nothing.
    let says: &[&str] = match row.5 {
        Some(("consistency", _)) => {
            &["CUDA's flush (NVSHMEM_LIBFABRIC_DEBUG=consistency)", "CUDA's flush: done "]
        }
        _ => &[],
    };
    row.trial("operations", how, edit, says)
}

fn signals(row: Row, protocol: &'static str, cut: bool) -> Trial {
    let end = format!("{protocol}{}", if cut { "_cut" } else { "" });
    let edit = move |job: JobSettings| {
        let Row(_, kind, n_pes, _, _, setting) = row;
        // From nothing to some megabytes; less where each byte is much work.
        let (rounds, most) = match (n_pes, cut, setting) {
            _ if full() => (5000, 4 << 20),
            (2, false, None) => (if kind == Host { 150 } else { 60 }, 4 << 20),
            _ => (if kind == Host { 80 } else { 60 }, 300_000),
        };
        // A place for each transfer in flight, at either end.
        let heap = (96 << 20).max(u64::from(n_pes) * 8 * most + (16 << 20));
        let job = job.heap(heap, 2 << 20).debug("signals", protocol);
        let job = job.param("rounds", rounds).param("most", most);
        if cut { job.debug("max_segment", 5000) } else { job }
    };
    let says: &[&str] = if protocol == "counted" { &[COUNTED] } else { &[] };
    row.trial("signals", &end, edit, says)
}

fn others() -> Vec<Trial> {
    let odd_segments = Row(Tcp2, Host, 2, 2, V3b, Some(("max_segment", "1000003")));
    let one_nic = Row(Rxm, Host, 2, 2, V7, Some(("MAX_NIC_PER_PE", "1")));
    let device = Row(Shm, Device, 2, 2, V7, None);
    let rails = Row(Tcp2, Host, 3, 2, V7, None);
    vec![
        odd_segments.trial("operations", "", |job| job.heap(64 << 20, 1 << 20), &[]),
        device.trial("signals", "slow", |job| job.env("FAKE_CUDA_COPY_NS", 200_000), &[]),
        // The log has what was found, what a PE takes of it, and the setting that says so.
        one_nic.trial(
            "atomics",
            "",
            |job| job,
            &[
                "provider tcp;ofi_rxm with 2 device(s): 127.0.0.1, 127.0.0.2",
                "; asked for progress MANUAL, threading ",
                "NVSHMEM_LIBFABRIC_MAX_NIC_PER_PE=1: not used: 127.0.0.2",
                "with a host lane and 1 proxy rail(s)",
            ],
        ),
        // PEs with two rails, one and four: each reaches every other, and signals are counted.
        rails.trial(
            "signals",
            "different_rails",
            |job| {
                let job = job.env_of_pe(1, DEVICES, devices(Tcp2, 1));
                job.env_of_pe(2, DEVICES, devices(Tcp2, 4))
            },
            &[COUNTED],
        ),
    ]
}

/// The warning about a heap that belongs to a context of the program.
pub(crate) const HELD_UP: &str = "while a call of the program waits until that is idle";

/// Warnings about the machine, which no job can help: a GPU whose nearest NICs were not asked for,
/// a CUDA driver without a device, a fabric whose copies may wait for kernels, a heap of the kind
/// that the job is about.
const ABOUT_THE_MACHINE: [&str; 4] = [
    HELD_UP,
    "is nearer to this PE's GPU",
    "memory of devices cannot be told from host memory",
    "some transfers from device memory call CUDA, and may wait for running kernels",
];

/// Runs a job that must succeed without warnings, and stage what is on a device.
pub(crate) fn run(job: JobSettings) -> Result<JobReport, Failed> {
    let layout = job.layout;
    let fail = |what: String| Failed::from(format!("layout {layout}: {what}"));
    let report: JobReport = job.run().map_err(|error| fail(error.to_string()))?;
    let report = report.check().map_err(|error| fail(error.to_string()))?;
    for pe in &report.pes {
        let text = pe.text();
        let is_about_machine = |line: &str| ABOUT_THE_MACHINE.iter().any(|it| line.contains(it));
        let mut warnings = text.lines().filter(|line| line.contains("WARN"));
        if let Some(line) = warnings.find(|line| !is_about_machine(line)) {
            return Err(fail(format!("PE {} warned: {line}", pe.pe)));
        }
        says(&text, "rail(s)")?;
        if job.memory != Host {
            says(&text, "memory of devices is staged")?;
        }
    }
    Ok(report)
}
