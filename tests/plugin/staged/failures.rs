//! A device that fails, on either side: an error that names the peer and the reason, at whoever
//! would else believe that its data is there; no hang; and the transport is taken down all the
//! same.

use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use nvshmem_abi::c;
use nvshmem_sim::{Amo, BoxError, Job, JobReport, Layout, MemoryKind, Outcome, Pattern};

use super::device::{Needs, job, staged};
use super::limits::OWN_PINNED;
use crate::fabric::Fabric;

const LEN: u64 = 3 << 20;

const RESULT: u32 = 719;
const NAME: &str = "CUDA_ERROR_LAUNCH_FAILED";

/// The fabric, the PE whose device fails, and what PE 0 does: each its own way to fail. The engine's
/// tests have every other one.
const CASES: [(Fabric, u32, &str); 3] = [
    // A copy out of PE 0's memory.
    (Fabric::Rxm, 0, "put"),
    // The second copy into PE 1's memory.
    (Fabric::Shm, 1, "put_signal"),
    // A device that is gone: a signal is of one piece, and its word is the target's own.
    (Fabric::Tcp2, 1, "signal"),
];

pub(crate) fn trials() -> Vec<Trial> {
    let of_case = |(fabric, at, op): (Fabric, u32, &'static str)| {
        let name = format!("failures::{op}_of_pe_{at}_{}", fabric.name());
        staged(name, fabric, Needs::StandIn, move || {
            let job = job(fabric, MemoryKind::Device, "failing", 2, 2, Layout::V7)
                .param("at", at)
                .param("op", op)
                // A mapped word may outlive its device.
                .debug("words", "stream")
                .env("NVSHMEM_LIBFABRIC_WARN_SECONDS", 1)
                .env("NVSHMEM_LIBFABRIC_TIMEOUT_SECONDS", 4);
            judge(&job.grace(Duration::from_secs(120)).run()?, at, op)
        })
    };
    let name = String::from("failures::out_of_pinned_memory_shm");
    let pinned = staged(name, Fabric::Shm, Needs::StandIn, out_of_pinned_memory);
    CASES.map(of_case).into_iter().chain([pinned]).collect()
}

fn out_of_pinned_memory() -> Result<(), Failed> {
    let report = job(Fabric::Shm, MemoryKind::Device, "connect", 2, 2, Layout::V7)
        .env_of_pe(1, "FAKE_CUDA_PINNED_LIMIT", OWN_PINNED + (64 << 10))
        .grace(Duration::from_secs(120))
        .run()?;
    if report.pes.iter().any(|pe| pe.outcome == Outcome::Finished) {
        return Err(format!("it has connected:\n{report}").into());
    }
    said(&report, 0, &["PE 1"])?;
    said(&report, 1, &["ERROR", "CUDA_ERROR_OUT_OF_MEMORY"])
}

fn judge(report: &JobReport, at: u32, op: &str) -> Result<(), Failed> {
    for pe in &report.pes {
        if pe.outcome != Outcome::Finished {
            return Err(format!("PE {} {}:\n{report}", pe.pe, pe.outcome).into());
        }
    }
    match report.pes[0].value("result") {
        Some(text) if text != "done" => {}
        other => return Err(format!("PE 0's operation and quiet: {other:?}:\n{report}").into()),
    }
    said(report, 0, &["ERROR", "PE 1"])?;
    if op == "signal" {
        // The target has the reason, and the sender has it from there, before any deadline.
        said(report, 0, &["ERROR", "PE 1", NAME])?;
    }
    said(report, at as usize, &["ERROR", NAME])
}

fn said(report: &JobReport, pe: usize, parts: &[&str]) -> Result<(), Failed> {
    let text = report.pes[pe].text();
    if text.lines().any(|line| parts.iter().all(|part| line.contains(part))) {
        return Ok(());
    }
    Err(format!("PE {pe} did not say {parts:?} in one line:\n{report}").into())
}

pub(crate) fn scenario(job: &mut Job) -> Result<(), BoxError> {
    let me = job.pe();
    let op: String = job.param("op")?;
    let host = job.init()?;
    let (data, local) = (host.alloc(LEN, 4096)?, host.alloc(LEN, 4096)?);
    let signal = host.alloc(8, 8)?;
    host.local(local, LEN)?.fill(Pattern::new(me.into()), 0)?;
    host.local(signal, 8)?.store_release(0)?;
    host.barrier()?;
    if me == job.param::<u32>("at")? {
        let faults = host.faults().ok_or("no device")?;
        match op.as_str() {
            "put" => faults.fail_copy(0, RESULT)?,
            "put_signal" => faults.fail_copy(1, RESULT)?,
            _ => faults.lose(RESULT)?,
        }
    }
    job.bootstrap().barrier()?;
    if me == 0 {
        let amo = Amo::new(c::NVT_AMO_SIGNAL_SET, 8, 1);
        let ended = host.proxy().run(move |ops| {
            match op.as_str() {
                "put" => ops.put(1, data, local, LEN)?,
                "put_signal" => ops.put_signal(1, data, local, LEN, signal, amo)?,
                _ => ops.amo(1, signal, amo)?,
            }
            ops.quiet_pe(1)
        });
        let text = match ended {
            Ok(Ok(())) => "done".to_owned(),
            Ok(Err(error)) | Err(error) => error.to_string(),
        };
        job.report("result", text)?;
    }
    // PE 1's proxy thread may have failed by now, and then it does not come here in order.
    drop(job.bootstrap().barrier());
    Ok(host.tear_down()?)
}
