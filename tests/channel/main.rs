//! The device channel end to end: device API on CPU threads, proxy thread, real rails, peers.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod collective;
mod device;
mod failures;
mod life;
mod memory;
mod traffic;

use std::process::ExitCode;

use libtest_mimic::Arguments;
use nvshmem_transport_libfabric::channel::kernels;
use test_jobs::{Fabric, Job, Outcome, pe_entry};
use test_support::needs::{self, Need};

fn main() -> ExitCode {
    pe_entry(&[
        ("traffic", traffic::traffic),
        ("quiet", traffic::quiet_beside_others),
        ("collective", collective::collective),
        ("stop", failures::stop),
        ("late", failures::late_pushes),
        ("bad", failures::bad_requests),
        ("dead", failures::dead_peer),
        ("memory_in_use", failures::memory_in_use),
        ("no_driver", device::no_driver),
        ("refused", device::refused),
        ("lives", device::lives),
        ("beside", device::beside),
        ("near_kernels", device::near_kernels),
        ("own_context", device::own_context),
        ("slow_copies", device::own_context),
        ("stuck", life::stuck),
        ("stopped", life::stopped),
        ("cycles", life::cycles),
    ]);
    let mut arguments = Arguments::from_args();
    // Each job is several busy processes already.
    arguments.test_threads.get_or_insert(1);
    let mut trials = Job::trials(jobs(), &ALWAYS, arguments.filter.is_some());
    trials.push(needs::trial("kernels_were_compiled", compiler_for_kernels(), |()| {
        let image = kernels::IMAGE.ok_or(kernels::BUILT)?;
        // What a fatbin begins with.
        if image[..4] == [0x50, 0xed, 0x55, 0xba] { Ok(()) } else { Err(kernels::BUILT.into()) }
    }));
    libtest_mimic::run(&arguments, trials).exit_code()
}

const ALWAYS: [&str; 31] = [
    "traffic::shm_3_pes",
    "traffic::rxm_2_pes",
    "traffic::tcp2_3_pes_mixed",
    "traffic::shm_2_pes_device",
    "traffic::rxm_1_pes_device",
    "collective::shm_5_pes",
    "collective::tcp2_2_pes",
    "collective::rxm_2_pes_mixed",
    "quiet::tcp2_2_pes",
    "quiet::rxm_2_pes_own",
    "stop::shm_2_pes",
    "stop::tcp2_2_pes",
    "cycles::tcp2_2_pes",
    "cycles::shm_2_pes_device",
    "beside::rxm_2_pes_device",
    "dead::tcp2_2_pes",
    "dead::rxm_2_pes_device",
    "no_driver::shm_1_pes",
    "refused::rxm_2_pes_device",
    "own_context::shm_1_pes_device",
    "slow_copies::shm_1_pes_device",
    "lives::shm_2_pes_device",
    "lives::rxm_2_pes_device",
    "near_kernels::shm_2_pes_device",
    "near_kernels::tcp2_2_pes_device",
    "late::shm_1_pes",
    "bad::shm_1_pes",
    "memory_in_use::rxm_2_pes",
    "memory_in_use::tcp2_2_pes",
    "stopped::rxm_2_pes",
    "stuck::shm_1_pes",
];

const FABRICS: [Fabric; 3] = [Fabric::Shm, Fabric::Rxm, Fabric::Tcp2];

fn jobs() -> Vec<Job> {
    const DEBUG: &str = "NVSHMEM_LIBFABRIC_DEBUG";
    const TIMEOUT: &str = "NVSHMEM_LIBFABRIC_TIMEOUT_SECONDS";
    let job = Job::new;
    let mut jobs = Vec::new();
    let mut add = |job: Job| jobs.push(job);
    for (fabric, n_pes) in [(Fabric::Shm, 3), (Fabric::Rxm, 2), (Fabric::Tcp2, 3), (Fabric::Shm, 1)]
    {
        add(job("traffic", fabric, n_pes));
    }
    for (fabric, n_pes) in [(Fabric::Shm, 5), (Fabric::Rxm, 3), (Fabric::Tcp2, 2), (Fabric::Shm, 1)]
    {
        add(job("collective", fabric, n_pes));
    }
    add(job("collective", Fabric::Rxm, 2).on("mixed"));
    for fabric in FABRICS {
        add(job("quiet", fabric, 2));
        add(job("stop", fabric, 2));
        add(job("cycles", fabric, 2));
        // Where they go by the driver, bytes and words of a poll go together.
        add(job("beside", fabric, 2).on("device").env(DEBUG, "words=stream"));
        let dead =
            job("dead", fabric, 2).env(TIMEOUT, "2").dies(1, Outcome::Exited(failures::DEAD));
        add(dead.clone());
        add(dead.on("device"));
    }
    for (memory, fabric, n_pes) in [
        ("device", Fabric::Shm, 2),
        ("own", Fabric::Rxm, 2),
        ("mixed", Fabric::Tcp2, 3),
        ("mixed", Fabric::Shm, 3),
        ("device", Fabric::Rxm, 1),
    ] {
        add(job("traffic", fabric, n_pes).on(memory));
        add(job("quiet", fabric, n_pes).on(memory));
    }
    add(job("no_driver", Fabric::Shm, 1));
    add(job("refused", Fabric::Rxm, 2).on("device"));
    add(job("own_context", Fabric::Shm, 1).on("device"));
    // Longer than the copies that are timed may take.
    add(job("slow_copies", Fabric::Shm, 1).on("device").env("FAKE_CUDA_COPY_NS", "150000000"));
    add(job("lives", Fabric::Shm, 2).on("device"));
    add(job("lives", Fabric::Rxm, 2).on("device").env("FAKE_CUDA_VMM", "0"));
    for (way, fabric) in [
        ("words=gdrcopy", Fabric::Shm),
        ("words=gdrcopy", Fabric::Rxm),
        ("words=stream", Fabric::Tcp2),
    ] {
        add(job("near_kernels", fabric, 2).on("device").env(DEBUG, way));
    }
    for fabric in [Fabric::Shm, Fabric::Rxm] {
        add(job("cycles", fabric, 2).on("device"));
    }
    for scenario in ["late", "bad"] {
        add(job(scenario, Fabric::Shm, 1));
    }
    // Over shm, a process reads another one's memory though that has stopped.
    for (scenario, fabric) in
        [("memory_in_use", Fabric::Rxm), ("memory_in_use", Fabric::Tcp2), ("stopped", Fabric::Rxm)]
    {
        add(job(scenario, fabric, 2).env(TIMEOUT, "2"));
    }
    add(job("stuck", Fabric::Shm, 1).env(TIMEOUT, "1"));
    jobs
}

fn compiler_for_kernels() -> Need<()> {
    let none = kernels::IMAGE.is_none() && kernels::BUILT.contains("no nvcc");
    if none { Err(kernels::BUILT.to_owned()) } else { Ok(()) }
}
