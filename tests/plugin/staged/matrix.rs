//! The suites of host memory, on memory of a device.

use libtest_mimic::{Failed, Trial};
use nvshmem_sim::{JobSettings, Layout, MemoryKind};
use test_support::pairwise::rows_of;

use super::device::{Needs, job, staged};
use crate::fabric::{Fabric, says};
use crate::matrix::{Setting, place, run, signal_engine, with, words};
use nvshmem_sim::traffic::resident::RESIDENT;

const FABRICS: [Fabric; 3] = [Fabric::Shm, Fabric::Tcp2, Fabric::Rxm];

/// What a heap is made of; the two that NVSHMEM has first.
const KINDS: [MemoryKind; 4] =
    [MemoryKind::Device, MemoryKind::DeviceVmm, MemoryKind::Managed, MemoryKind::DeviceVmmPieces];

/// PEs and rails.
const SHAPES: [(u32, u8); 4] = [(2, 2), (2, 1), (2, 4), (4, 2)];

const SETTINGS: [Setting; 6] = [
    None,
    Some(("STAGING_CHUNK", "4K")),
    Some(("STAGING_CHUNK", "4M")),
    Some(("STAGING_DEPTH", "1")),
    Some(("queue_depth", "1")),
    Some(("progress", "manual")),
];

const ENGINES: [&str; 4] = ["auto", "chained", "eager", "counted"];

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    let layouts = Layout::ALL;
    // How memory is staged knows nothing of layouts: these go round, and settings too, which need
    // not meet each of them.
    let settings = SETTINGS.into_iter().cycle();
    let sizes = [FABRICS.len(), KINDS.len(), SHAPES.len(), 2, layouts.len()];
    for ([fabric, kind, shape, kernel, layout], setting) in
        rows_of(sizes, 4).into_iter().zip(settings.clone())
    {
        let (fabric, kind, (n_pes, rails)) = (FABRICS[fabric], KINDS[kind], SHAPES[shape]);
        let (layout, kernel) = (layouts[layout], kernel == 1);
        let under = if kernel { "_under_a_kernel" } else { "" };
        let at = place(fabric, n_pes, rails, layout);
        let name = format!("{kind}::operations_{at}{}{under}", words(setting));
        trials.push(staged(name, fabric, needs(n_pes), move || {
            let job = with(job(fabric, kind, "operations", n_pes, rails, layout), setting);
            let pieces = kind == MemoryKind::DeviceVmmPieces;
            let job = if pieces { job.heap_grows() } else { job };
            done(if kernel { job.param(RESIDENT, true) } else { job })
        }));
    }
    let sizes = [FABRICS.len(), 2, SHAPES.len(), ENGINES.len(), layouts.len()];
    for ([fabric, kind, shape, engine, layout], setting) in
        rows_of(sizes, 4).into_iter().zip(settings)
    {
        let (fabric, kind, (n_pes, rails)) = (FABRICS[fabric], KINDS[kind], SHAPES[shape]);
        let (layout, engine) = (layouts[layout], ENGINES[engine]);
        let at = place(fabric, n_pes, rails, layout);
        let name = format!("{kind}::signals_{at}_{engine}{}", words(setting));
        trials.push(staged(name, fabric, needs(n_pes), move || {
            let most = if n_pes == 2 && setting.is_none() { 4 << 20 } else { 300_000 };
            let job = job(fabric, kind, "signals", n_pes, rails, layout);
            let job = with(signal_engine(job, engine), setting);
            // A place for each transfer under way, at either end.
            done(job.heap(96 << 20, 2 << 20).param("rounds", 60).param("most", most))
        }));
    }
    let scenarios = ["atomics", "order"];
    for [fabric, kind, shape, scenario, layout] in
        rows_of([FABRICS.len(), 2, SHAPES.len(), scenarios.len(), layouts.len()], 4)
    {
        let (fabric, kind, (n_pes, rails)) = (FABRICS[fabric], KINDS[kind], SHAPES[shape]);
        let (scenario, layout) = (scenarios[scenario], layouts[layout]);
        let name = format!("{kind}::{scenario}_{}", place(fabric, n_pes, rails, layout));
        trials.push(staged(name, fabric, needs(n_pes), move || {
            done(job(fabric, kind, scenario, n_pes, rails, layout))
        }));
    }
    for fabric in FABRICS {
        let on = fabric.name();
        trials.push(staged(
            format!("device::storm_{on}_4_pes"),
            fabric,
            Needs::StandIn,
            move || {
                let job = job(fabric, MemoryKind::Device, "storm", 4, 2, Layout::V7);
                done(job.param("operations", 8_000))
            },
        ));
        trials.push(staged(format!("device::storm_{on}_2_pes"), fabric, Needs::Any, move || {
            let job = job(fabric, MemoryKind::Device, "storm", 2, 2, Layout::V7);
            done(job.param("operations", 4_000).debug("queue_depth", 1))
        }));
        trials.push(staged(format!("device::cycles_{on}"), fabric, Needs::Any, move || {
            // The second layout's host unloads the plugin each time.
            done(job(fabric, MemoryKind::Device, "cycles", 2, 2, Layout::V7))?;
            done(job(fabric, MemoryKind::Device, "cycles", 2, 2, Layout::V5))
        }));
        trials.push(staged(
            format!("device::slow_copies_{on}"),
            fabric,
            Needs::StandIn,
            move || {
                let slow = |job: JobSettings| done(job.env("FAKE_CUDA_COPY_NS", 200_000));
                let signals = job(fabric, MemoryKind::Device, "signals", 2, 2, Layout::V7);
                slow(signals.param("rounds", 60).param("most", 1 << 20))?;
                slow(job(fabric, MemoryKind::Device, "atomics", 2, 1, Layout::V5))
            },
        ));
    }
    trials
}

/// More PEs than two share a machine's GPU badly.
fn needs(n_pes: u32) -> Needs {
    if n_pes > 2 { Needs::StandIn } else { Needs::Any }
}

/// Runs a job that is to succeed, cleanly, and whose PEs with device memory say that it is staged.
pub(crate) fn done(job: JobSettings) -> Result<(), Failed> {
    let memory = |pe| job.memory_of_pe.get(&pe).copied().unwrap_or(job.memory);
    let staged: Vec<u32> = (0..job.n_pes).filter(|pe| memory(*pe) != MemoryKind::Host).collect();
    let report = run(job)?;
    for pe in staged {
        let text = report.pes[pe as usize].text();
        says(&text, "memory of devices is staged")?;
    }
    Ok(())
}
