//! Heaps and buffers of device memory, on a stand-in for CUDA's driver whose memory the CPU cannot touch.
//! The test plugin moves no such memory, so each PE looks at its own.

use libtest_mimic::Trial;
use nvshmem_sim::{
    BoxError, Host, Job, JobSettings, Layout, MemoryKind, Outcome, Pattern, SymAddr, UserMapped,
};

use crate::traffic::run;
use crate::{cuda_dir, job};

const MIB: u64 = 1 << 20;

const DEVICE_KINDS: [MemoryKind; 4] =
    [MemoryKind::Device, MemoryKind::DeviceVmm, MemoryKind::DeviceVmmPieces, MemoryKind::Managed];

fn device_job(scenario: &str, kind: MemoryKind) -> JobSettings {
    let job = job(scenario, 2, Layout::V7).memory(kind).cuda_driver(cuda_dir());
    job.heap(16 * MIB, if kind == MemoryKind::DeviceVmmPieces { 8 * MIB } else { 2 * MIB })
}

pub(crate) fn add_trials(trials: &mut Vec<Trial>) {
    let mut add = |name: String, run: Box<dyn FnOnce() -> _ + Send>| {
        trials.push(Trial::test(format!("device::{name}"), run));
    };
    for kind in DEVICE_KINDS {
        add(
            format!("memory_of_kind_{kind}"),
            Box::new(move || {
                run(device_job("device", kind))?;
                run(device_job("device", kind).heap_grows())
            }),
        );
        add(
            format!("a_failed_copy_is_an_error_{kind}"),
            Box::new(move || run(device_job("device-broken", kind))),
        );
    }
    for mapped in [UserMapped::Device, UserMapped::HostNuma] {
        add(
            format!("users_buffer_in_the_heap_{mapped:?}"),
            Box::new(move || run(device_job("device", MemoryKind::DeviceVmm).user_mapped(mapped))),
        );
    }
    add(
        "one_pe_of_host_memory".into(),
        Box::new(
            || run(device_job("device", MemoryKind::Device).memory_of_pe(1, MemoryKind::Host)),
        ),
    );
    for kind in [MemoryKind::Device, MemoryKind::DeviceVmm] {
        add(
            format!("the_cpu_cannot_touch_{kind}"),
            Box::new(move || {
                let report = device_job("device-touched", kind).run()?;
                match report.outcome(0) {
                    Outcome::Signal(libc::SIGSEGV | libc::SIGBUS) => Ok(()),
                    other => Err(format!("PE 0 {other}:\n{report}").into()),
                }
            }),
        );
    }
    add(
        "a_driver_without_devices_is_named".into(),
        Box::new(|| {
            let report =
                device_job("device", MemoryKind::Device).env("FAKE_CUDA_DEVICES", 0).run()?;
            match report.outcome(0) {
                Outcome::Failed(text) if text.contains("the driver has no device") => Ok(()),
                other => Err(format!("PE 0 {other}:\n{report}").into()),
            }
        }),
    );
}

pub(crate) fn scenario(job: &mut Job) -> Result<(), BoxError> {
    let host = job.init()?;
    let is_host = host.memory() == MemoryKind::Host;
    if host.device().is_some() == is_host {
        return Err(format!("{} memory, device {:?}", host.memory(), host.device()).into());
    }
    // Starts and ends at odd places, and crosses the chunks' borders.
    let all = host.alloc(16 * MIB, 4096)?;
    check(&host, all.plus(3), 16 * MIB - 12)?;
    let word = host.local(all.plus(8), 8)?;
    word.store_release(0x0123_4567_89ab_cdef)?;
    if word.load_acquire()? != 0x0123_4567_89ab_cdef || word.to_vec()?[0] != 0xef {
        return Err("a word is not what was stored".into());
    }
    let own = host.memory();
    let kinds = [MemoryKind::Host, if is_host { own } else { MemoryKind::Device }];
    for kind in kinds {
        for buffer in [host.register_in(kind, 10_000, 13)?, host.unregistered_in(kind, 10_000)?] {
            let local = host.local(buffer.at(7), 9_000)?;
            local.fill(Pattern::new(5), 1)?;
            local.verify(Pattern::new(5), 1)?;
            host.unregister(buffer)?;
        }
    }
    if let Some((at, by_user)) = host.user_mapped()? {
        // The same memory by two addresses.
        host.local(at, by_user.len())?.fill(Pattern::new(9), 0)?;
        by_user.verify(Pattern::new(9), 0)?;
        by_user.part(99, 1)?.set(0)?;
        if host.local(at.plus(99), 1)?.to_vec()? != [0] {
            return Err("the two addresses are not of the same memory".into());
        }
    }
    if !is_host {
        let kernel = host.spin()?;
        // Copies pass it.
        check(&host, all.plus(1), 3 * MIB)?;
        kernel.stop()?;
    }
    host.finalize()?;
    Ok(())
}

fn check(host: &Host<'_>, at: SymAddr, len: u64) -> Result<(), BoxError> {
    let part = host.local(at, len)?;
    part.fill(Pattern::new(1), 77)?;
    part.verify(Pattern::new(1), 77)?;
    part.part(len / 2, 1)?.set(!Pattern::new(1).byte(77 + len / 2))?;
    match part.verify(Pattern::new(1), 77) {
        Err(nvshmem_sim::Error::Mismatch(found)) if (found.offset, found.wrong) == (len / 2, 1) => {
            Ok(())
        }
        other => Err(format!("a wrong byte was not found: {other:?}").into()),
    }
}

pub(crate) fn touched(job: &mut Job) -> Result<(), BoxError> {
    let host = job.init()?;
    let at = host.local(SymAddr(4096), 8)?;
    // SAFETY: it is not: that is what is shown.
    let byte = unsafe { at.as_ptr().read_volatile() };
    Err(format!("the CPU has read {byte}").into())
}

pub(crate) fn broken(job: &mut Job) -> Result<(), BoxError> {
    let host = job.init()?;
    let at = host.alloc(64, 8)?;
    let faults = host.faults().ok_or("no device")?;
    let before = faults.copies()?;
    faults.fail_copy(1, 719)?;
    host.local(at, 64)?.set(1)?;
    if faults.copies()? != before + 1 {
        return Err("copies are not counted".into());
    }
    match host.local(at, 64)?.to_vec() {
        Err(error) if error.to_string().contains("CUDA_ERROR_LAUNCH_FAILED (719)") => {}
        other => return Err(format!("a copy that fails gave {other:?}").into()),
    }
    host.finalize()?;
    Ok(())
}
