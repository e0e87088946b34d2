//! Memory of devices that NICs read and write by themselves: a libfabric with CUDA registers
//! dma-bufs of the driver's stand-in, by libfabric's own efa provider.
//!
//! Devices that do not keep the order of NICs' writes show them late: the last ones of each NIC are
//! seen by nobody before a flush, or a read by that NIC.

use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use nvshmem_sim::{BoxError, Job, JobSettings, Outcome, Pattern};

use super::{FABRICS, Lab, Library, PERSONAS, best, on_device, trial};
use crate::job::{SCENARIOS, cases, job, run, says};

const LATE: u32 = 64;

const LENGTHS: [u64; 4] = [8, 209, 4096, 300_000];

const HEAP: u64 = 96 << 20;
const CHUNK: u64 = 2 << 20;

const DIRECT: &str = "registered with 2 rail(s) by dma-buf";

pub(super) fn trials() -> Vec<Trial> {
    let sizes = [PERSONAS.len(), FABRICS.len(), SCENARIOS.len()];
    let mut trials: Vec<Trial> = cases(sizes)
        .map(|[persona, fabric, scenario]| {
            let (persona, fabric) = (PERSONAS[persona], FABRICS[fabric]);
            let scenario = SCENARIOS[scenario];
            trial(format!("direct_{scenario}_{persona}_{fabric}"), Library::Cuda, move |lab| {
                let job = on_device(job(scenario, 2)).heap(HEAP, CHUNK);
                let job = job.param("rounds", 40).param("most", 300_000).param("operations", 4_000);
                for pe in run(lab.on(job, persona, 2, fabric))?.pes {
                    let text = pe.text();
                    let wanted = if fabric == "auto" { best(&text, persona) } else { fabric };
                    says(&text, &format!("provider efa: fabric {wanted}: "))?;
                    is_direct(&text)?;
                }
                Ok(())
            })
        })
        .collect();
    for (fabric, choice) in ["efa-direct", "efa"]
        .into_iter()
        .flat_map(|fabric| ["auto", "flush"].map(|how| (fabric, how)))
    {
        let name = format!("late_writes_are_flushed_{}_{choice}", fabric.replace('-', "_"));
        trials.push(trial(name, Library::Cuda, move |lab| {
            let job = late(lab, fabric).debug("consistency", choice);
            for pe in run(job)?.pes {
                says(&pe.text(), DIRECT)?;
                says(&pe.text(), "CUDA's flush: done ")?;
            }
            Ok(())
        }));
    }
    // What the flushes are for.
    trials.push(trial("unflushed_late_writes_are_wrong", Library::Cuda, |lab| {
        let job = late(lab, "efa-direct").debug("consistency", "none");
        let report = job.grace(Duration::from_secs(10)).run()?;
        let is_wrong =
            |pe| matches!(&report.pes[pe as usize].outcome, Outcome::Failed(why) if why.contains("byte"));
        if (0..2).any(is_wrong) { Ok(()) } else { Err(format!("all is right:\n{report}").into()) }
    }));
    trials.push(trial("memory_with_late_writes_is_staged", Library::Cuda, move |lab| {
        let job = late(lab, "efa-direct").env("NVSHMEM_LIBFABRIC_GPU_DIRECT", "auto");
        for pe in job.run()?.check()?.pes {
            says(&pe.text(), "the device does not keep NICs' writes before what follows them")?;
        }
        Ok(())
    }));
    trials
}

fn late(lab: &Lab, fabric: &str) -> JobSettings {
    let job = on_device(job("looks", 2)).heap(32 << 20, 2 << 20);
    lab.on(job, "p5en", 2, fabric)
        .env("NVSHMEM_LIBFABRIC_GPU_DIRECT", "always")
        .env("FAKE_CUDA_WRITES_ORDERING", 0)
        .env("EFA_LAB_POSTED", LATE)
}

fn is_direct(text: &str) -> Result<(), Failed> {
    let chunks = text.matches(DIRECT).count() as u64;
    let copies = text.matches("cudaMemcpy").count();
    if chunks < HEAP / CHUNK || copies > 0 {
        return Err(format!("{chunks} chunks are direct, {copies} copies by CUDA:\n{text}").into());
    }
    Ok(())
}

pub(crate) fn looks(job: &mut Job) -> Result<(), BoxError> {
    let me = job.pe;
    let host = job.init()?;
    let most = LENGTHS.into_iter().max().unwrap_or(0);
    let (from, to) = (host.alloc(most, 4096)?, host.alloc(most, 4096)?);
    let pattern = |pe: u32, bytes: u64| Pattern::of(&[pe.into(), bytes]);
    for bytes in LENGTHS {
        host.local(from, bytes)?.fill(pattern(me, bytes), 0)?;
        host.local(to, bytes)?.set(0)?;
        host.barrier()?;
        host.proxy.get(1 - me, from, to, bytes)?;
        host.proxy.quiet()?;
        host.local(to, bytes)?.verify(pattern(1 - me, bytes), 0)?;
        host.proxy.quiet()?;
        host.barrier()?;
    }
    host.finalize()?;
    Ok(())
}
