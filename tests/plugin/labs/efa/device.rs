//! Memory of devices that NICs read and write by themselves: a libfabric with CUDA registers
//! dma-bufs of the driver's stand-in, by libfabric's own efa provider.
//!
//! Devices that do not keep the order of NICs' writes show them late: the last ones of each NIC are
//! seen by nobody before a flush, or a read by that NIC.

use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use nvshmem_abi::c;
use nvshmem_sim::{Amo, BoxError, Job, JobReport, JobSettings, Layout, Outcome, Pattern};
use test_support::pairwise::rows;

use super::{FABRICS, Lab, Library, PERSONAS, SCENARIOS, best, on_device, patient, says, trial};
use crate::fabric::job;
use crate::matrix::run;

/// Writes of each NIC that a device shows late.
const LATE: u32 = 64;

/// By what PEs get data to look at: a get and a quiet, or a put with a signal.
const BY: &str = "by";
const GET: u64 = 0;
const SIGNAL: u64 = 1;

/// Bytes of each piece of data: less than [`LATE`] packets of two NICs, of all lengths that go
/// different ways.
const LENGTHS: [u64; 4] = [8, 209, 4096, 300_000];

const HEAP: u64 = 96 << 20;
const CHUNK: u64 = 2 << 20;

/// What is registered, as the log says it.
const DIRECT: &str = "registered with 2 rail(s) by dma-buf";

pub(super) fn trials() -> Vec<Trial> {
    let sizes = [PERSONAS.len(), FABRICS.len(), SCENARIOS.len(), Layout::ALL.len()];
    let mut trials: Vec<Trial> = rows(sizes, 2)
        .into_iter()
        .map(|[persona, fabric, scenario, layout]| {
            let (persona, fabric) = (PERSONAS[persona], FABRICS[fabric]);
            let (scenario, layout) = (SCENARIOS[scenario], Layout::ALL[layout]);
            let on = format!("{persona}_{fabric}_{}", Library::Second.name());
            let name = format!("direct_{scenario}_{on}_2_pes_2_nics_layout_{layout}");
            trial(name, Library::Cuda, move |lab| {
                let job = patient(on_device(job(scenario, 2, layout))).heap(HEAP, CHUNK);
                let job = job.param("rounds", 40).param("most", 300_000).param("operations", 4_000);
                for pe in run(lab.on(job, persona, 2, fabric))?.pes {
                    let text = pe.text();
                    let wanted = if fabric == "auto" { best(&text, persona) } else { fabric };
                    says(&text, &format!("provider efa: fabric {wanted}: "))?;
                    nothing_else(&text)?;
                }
                Ok(())
            })
        })
        .collect();
    let strategies = [
        ("auto", "CUDA's flush"),
        ("flush", "CUDA's flush"),
        ("read", "a read through each rail"),
        ("write-read", "a write and a read through each rail"),
    ];
    for (fabric, (choice, words)) in
        ["efa-direct", "efa"].into_iter().flat_map(|fabric| strategies.map(|how| (fabric, how)))
    {
        let name = format!("late_writes_are_flushed_{}_{choice}", fabric.replace('-', "_"));
        trials.push(trial(name, Library::Cuda, move |lab| {
            let job = late(lab, fabric, GET).debug("consistency", choice);
            for pe in run(job)?.pes {
                says(&pe.text(), DIRECT)?;
                says(&pe.text(), &format!("{words}: done "))?;
            }
            Ok(())
        }));
    }
    // Without the flush, or with signals that nothing flushes before, the data is wrong.
    for (name, by, strategy) in [("not_flushed", GET, "none"), ("told_by_a_signal", SIGNAL, "auto")]
    {
        trials.push(trial(format!("late_writes_{name}_are_wrong"), Library::Cuda, move |lab| {
            let job = late(lab, "efa-direct", by).debug("consistency", strategy);
            let report = job.grace(Duration::from_secs(10)).run()?;
            wrong(&report)
        }));
    }
    trials.push(trial(
        String::from("memory_with_late_writes_is_staged"),
        Library::Cuda,
        move |lab| {
            let job = late(lab, "efa-direct", SIGNAL).env("NVSHMEM_LIBFABRIC_GPU_DIRECT", "auto");
            for pe in job.run()?.check()?.pes {
                says(&pe.text(), "the device does not keep NICs' writes before what follows them")?;
            }
            Ok(())
        },
    ));
    trials
}

/// A job that looks at data on devices which show NICs' writes late.
fn late(lab: &Lab, fabric: &str, by: u64) -> JobSettings {
    let job = on_device(job("looks", 2, Layout::V7)).heap(32 << 20, 2 << 20).param(BY, by);
    lab.on(job, "p5en", 2, fabric)
        .env("NVSHMEM_LIBFABRIC_GPU_DIRECT", "always")
        .env("FAKE_CUDA_WRITES_ORDERING", 0)
        .env("EFA_LAB_POSTED", LATE)
}

/// The NICs reach all of the heap, and libfabric has asked CUDA for no copy.
fn nothing_else(text: &str) -> Result<(), Failed> {
    let chunks = text.matches(DIRECT).count() as u64;
    let copies = text.matches("cudaMemcpy").count();
    if chunks < HEAP / CHUNK || copies > 0 {
        return Err(format!("{chunks} chunks are direct, {copies} copies by CUDA:\n{text}").into());
    }
    Ok(())
}

/// A PE has seen wrong bytes.
fn wrong(report: &JobReport) -> Result<(), Failed> {
    let is_wrong = |pe| matches!(report.outcome(pe), Outcome::Failed(why) if why.contains("byte"));
    if (0..2).any(is_wrong) { Ok(()) } else { Err(format!("all is right:\n{report}").into()) }
}

/// Each PE looks at data of the other one as soon as it may.
pub(crate) fn looks(job: &mut Job) -> Result<(), BoxError> {
    let (me, by) = (job.pe(), job.param::<u64>(BY)?);
    let host = job.init()?;
    let most = LENGTHS.into_iter().max().unwrap_or(0);
    let (from, to) = (host.alloc(most, 4096)?, host.alloc(most, 4096)?);
    let signal = host.alloc(8, 8)?;
    let pattern = |pe: u32, bytes: u64| Pattern::of(&[pe.into(), bytes]);
    host.local(signal, 8)?.store_release(0)?;
    for (round, bytes) in (1..).zip(LENGTHS) {
        host.local(from, bytes)?.fill(pattern(me, bytes), 0)?;
        host.local(to, bytes)?.set(0)?;
        host.barrier()?;
        if by == GET {
            host.proxy().get(1 - me, from, to, bytes)?;
            host.proxy().quiet()?;
        } else {
            let add = Amo::new(c::NVT_AMO_SIGNAL_ADD, 8, 1);
            host.proxy().put_signal(1 - me, to, from, bytes, signal, add)?;
            host.wait_until(|| Ok(host.local(signal, 8)?.load_acquire()? >= round))?;
        }
        host.local(to, bytes)?.verify(pattern(1 - me, bytes), 0)?;
        host.proxy().quiet()?;
        host.barrier()?;
    }
    host.finalize()?;
    Ok(())
}
