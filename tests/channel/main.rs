//! The device channel end to end: the device API on CPU threads, its proxy thread, real rails, and
//! peers in processes of their own.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod device;
mod failures;
mod launch;
mod life;
mod memory;
mod traffic;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};
use nvshmem_transport_libfabric::channel::kernels;
use test_support::needs::{self, Need};

use launch::{Fabric, Job, pe_entry};

fn main() -> ExitCode {
    pe_entry(&[
        ("traffic", traffic::traffic),
        ("quiet", traffic::quiet_beside_others),
        ("stop", failures::stop),
        ("late", failures::late_pushes),
        ("sizes", failures::sizes),
        ("bad", failures::bad_requests),
        ("dead", failures::dead_peer),
        ("memory_in_use", failures::memory_in_use),
        ("memory_back", failures::memory_back),
        ("no_driver", device::no_driver),
        ("refused", device::refused),
        ("lives", device::lives),
        ("words", device::words),
        ("beside", device::beside),
        ("near_kernels", device::near_kernels),
        ("own_context", device::own_context),
        ("stuck", life::stuck),
        ("stopped", life::stopped),
        ("unwinding", life::unwinding),
        ("cycles", life::cycles),
    ]);
    let mut arguments = Arguments::from_args();
    // Each job is several busy processes already.
    arguments.test_threads.get_or_insert(1);
    let mut trials: Vec<Trial> = Vec::new();
    for (fabric, n_pes) in [(Fabric::Shm, 3), (Fabric::Rxm, 2), (Fabric::Tcp2, 3), (Fabric::Shm, 1)]
    {
        trials.push(Job::new("traffic", fabric, n_pes).trial());
    }
    for fabric in [Fabric::Shm, Fabric::Rxm, Fabric::Tcp2] {
        trials.push(Job::new("quiet", fabric, 2).trial());
        trials.push(Job::new("stop", fabric, 2).trial());
    }
    for (memory, fabric, n_pes) in [
        ("device", Fabric::Shm, 2),
        ("own", Fabric::Rxm, 2),
        ("mixed", Fabric::Tcp2, 3),
        ("mixed", Fabric::Shm, 3),
        ("device", Fabric::Rxm, 1),
        ("device", Fabric::Cxi, 2),
    ] {
        trials.push(Job::new("traffic", fabric, n_pes).on(memory).trial());
        trials.push(Job::new("quiet", fabric, n_pes).on(memory).trial());
    }
    trials.push(Job::new("no_driver", Fabric::Shm, 1).trial());
    trials.push(Job::new("refused", Fabric::Rxm, 2).on("device").trial());
    trials.push(Job::new("own_context", Fabric::Shm, 1).on("device").trial());
    trials.push(Job::new("lives", Fabric::Shm, 2).on("device").trial());
    for (way, fabric) in [
        ("words=gdrcopy", Fabric::Shm),
        ("words=gdrcopy", Fabric::Rxm),
        ("words=stream", Fabric::Tcp2),
    ] {
        let env = vec![("NVSHMEM_LIBFABRIC_DEBUG", way)];
        trials.push(Job { env, ..Job::new("near_kernels", fabric, 2).on("device") }.trial());
    }
    let plain = vec![("FAKE_CUDA_VMM", "0")];
    trials.push(Job { env: plain, ..Job::new("lives", Fabric::Rxm, 2).on("device") }.trial());
    for (memory, fabric, n_pes) in [
        ("device", Fabric::Cxi, 2),
        ("own", Fabric::Cxi, 1),
        ("mixed", Fabric::Rxm, 3),
        ("device", Fabric::Shm, 2),
    ] {
        trials.push(Job::new("words", fabric, n_pes).on(memory).trial());
    }
    for (fabric, n_pes) in [(Fabric::Shm, 2), (Fabric::Rxm, 2), (Fabric::Tcp2, 2)] {
        // Where they go by the driver, bytes and words of a poll go together.
        let env = vec![("NVSHMEM_LIBFABRIC_DEBUG", "words=stream")];
        trials.push(Job { env, ..Job::new("beside", fabric, n_pes).on("device") }.trial());
    }
    for fabric in [Fabric::Shm, Fabric::Rxm] {
        trials.push(Job::new("cycles", fabric, 2).on("device").trial());
    }
    trials.push(Job::new("late", Fabric::Shm, 1).trial());
    trials.push(Job::new("sizes", Fabric::Shm, 1).trial());
    trials.push(Job::new("bad", Fabric::Shm, 1).trial());
    trials.push(needs::trial("kernels_were_compiled", compiler_for_kernels(), |()| {
        let image = kernels::IMAGE.ok_or(kernels::BUILT)?;
        // What a fatbin begins with.
        if image[..4] == [0x50, 0xed, 0x55, 0xba] { Ok(()) } else { Err(kernels::BUILT.into()) }
    }));
    let seconds = vec![("NVSHMEM_LIBFABRIC_TIMEOUT_SECONDS", "2")];
    for fabric in [Fabric::Shm, Fabric::Rxm, Fabric::Tcp2] {
        let job = Job::new("dead", fabric, 2);
        trials.push(Job { env: seconds.clone(), dies: Some(1), ..job.clone() }.trial());
        trials.push(Job { env: seconds.clone(), dies: Some(1), ..job.on("device") }.trial());
    }
    // Over shm, a process reads another one's memory though that has stopped.
    for (scenario, fabric) in [("memory_in_use", Fabric::Rxm), ("memory_back", Fabric::Tcp2)] {
        let job = Job::new(scenario, fabric, 2);
        trials.push(Job { env: seconds.clone(), ..job }.trial());
    }
    let second = vec![("NVSHMEM_LIBFABRIC_TIMEOUT_SECONDS", "1")];
    trials.push(Job { env: second, ..Job::new("stuck", Fabric::Shm, 1) }.trial());
    trials.push(Job { env: seconds.clone(), ..Job::new("stopped", Fabric::Rxm, 2) }.trial());
    trials.push(Job::new("unwinding", Fabric::Shm, 1).trial());
    for fabric in [Fabric::Shm, Fabric::Rxm, Fabric::Tcp2] {
        trials.push(Job::new("cycles", fabric, 2).trial());
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Whether there was a compiler for kernels when this was built; that it failed is no reason to
/// skip.
fn compiler_for_kernels() -> Need<()> {
    let none = kernels::IMAGE.is_none() && kernels::BUILT.contains("no nvcc");
    if none { Err(kernels::BUILT.to_owned()) } else { Ok(()) }
}
