//! A device that fails, on either side: an error that names the peer and the reason, at whoever
//! would else believe that its data is there; no hang; and the transport is taken down all the
//! same.

use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use nvshmem_abi::c;
use nvshmem_sim::{
    Amo, BoxError, Job, JobReport, Layout, MemoryKind, Ops, Outcome, Pattern, SymAddr,
};

use super::device::{Needs, job, staged};
use crate::fabric::Fabric;

const LEN: u64 = 3 << 20;

const RESULT: u32 = 719;
const NAME: &str = "CUDA_ERROR_LAUNCH_FAILED";

const OWN_PINNED: u64 = 2 << 20;

fn of_failure(
    fabric: Fabric,
    (at, side): (u32, &'static str),
    how: &'static str,
    op: &'static str,
) -> Trial {
    // A mapped word may outlive its device.
    let words = if op == "signal" { "stream" } else { "auto" };
    let name = format!("failures::{side}_{how}_{op}_{}", fabric.name());
    staged(name, fabric, Needs::StandIn, move || {
        let report = job(fabric, MemoryKind::Device, "failing", 2, 2, Layout::V7)
            .param("at", at)
            .param("how", how)
            .param("op", op)
            .debug("words", words)
            .env("NVSHMEM_LIBFABRIC_WARN_SECONDS", 1)
            .env("NVSHMEM_LIBFABRIC_TIMEOUT_SECONDS", 4)
            .grace(Duration::from_secs(120))
            .run()?;
        judge(&report, at, op)
    })
}

pub(crate) fn trials() -> Vec<Trial> {
    let (initiator, target) = ((0, "initiator"), (1, "target"));
    vec![
        of_failure(Fabric::Rxm, initiator, "copy", "put"),
        of_failure(Fabric::Shm, target, "late_copy", "put_signal"),
        of_failure(Fabric::Tcp2, target, "copy", "get"),
        // A signal is of one piece, and its word is the target's own.
        of_failure(Fabric::Rxm, target, "lost", "signal"),
        staged(
            String::from("failures::out_of_pinned_memory_shm"),
            Fabric::Shm,
            Needs::StandIn,
            out_of_pinned_memory,
        ),
    ]
}

fn out_of_pinned_memory() -> Result<(), Failed> {
    let job = job(Fabric::Shm, MemoryKind::Device, "connect_with_a_device", 2, 2, Layout::V7);
    let report = job
        .env_of_pe(1, "FAKE_CUDA_PINNED_LIMIT", OWN_PINNED + (64 << 10))
        .grace(Duration::from_secs(120))
        .run()?;
    for (pe, part) in [(1, "CUDA_ERROR_OUT_OF_MEMORY"), (0, "PE 1")] {
        match report.outcome(pe) {
            Outcome::Failed(_) | Outcome::Stopped(_) => {}
            other => return Err(format!("PE {pe} {other}:\n{report}").into()),
        }
        if !format!("{report}").contains(part) {
            return Err(format!("{part:?} is not said:\n{report}").into());
        }
    }
    said(&report, 1, &["ERROR", "CUDA_ERROR_OUT_OF_MEMORY"])
}

fn judge(report: &JobReport, at: u32, op: &str) -> Result<(), Failed> {
    for pe in &report.pes {
        if pe.outcome != Outcome::Finished {
            return Err(format!("PE {} {}:\n{report}", pe.pe, pe.outcome).into());
        }
        if pe.value("torn_down").is_none() {
            return Err(format!("PE {} was not taken down:\n{report}", pe.pe).into());
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
    let how: String = job.param("how")?;
    let op: String = job.param("op")?;
    let host = job.init()?;
    let (data, signal) = (host.alloc(LEN, 4096)?, host.alloc(8, 8)?);
    let local = host.alloc(LEN, 4096)?;
    host.local(local, LEN)?.fill(Pattern::new(me.into()), 0)?;
    host.local(data, LEN)?.set(0)?;
    host.local(signal, 8)?.store_release(0)?;
    host.barrier()?;
    if me == job.param::<u32>("at")? {
        let faults = host.faults().ok_or("no device")?;
        match how.as_str() {
            "copy" => faults.fail_copy(0, RESULT)?,
            "late_copy" => faults.fail_copy(1, RESULT)?,
            "lost" => faults.lose(RESULT)?,
            _ => return Err(format!("no failure is named {how}").into()),
        }
    }
    job.bootstrap().barrier()?;
    if me == 0 {
        let ended = host.proxy().run(move |ops| attempt(ops, &op, data, local, signal));
        let text = match ended {
            Ok(Ok(())) => "done".to_owned(),
            Ok(Err(error)) | Err(error) => error.to_string(),
        };
        job.report("result", text)?;
    }
    // PE 1's proxy thread may have failed by now, and then it does not come here in order.
    let together = job.bootstrap().barrier();
    drop(together);
    host.tear_down()?;
    job.report("torn_down", true)?;
    Ok(())
}

fn attempt(
    ops: &Ops,
    op: &str,
    data: SymAddr,
    local: SymAddr,
    signal: SymAddr,
) -> nvshmem_sim::Result<()> {
    match op {
        "put" => ops.put(1, data, local, LEN)?,
        "get" => ops.get(1, data, local, LEN)?,
        "signal" => ops.amo(1, signal, Amo::new(c::NVT_AMO_SIGNAL_SET, 8, 1))?,
        _ => {
            let amo = Amo::new(c::NVT_AMO_SIGNAL_SET, 8, 1);
            ops.put_signal(1, data, local, LEN, signal, amo)?;
        }
    }
    ops.quiet_pe(1)
}

pub(crate) fn connect(job: &mut Job) -> Result<(), BoxError> {
    job.init()?.finalize()?;
    Ok(())
}
