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
        ("collective", collective::collective),
        ("stop", failures::stop),
        ("bad", failures::bad_requests),
        ("dead", failures::dead_peer),
        ("memory_in_use", failures::memory_in_use),
        ("no_driver", device::no_driver),
        ("refused", device::refused),
        ("near_kernels", device::near_kernels),
        ("own_context", device::own_context),
        ("slow_copies", device::own_context),
        ("stuck", life::stuck),
        ("cycles", life::cycles),
    ]);
    let mut arguments = Arguments::from_args();
    // Each job is several busy processes already.
    arguments.test_threads.get_or_insert(1);
    let mut trials = Job::trials(jobs(), other_jobs(), arguments.filter.is_some());
    trials.push(needs::trial("kernels_were_compiled", compiler_for_kernels(), |()| {
        let image = kernels::IMAGE.ok_or(kernels::BUILT)?;
        // What a fatbin begins with.
        if image[..4] == [0x50, 0xed, 0x55, 0xba] { Ok(()) } else { Err(kernels::BUILT.into()) }
    }));
    libtest_mimic::run(&arguments, trials).exit_code()
}

const DEBUG: &str = "NVSHMEM_LIBFABRIC_DEBUG";
const TIMEOUT: &str = "NVSHMEM_LIBFABRIC_TIMEOUT_SECONDS";

fn dead(fabric: Fabric) -> Job {
    let job = Job::new("dead", fabric, 2).env(TIMEOUT, "2");
    job.dies(1, Outcome::Exited(failures::DEAD))
}

fn near_kernels(fabric: Fabric, way: &str) -> Job {
    Job::new("near_kernels", fabric, 2).on("device").env(DEBUG, way)
}

fn jobs() -> Vec<Job> {
    use Fabric::{Rxm, Shm, Tcp2};
    let job = Job::new;
    let own_context = |scenario| job(scenario, Shm, 1).on("device");
    vec![
        job("traffic", Shm, 3),
        job("traffic", Rxm, 2),
        job("traffic", Tcp2, 3).on("mixed"),
        job("traffic", Shm, 2).on("device"),
        job("traffic", Rxm, 1).on("device"),
        job("collective", Shm, 5),
        job("collective", Tcp2, 2),
        job("collective", Rxm, 2).on("mixed"),
        job("stop", Shm, 2),
        job("stop", Tcp2, 2),
        job("cycles", Tcp2, 2),
        job("cycles", Shm, 2).on("device"),
        dead(Tcp2),
        dead(Rxm).on("device"),
        job("no_driver", Shm, 1),
        job("refused", Rxm, 2).on("device"),
        job("refused", Shm, 2).on("device").env("FAKE_CUDA_VMM", "0"),
        own_context("own_context"),
        // Longer than the copies that are timed may take.
        own_context("slow_copies").env("FAKE_CUDA_COPY_NS", "150000000"),
        near_kernels(Shm, "words=gdrcopy"),
        near_kernels(Tcp2, "words=stream"),
        job("bad", Shm, 1),
        // Over shm, a process reads another one's memory though that has stopped.
        job("memory_in_use", Rxm, 2).env(TIMEOUT, "2"),
        job("memory_in_use", Tcp2, 2).env(TIMEOUT, "2"),
        job("stuck", Shm, 1).env(TIMEOUT, "1"),
    ]
}

fn other_jobs() -> Vec<Job> {
    use Fabric::{Rxm, Shm, Tcp2};
    let job = Job::new;
    vec![
        job("traffic", Tcp2, 3),
        job("traffic", Shm, 1),
        job("traffic", Rxm, 2).on("own"),
        job("traffic", Shm, 3).on("mixed"),
        job("collective", Rxm, 3),
        job("collective", Shm, 1),
        job("stop", Rxm, 2),
        job("cycles", Shm, 2),
        job("cycles", Rxm, 2),
        job("cycles", Rxm, 2).on("device"),
        dead(Shm),
        dead(Rxm),
        dead(Shm).on("device"),
        dead(Tcp2).on("device"),
        near_kernels(Rxm, "words=gdrcopy"),
    ]
}

fn compiler_for_kernels() -> Need<()> {
    let none = kernels::IMAGE.is_none() && kernels::BUILT.contains("no nvcc");
    if none { Err(kernels::BUILT.to_owned()) } else { Ok(()) }
}
