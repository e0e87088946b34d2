//! Which scenarios run on which fabrics, with how many PEs and rails.

use libtest_mimic::{Failed, Trial};
use nvshmem_sim::{JobReport, JobSettings, Layout};
use test_support::full;

use crate::fabric::{Fabric, trial};

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for fabric in [Fabric::Rxm, Fabric::Tcp2, Fabric::Shm] {
        for n_pes in [2, 4, 8] {
            for rails in [1, 2, 4] {
                let name = format!("operations_{}_{n_pes}_pes_{rails}_rails", fabric.name());
                trials.push(trial(name, Some(fabric), move || {
                    layouts(n_pes, &[Layout::V3a, Layout::V7]).iter().try_for_each(|layout| {
                        done(fabric.job("operations", n_pes, rails, *layout).heap(HEAP, CHUNK))
                    })
                }));
            }
        }
        for (depth, name) in [(None, "storm"), (Some(1), "storm_depth_1")] {
            let name = format!("{name}_{}", fabric.name());
            trials.push(trial(name, Some(fabric), move || {
                let mut job = fabric.job("storm", 4, 2, Layout::V7).heap(32 << 20, 4 << 20);
                if let Some(depth) = depth {
                    job = job.env("NVSHMEM_LIBFABRIC_QUEUE_DEPTH", depth);
                }
                done(job.param("operations", 100_000))
            }));
        }
        let name = format!("largest_{}", fabric.name());
        trials.push(trial(name, Some(fabric), move || {
            // Whole chunks, once as they are and once cut by the plugin into odd segments.
            for segment in ["0", "1000003"] {
                let job = fabric.job("largest", 2, 2, Layout::V3b).heap(192 << 20, 64 << 20);
                done(job.env("NVSHMEM_LIBFABRIC_MAX_SEGMENT", segment))?;
            }
            Ok(())
        }));
        let name = format!("cycles_{}", fabric.name());
        trials.push(trial(name, Some(fabric), move || {
            done(fabric.job("cycles", 2, 2, Layout::V5))?;
            done(fabric.job("cycles", 2, 2, Layout::V7))
        }));
    }
    for fabric in [Fabric::Rxm, Fabric::Tcp2, Fabric::Shm, Fabric::Rxm2, Fabric::Shm2] {
        let name = format!("order_{}", fabric.name());
        trials.push(trial(name, Some(fabric), move || {
            done(fabric.job("order", 3, 2, Layout::V3a))?;
            done(fabric.job("order", 3, 4, Layout::V6))
        }));
    }
    for fabric in [Fabric::Rxm, Fabric::Tcp2, Fabric::Shm, Fabric::Rxm2, Fabric::Shm2] {
        for (n_pes, rails) in [(2, 1), (4, 2), (8, 4)] {
            for engine in ["auto", "native", "chained", "eager", "counted"] {
                let second = matches!(fabric, Fabric::Rxm2 | Fabric::Shm2);
                // With many PEs, what auto takes and the one that counts over all rails.
                let few = if second { &["auto"][..] } else { &["auto", "counted"] };
                if n_pes == 8 && !few.contains(&engine) && !full() {
                    continue;
                }
                let name = format!("signals_{}_{n_pes}_pes_{rails}_rails_{engine}", fabric.name());
                trials.push(trial(name, Some(fabric), move || {
                    // From nothing to 4 MiB, in up to five chunks; less where there are many PEs.
                    let (rounds, most) = match n_pes {
                        _ if full() => (10_000, 4 << 20),
                        // What auto takes is one of the others, run at length under its own name.
                        2 if second || engine == "auto" => (1000, 4 << 20),
                        2 => (10_000, 4 << 20),
                        _ => (300, 300_000),
                    };
                    // A place for each transfer under way, at either end.
                    let heap = (96 << 20).max(u64::from(n_pes) * 8 * most + (16 << 20));
                    // Which engine it is, no layout changes.
                    let few = &[Layout::V7];
                    for layout in if engine == "auto" { layouts(n_pes, few) } else { few } {
                        let rounds = if *layout == Layout::V7 { rounds } else { rounds / 10 };
                        let job = fabric.job("signals", n_pes, rails, *layout);
                        let job = signal_engine(job, engine);
                        done(job.heap(heap, 1 << 20).param("rounds", rounds).param("most", most))?;
                    }
                    Ok(())
                }));
            }
            let name = format!("atomics_{}_{n_pes}_pes_{rails}_rails", fabric.name());
            trials.push(trial(name, Some(fabric), move || {
                let layouts = layouts(n_pes, &[Layout::V5, Layout::V7]);
                layouts.iter().try_for_each(|l| done(fabric.job("atomics", n_pes, rails, *l)))
            }));
        }
        let name = format!("signals_{}_depth_1", fabric.name());
        trials.push(trial(name, Some(fabric), move || {
            let job = fabric.job("signals", 3, 2, Layout::V6).heap(64 << 20, 2 << 20);
            let job = job.env("NVSHMEM_LIBFABRIC_QUEUE_DEPTH", 1);
            done(job.param("rounds", 300).param("most", 300_000))
        }));
        let name = format!("signals_{}_counted_depth_1", fabric.name());
        trials.push(trial(name, Some(fabric), move || {
            // Puts of many segments, through queues of one.
            let job = fabric.job("signals", 3, 2, Layout::V6).heap(64 << 20, 2 << 20);
            let job = signal_engine(job, "counted");
            let job = job.env("NVSHMEM_LIBFABRIC_MAX_SEGMENT", 5000);
            let job = job.env("NVSHMEM_LIBFABRIC_QUEUE_DEPTH", 1);
            done(job.param("rounds", 300).param("most", 300_000))
        }));
    }
    for fabric in [Fabric::Rxm2, Fabric::Shm2] {
        let name = format!("operations_{}_4_pes_2_rails", fabric.name());
        trials.push(trial(name, Some(fabric), move || {
            done(fabric.job("operations", 4, 2, Layout::V7).heap(HEAP, CHUNK))
        }));
    }
    for fabric in [Fabric::Rxm, Fabric::Tcp2, Fabric::Shm] {
        // What the design asks of the provider first is not all it must work with.
        for (variable, value) in [
            ("NVSHMEM_LIBFABRIC_PROGRESS", "manual"),
            ("NVSHMEM_LIBFABRIC_THREADING", "domain"),
            ("NVSHMEM_LIBFABRIC_THREADING", "safe"),
            ("NVSHMEM_LIBFABRIC_QUEUE_DEPTH", "1"),
            ("NVSHMEM_LIBFABRIC_YIELD", "never"),
        ] {
            let setting = variable.trim_start_matches("NVSHMEM_LIBFABRIC_").to_lowercase();
            let name = format!("operations_{}_{setting}_{value}", fabric.name());
            trials.push(trial(name, Some(fabric), move || {
                let job = fabric.job("operations", 2, 2, Layout::V7).heap(HEAP, CHUNK);
                done(job.heap_grows().env(variable, value))
            }));
        }
    }
    trials
}

/// The layouts to run with so many PEs: all of them with two, since they differ in what the host calls
/// and not in what crosses the fabric, and these few with more.
fn layouts(n_pes: u32, few: &'static [Layout]) -> &'static [Layout] {
    if n_pes == 2 || full() { &Layout::ALL } else { few }
}

/// Room for the operations scenario at 8 PEs, in chunks that its larger transfers cross.
const HEAP: u64 = 64 << 20;
const CHUNK: u64 = 1 << 20;

/// As [`run`], for whom the report is of no more use.
pub(crate) fn done(job: JobSettings) -> Result<(), Failed> {
    run(job).map(|_| ())
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
        if let Some(line) = text.lines().find(|line| line.contains("WARN")) {
            return Err(fail(format!("PE {} warned: {line}", pe.pe)));
        }
        if !text.contains("rail(s)") {
            return Err(fail(format!("PE {} did not say which rails it uses:\n{text}", pe.pe)));
        }
    }
    Ok(report)
}

/// The job, with signals by this engine. Counting takes rails that are not looked after.
fn signal_engine(job: JobSettings, engine: &str) -> JobSettings {
    let job = job.env("NVSHMEM_LIBFABRIC_SIGNAL_ENGINE", engine);
    if engine == "counted" { job.env("NVSHMEM_LIBFABRIC_RAIL_TIMEOUT", 0) } else { job }
}
