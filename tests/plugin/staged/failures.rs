//! A target whose device is gone: an error that names the PE and the reason, at whoever would else
//! believe that its data is there; no hang; and the transport is taken down all the same.
//!
//! `tests/engine` and `tests/cuda` have every call and copy that fails, at either end.

use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use nvshmem_abi::c;
use nvshmem_sim::{Amo, BoxError, Job, Layout, MemoryKind, Outcome};

use super::device::{Needs, job, staged};
use crate::fabric::Fabric;

const RESULT: u32 = 719;
const NAME: &str = "CUDA_ERROR_LAUNCH_FAILED";

pub(crate) fn trials() -> Vec<Trial> {
    let of = |fabric: Fabric| {
        let name = format!("failures::device_of_target_is_lost_{}", fabric.name());
        staged(name, fabric, Needs::StandIn, move || lost(fabric))
    };
    [Fabric::Rxm, Fabric::Shm].map(of).into()
}

fn lost(fabric: Fabric) -> Result<(), Failed> {
    let report = job(fabric, MemoryKind::Device, "failing", 2, 2, Layout::V7)
        // A mapped word may outlive its device.
        .debug("words", "stream")
        .env("NVSHMEM_LIBFABRIC_WARN_SECONDS", 1)
        .env("NVSHMEM_LIBFABRIC_TIMEOUT_SECONDS", 4)
        .grace(Duration::from_secs(120))
        .run()?;
    for (pe, parts) in report.pes.iter().zip([&["ERROR", "PE 1", NAME][..], &["ERROR", NAME]]) {
        let text = pe.text();
        // The target has the reason, and the sender has it from there, before any deadline.
        let said = text.lines().any(|line| parts.iter().all(|part| line.contains(part)));
        if pe.outcome != Outcome::Finished || !said {
            let (number, outcome) = (pe.pe, &pe.outcome);
            return Err(format!("PE {number} {outcome}, {parts:?} {said}:\n{report}").into());
        }
    }
    match report.pes[0].value("result") {
        Some(text) if text != "done" => Ok(()),
        other => Err(format!("PE 0's signal and quiet: {other:?}:\n{report}").into()),
    }
}

pub(crate) fn scenario(job: &mut Job) -> Result<(), BoxError> {
    let host = job.init()?;
    let signal = host.alloc(8, 8)?;
    host.local(signal, 8)?.store_release(0)?;
    host.barrier()?;
    if job.pe() == 1 {
        test_jobs::memory::device().lose(1, RESULT);
    }
    job.bootstrap().barrier()?;
    if job.pe() == 0 {
        // A signal is of one piece, and its word is the target's own.
        let ended = host.proxy().run(move |ops| {
            ops.amo(1, signal, Amo::new(c::NVT_AMO_SIGNAL_SET, 8, 1))?;
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
