//! Heaps of device memory, on a stand-in for CUDA's driver: a plugin whose CPU touches them dies.
//! The test plugin moves no such memory, so each PE looks at its own.

use libtest_mimic::Trial;
use nvshmem_sim::{BoxError, Error, Job, JobSettings, MemoryKind, Outcome, Pattern};
use test_support::built::fake_cuda_dir;

use crate::{ends, job, right, trial};

const MIB: u64 = 1 << 20;

fn device_job(kind: MemoryKind) -> JobSettings {
    let job = job("device", 2).memory(kind).cuda_driver(fake_cuda_dir());
    job.heap(16 * MIB, if kind == MemoryKind::DeviceVmmPieces { 8 * MIB } else { 2 * MIB })
}

pub(crate) fn add_trials(trials: &mut Vec<Trial>) {
    use MemoryKind::{Device, DeviceVmm, DeviceVmmPieces, Managed};
    for kind in [Device, DeviceVmm, DeviceVmmPieces, Managed] {
        let name = format!("leaves {kind} memory alone");
        trials.push(trial(&name, move || right(device_job(kind))));
    }
    for kind in [Device, DeviceVmm] {
        trials.push(trial(&format!("touches {kind} memory"), move || {
            let job = device_job(kind).env("TEST_PLUGIN_WRONG", "touches memory");
            ends(job, &Outcome::Signal(libc::SIGSEGV))
        }));
    }
}

pub(crate) fn scenario(job: &mut Job) -> Result<(), BoxError> {
    let host = job.init()?;
    // Begins and ends at odd places, and crosses the chunks' borders.
    let len = 16 * MIB - 12;
    let part = host.local(host.alloc(16 * MIB, 4096)?.plus(3), len)?;
    part.fill(Pattern::new(1), 77)?;
    part.verify(Pattern::new(1), 77)?;
    part.part(len / 2, 1)?.set(!Pattern::new(1).byte(77 + len / 2))?;
    match part.verify(Pattern::new(1), 77) {
        Err(Error::Mismatch(found)) if (found.offset, found.wrong) == (len / 2, 1) => {}
        other => return Err(format!("a wrong byte was not found: {other:?}").into()),
    }
    host.finalize()?;
    Ok(())
}
