//! Atomics that the provider executes: exact, ordered with what a fence orders, and refused with
//! the reason where a PE cannot have them.

use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use nvshmem_sim::{JobSettings, Layout};
use test_support::full;
use test_support::pairwise::rows_of;

use crate::fabric::{Fabric, job, trial};
use crate::matrix::{place, run};
use crate::peers::all_say;

const SETTING: &str = "NVSHMEM_LIBFABRIC_ATOMICS";

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    let fabrics = [Fabric::Shm, Fabric::Rxm, Fabric::Shm2, Fabric::Rxm2];
    let shapes: &[(u32, u8)] = if full() { &[(2, 1), (4, 2), (8, 2)] } else { &[(2, 1), (4, 2)] };
    let scenarios = ["atomics", "signals"];
    let sizes = [fabrics.len(), shapes.len(), scenarios.len(), Layout::ALL.len()];
    for [fabric, shape, scenario, layout] in rows_of(sizes, 3) {
        let (fabric, (n_pes, rails)) = (fabrics[fabric], shapes[shape]);
        let (scenario, layout) = (scenarios[scenario], Layout::ALL[layout]);
        let name = format!("native_{scenario}_{}", place(fabric, n_pes, rails, layout));
        trials.push(trial(name, Some(fabric), move || {
            let (rounds, most) = if n_pes == 2 { (250, 4 << 20) } else { (150, 300_000) };
            let job = fabric.job(scenario, n_pes, rails, layout);
            natively(job.heap(96 << 20, 1 << 20).param("rounds", rounds).param("most", most))
        }));
    }
    for fabric in fabrics {
        let on = fabric.name();
        trials.push(trial(format!("native_order_{on}"), Some(fabric), move || {
            natively(fabric.job("order", 3, 2, Layout::V3a))?;
            natively(fabric.job("order", 3, 4, Layout::V6))
        }));
        trials.push(trial(format!("native_depth_1_{on}"), Some(fabric), move || {
            let depth = |job: JobSettings| job.debug("queue_depth", 1);
            natively(depth(fabric.job("atomics", 3, 2, Layout::V7)))?;
            let job = fabric.job("signals", 3, 2, Layout::V6).heap(64 << 20, 2 << 20);
            natively(depth(
                job.param("rounds", if full() { 300 } else { 100 }).param("most", 300_000),
            ))
        }));
        trials.push(trial(format!("native_is_not_the_default_{on}"), Some(fabric), move || {
            let report = fabric.job("connect", 2, 2, Layout::V7).run()?.check()?;
            says(&report.pes[1].text(), "atomics are executed by the target's proxy thread")
        }));
    }
    trials.push(trial("native_refused_by_tcp".to_owned(), Some(Fabric::Tcp2), || {
        let job = Fabric::Tcp2.job("connect", 2, 2, Layout::V7).env(SETTING, "native");
        let report = job.grace(Duration::from_secs(30)).run()?;
        all_say(&report, &["PE 0: rail 127.0.0.1: provider tcp does not offer FI_ATOMIC", "PE 1: "])
    }));
    trials.push(trial("native_and_target_do_not_connect".to_owned(), None, || {
        let report = job("connect", 3, Layout::V7)
            .env("NVSHMEM_LIBFABRIC_PROVIDER", "shm")
            .env("NVSHMEM_LIBFABRIC_DEVICES", "shm")
            .env(SETTING, "native")
            .env_of_pe(2, SETTING, "target")
            .grace(Duration::from_secs(30))
            .run()?;
        all_say(&report, &["PE 2 wants atomics \"target\", but PE 0 wants \"native\""])
    }));
    trials
}

/// Runs a job in which the provider has to execute the atomics.
fn natively(job: JobSettings) -> Result<(), Failed> {
    for pe in run(job.env(SETTING, "native"))?.pes {
        says(&pe.text(), "atomics are executed by the fabric")?;
    }
    Ok(())
}

fn says(text: &str, part: &str) -> Result<(), Failed> {
    if text.contains(part) { Ok(()) } else { Err(format!("no {part:?} in:\n{text}").into()) }
}
