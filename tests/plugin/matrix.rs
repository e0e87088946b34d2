//! Traffic over real fabrics: the scenarios of the simulator, on rows of fabric, PEs, rails, layout
//! and setting.
//!
//! Each value of each factor is in a row, and so is each pair that the layers below the engine can
//! tell apart (a fabric and a way to signal, a fabric and a mode of progress).

use libtest_mimic::{Failed, Trial};
use nvshmem_sim::{JobReport, JobSettings, Layout};
use test_support::full;

use crate::fabric::Fabric::{self, Rxm, Rxm2, Shm, Shm2, Tcp2};
use crate::fabric::trial;

/// A setting of the plugin, by the end of its variable, or a debug key in lower case.
pub(crate) type Setting = Option<(&'static str, &'static str)>;

#[derive(Clone, Copy, Debug)]
struct Row(Fabric, u32, u8, Layout, Setting);

impl Row {
    fn name(self) -> String {
        let Self(fabric, n_pes, rails, layout, setting) = self;
        place(fabric, n_pes, rails, layout) + &words(setting)
    }

    fn job(self, scenario: &str) -> JobSettings {
        let Self(fabric, n_pes, rails, layout, setting) = self;
        with(fabric.job(scenario, n_pes, rails, layout), setting)
    }
}

const OPERATIONS: [(Row, bool); 9] = [
    (Row(Shm, 2, 1, Layout::V3a, None), false),
    (Row(Tcp2, 2, 2, Layout::V3b, None), true),
    (Row(Rxm, 4, 4, Layout::V4, None), true),
    (Row(Shm2, 2, 2, Layout::V5, Some(("queue_depth", "1"))), false),
    (Row(Rxm2, 2, 1, Layout::V6, Some(("threading", "safe"))), true),
    (Row(Tcp2, 4, 2, Layout::V7, None), true),
    (Row(Rxm, 2, 2, Layout::V7, Some(("threading", "domain"))), false),
    (Row(Shm, 4, 2, Layout::V7, None), true),
    (Row(Rxm, 2, 1, Layout::V7, Some(("YIELD", "never"))), false),
];

const SIGNALS: [(Row, &str, bool); 10] = [
    (Row(Tcp2, 2, 2, Layout::V7, None), "counted", true),
    (Row(Rxm, 2, 2, Layout::V6, None), "counted", false),
    (Row(Shm, 2, 1, Layout::V7, Some(("queue_depth", "1"))), "counted", false),
    (Row(Tcp2, 4, 4, Layout::V4, None), "auto", false),
    (Row(Rxm, 2, 1, Layout::V3b, None), "chained", true),
    (Row(Shm, 4, 2, Layout::V5, Some(("threading", "domain"))), "eager", false),
    (Row(Rxm2, 2, 2, Layout::V7, None), "auto", false),
    (Row(Shm2, 2, 2, Layout::V3a, None), "chained", false),
    (Row(Tcp2, 2, 1, Layout::V7, Some(("threading", "safe"))), "eager", true),
    (Row(Rxm, 4, 2, Layout::V7, Some(("queue_depth", "1"))), "auto", false),
];

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    trials.extend(OPERATIONS.map(|(row, grows)| operations(row, grows)));
    trials.extend(SIGNALS.map(|(row, engine, cut)| signals(row, engine, cut)));
    for (fabric, layout) in [(Tcp2, Layout::V3a), (Rxm, Layout::V6), (Shm, Layout::V7)] {
        trials.push(one(format!("order_{}", fabric.name()), fabric, move || {
            fabric.job("order", 3, 2, layout)
        }));
    }
    trials.push(one(String::from("storm_depth_1_rxm"), Rxm, || {
        let job = Rxm.job("storm", 4, 2, Layout::V7).heap(32 << 20, 4 << 20);
        job.debug("queue_depth", 1).param("operations", 10_000)
    }));
    // Whole chunks, cut into odd segments.
    trials.push(one(String::from("largest_tcp2"), Tcp2, || {
        let job = Tcp2.job("largest", 2, 2, Layout::V3b).heap(192 << 20, 64 << 20);
        job.debug("max_segment", 1_000_003)
    }));
    // The host of layout 5 unloads the plugin each time.
    for (fabric, layout) in [(Rxm, Layout::V7), (Shm, Layout::V5)] {
        trials.push(one(format!("cycles_{}", fabric.name()), fabric, move || {
            fabric.job("cycles", 2, 2, layout)
        }));
    }
    trials
}

fn one(name: String, fabric: Fabric, job: impl FnOnce() -> JobSettings + Send + 'static) -> Trial {
    trial(name, Some(fabric), move || done(job()))
}

fn operations(row: Row, grows: bool) -> Trial {
    let heap = if grows { "_growing" } else { "" };
    one(format!("operations_{}{heap}", row.name()), row.0, move || {
        // Room for 8 PEs, in chunks that the larger transfers cross.
        let job = row.job("operations").heap(64 << 20, 1 << 20);
        if grows { job.heap_grows() } else { job }
    })
}

fn signals(row: Row, engine: &'static str, cut: bool) -> Trial {
    let cut: Setting = cut.then_some(("max_segment", "5000"));
    one(
        format!("signals_{}_{engine}{}", row.name(), if cut.is_some() { "_cut" } else { "" }),
        row.0,
        move || {
            let Row(_, n_pes, _, _, setting) = row;
            // From nothing to some megabytes; less where each byte is much work.
            let (rounds, most) = match (n_pes, cut, setting) {
                _ if full() => (5000, 4 << 20),
                (2, None, None) => (150, 4 << 20),
                _ => (80, 300_000),
            };
            // A place for each transfer in flight, at either end.
            let heap = (96 << 20).max(u64::from(n_pes) * 8 * most + (16 << 20));
            let job = signal_engine(row.job("signals").heap(heap, 1 << 20), engine);
            with(job.param("rounds", rounds).param("most", most), cut)
        },
    )
}

pub(crate) fn place(fabric: Fabric, n_pes: u32, rails: u8, layout: Layout) -> String {
    format!("{}_{n_pes}x{rails}-v{layout}", fabric.name())
}

pub(crate) fn words(setting: Setting) -> String {
    let words = setting.map(|(name, value)| format!("_{name}-{value}").to_lowercase());
    words.map_or_else(String::new, |words| "_".to_owned() + &words[1..].replace('_', "-"))
}

pub(crate) fn with(job: JobSettings, setting: Setting) -> JobSettings {
    match setting {
        Some((key, value)) if key.starts_with(|c: char| c.is_ascii_lowercase()) => {
            job.debug(key, value)
        }
        Some((name, value)) => job.env(format!("NVSHMEM_LIBFABRIC_{name}"), value),
        None => job,
    }
}

pub(crate) fn done(job: JobSettings) -> Result<(), Failed> {
    run(job).map(|_| ())
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

pub(crate) fn warns(line: &str) -> bool {
    line.contains("WARN") && !ABOUT_THE_MACHINE.iter().any(|known| line.contains(known))
}

/// Runs a job that must succeed without warnings, and leave nothing in /dev/shm.
pub(crate) fn run(job: JobSettings) -> Result<JobReport, Failed> {
    let layout = job.layout;
    let fail = |what: String| Failed::from(format!("layout {layout}: {what}"));
    let report: JobReport = job.run().map_err(|error| fail(error.to_string()))?;
    let report = report.check().map_err(|error| fail(error.to_string()))?;
    if !report.leftovers.is_empty() {
        return Err(fail(format!("left in /dev/shm: {:?}", report.leftovers)));
    }
    for pe in &report.pes {
        let text = pe.text();
        if let Some(line) = text.lines().find(|line| warns(line)) {
            return Err(fail(format!("PE {} warned: {line}", pe.pe)));
        }
        if !text.contains("rail(s)") {
            return Err(fail(format!("PE {} did not say which rails it uses:\n{text}", pe.pe)));
        }
    }
    Ok(report)
}

pub(crate) fn signal_engine(job: JobSettings, engine: &str) -> JobSettings {
    job.debug("signals", engine)
}
