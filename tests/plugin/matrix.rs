//! The matrix of runs: which scenarios on which fabrics, with how many PEs and rails, on which
//! layouts, with which settings.
//!
//! The combinations are covering arrays: any two values are together in some run. The full tier has
//! the products.

use libtest_mimic::{Failed, Trial};
use nvshmem_sim::{JobReport, JobSettings, Layout};
use test_support::full;
use test_support::pairwise::{rows, rows_of};

use crate::fabric::{Fabric, trial};

pub(crate) const FABRICS: [Fabric; 5] =
    [Fabric::Shm, Fabric::Tcp2, Fabric::Rxm, Fabric::Shm2, Fabric::Rxm2];

/// PEs and rails: each number of either, and in the full tier every two together. Eight PEs with
/// four rails take as long on two cores as twenty jobs of two PEs.
fn shapes() -> Vec<(u32, u8)> {
    if !full() {
        return vec![(2, 1), (2, 2), (4, 4), (8, 2)];
    }
    [2, 4, 8].into_iter().flat_map(|pes| [1, 2, 4].map(|rails| (pes, rails))).collect()
}

/// A setting of the plugin, by the end of its variable; what the design asks of the provider first
/// is not all that it must work with.
pub(crate) type Setting = Option<(&'static str, &'static str)>;

const SETTINGS: [Setting; 5] = [
    None,
    Some(("queue_depth", "1")),
    Some(("progress", "manual")),
    Some(("threading", "domain")),
    Some(("threading", "safe")),
];

const ENGINES: [&str; 4] = ["auto", "chained", "eager", "counted"];

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    let layouts = Layout::ALL;
    let shapes = shapes();
    let sizes = [FABRICS.len(), shapes.len(), layouts.len(), SETTINGS.len(), 2];
    for [fabric, shape, layout, setting, grows] in rows(sizes, 3) {
        let (fabric, (n_pes, rails)) = (FABRICS[fabric], shapes[shape]);
        let (layout, setting) = (layouts[layout], SETTINGS[setting]);
        let grows = grows == 1;
        let heap = if grows { "_growing" } else { "" };
        let at = place(fabric, n_pes, rails, layout);
        let name = format!("operations_{at}{}{heap}", words(setting));
        trials.push(trial(name, Some(fabric), move || {
            let job = fabric.job("operations", n_pes, rails, layout).heap(HEAP, CHUNK);
            done(with(if grows { job.heap_grows() } else { job }, setting))
        }));
    }
    let sizes = [FABRICS.len(), shapes.len(), layouts.len(), ENGINES.len(), SETTINGS.len(), 2];
    for [fabric, shape, layout, engine, setting, cut] in rows(sizes, 4) {
        let (fabric, (n_pes, rails)) = (FABRICS[fabric], shapes[shape]);
        let (layout, engine, setting) = (layouts[layout], ENGINES[engine], SETTINGS[setting]);
        // Puts of many segments.
        let cut: Setting = (cut == 1).then_some(("max_segment", "5000"));
        let at = place(fabric, n_pes, rails, layout);
        let name = format!("signals_{at}_{engine}{}{}", words(setting), words(cut));
        trials.push(trial(name, Some(fabric), move || {
            // From nothing to some megabytes, in up to five chunks; less where much has to be done
            // for each byte.
            let (rounds, most) = match (n_pes, cut, setting) {
                _ if full() => (10_000, 4 << 20),
                (2, None, _) => (250, 4 << 20),
                (8, ..) => (60, 300_000),
                _ => (120, 300_000),
            };
            // A place for each transfer under way, at either end.
            let heap = (96 << 20).max(u64::from(n_pes) * 8 * most + (16 << 20));
            let job = fabric.job("signals", n_pes, rails, layout).heap(heap, 1 << 20);
            let job = signal_engine(job, engine);
            done(with(with(job.param("rounds", rounds).param("most", most), setting), cut))
        }));
    }
    // Layouts differ in how a lane is asked for an atomic, not in what it does.
    let sizes = [FABRICS.len(), shapes.len(), SETTINGS.len(), layouts.len()];
    for [fabric, shape, setting, layout] in rows_of(sizes, 3) {
        let (fabric, (n_pes, rails)) = (FABRICS[fabric], shapes[shape]);
        let (layout, setting) = (layouts[layout], SETTINGS[setting]);
        let name = format!("atomics_{}{}", place(fabric, n_pes, rails, layout), words(setting));
        trials.push(trial(name, Some(fabric), move || {
            done(with(fabric.job("atomics", n_pes, rails, layout), setting))
        }));
    }
    for fabric in FABRICS {
        let on = fabric.name();
        trials.push(trial(format!("order_{on}"), Some(fabric), move || {
            done(fabric.job("order", 3, 2, Layout::V3a))?;
            done(fabric.job("order", 3, 4, Layout::V6))
        }));
    }
    for fabric in [Fabric::Rxm, Fabric::Tcp2, Fabric::Shm] {
        let on = fabric.name();
        // One at a time, operations wait for each other.
        for (depth, name, operations) in
            [(None, "storm", 40_000), (Some(1), "storm_depth_1", 10_000)]
        {
            trials.push(trial(format!("{name}_{on}"), Some(fabric), move || {
                let job = fabric.job("storm", 4, 2, Layout::V7).heap(32 << 20, 4 << 20);
                let job = match depth {
                    Some(depth) => job.debug("queue_depth", depth),
                    None => job,
                };
                done(job.param("operations", if full() { 100_000 } else { operations }))
            }));
        }
        trials.push(trial(format!("largest_{on}"), Some(fabric), move || {
            // Whole chunks, once as they are and once cut by the plugin into odd segments.
            for segment in ["0", "1000003"] {
                let job = fabric.job("largest", 2, 2, Layout::V3b).heap(192 << 20, 64 << 20);
                done(job.debug("max_segment", segment))?;
            }
            Ok(())
        }));
        // Two PEs, that more would share their cores with those that never give theirs up.
        trials.push(trial(format!("operations_{on}_yield_never"), Some(fabric), move || {
            let job = fabric.job("operations", 2, 2, Layout::V7).heap(HEAP, CHUNK);
            done(with(job, Some(("YIELD", "never"))))
        }));
        trials.push(trial(format!("cycles_{on}"), Some(fabric), move || {
            done(fabric.job("cycles", 2, 2, Layout::V5))?;
            done(fabric.job("cycles", 2, 2, Layout::V7))
        }));
    }
    trials
}

/// For names of tests: where it runs.
pub(crate) fn place(fabric: Fabric, n_pes: u32, rails: u8, layout: Layout) -> String {
    format!("{}_{n_pes}_pes_{rails}_rails_layout_{layout}", fabric.name())
}

/// For names of tests: a setting.
pub(crate) fn words(setting: Setting) -> String {
    setting.map_or_else(String::new, |(name, value)| format!("_{name}_{value}").to_lowercase())
}

/// The job with a setting, or, in lower case, a debug key.
pub(crate) fn with(job: JobSettings, setting: Setting) -> JobSettings {
    match setting {
        Some((key, value)) if key.starts_with(|c: char| c.is_ascii_lowercase()) => {
            job.debug(key, value)
        }
        Some((name, value)) => job.env(format!("NVSHMEM_LIBFABRIC_{name}"), value),
        None => job,
    }
}

/// Room for the operations scenario at 8 PEs, in chunks that its larger transfers cross.
const HEAP: u64 = 64 << 20;
const CHUNK: u64 = 1 << 20;

/// As [`run`], for whom the report is of no more use.
pub(crate) fn done(job: JobSettings) -> Result<(), Failed> {
    run(job).map(|_| ())
}

/// What is said of a heap that belongs to a context of the program.
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

/// Whether a line warns of what the plugin or the job did wrong.
pub(crate) fn warns(line: &str) -> bool {
    line.contains("WARN") && !ABOUT_THE_MACHINE.iter().any(|known| line.contains(known))
}

/// Runs a job that is to succeed, cleanly: without warnings, and leaving nothing in /dev/shm.
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

/// The job, with signals by this engine. Counting takes rails that are not monitored.
pub(crate) fn signal_engine(job: JobSettings, engine: &str) -> JobSettings {
    let job = job.debug("signals", engine);
    if engine == "counted" { job.env("NVSHMEM_LIBFABRIC_RAIL_TIMEOUT", 0) } else { job }
}
