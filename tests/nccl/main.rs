//! NCCL's RMA plugin, loaded and called as NCCL does, by a mock of it: processes, progress threads,
//! user threads, and the calls in NCCL's order.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod by_hand;
mod failures;
mod launch;
mod life;
mod mock;
mod plan;
mod regions;
mod rounds;
mod stage;

use std::process::ExitCode;

use libtest_mimic::Arguments;
use test_jobs::{Fabric, Job, Outcome, pe_entry};
use test_support::scratch::Scratch;

use launch::{by, job, tell_of_panics};
use mock::library::Version;
use mock::pair::Pair;

fn main() -> ExitCode {
    tell_of_panics();
    pe_entry(&[
        ("traffic", rounds::traffic),
        ("order", rounds::order),
        ("host_order", rounds::host_order),
        ("regions", regions::regions),
        ("paused", |place| Pair::run(place, life::paused)),
        ("left", |place| Pair::run(place, life::left)),
        ("cycles", life::cycles),
        ("test_alone", |place| by_hand::run(place, by_hand::test_alone)),
        ("closed_in_turn", |place| by_hand::run(place, by_hand::closed_in_turn)),
        ("seen_by_others", |place| by_hand::run(place, by_hand::seen_by_others)),
        ("groups", |place| by_hand::run(place, by_hand::groups)),
        ("aborted_connect", by_hand::aborted_connect),
        ("killed", |place| Pair::run(place, failures::killed)),
        ("aborted", |place| Pair::run(place, failures::aborted)),
        ("released", |place| Pair::run(place, failures::released)),
        ("bad_arguments", |place| Pair::run(place, failures::bad_arguments)),
    ]);
    let mut arguments = Arguments::from_args();
    // Each job is several busy processes already.
    arguments.test_threads.get_or_insert(1);
    let mut jobs: Vec<Job> = Vec::new();
    let mut add = |job: Job| jobs.push(job);
    for (fabric, n_pes, memory) in EVERYWHERE {
        let job = |scenario| job(scenario, fabric, n_pes).on(memory);
        add(job("traffic").seeds(2));
        add(job("order").seeds(5));
        add(job("host_order").seeds(5));
        if n_pes > 1 {
            add(job("regions"));
            add(job("paused"));
        }
    }
    for version in Version::ALL.into_iter().skip(1) {
        add(by(version, job("traffic", Fabric::Shm, 2)).seeds(2));
        add(by(version, job("order", Fabric::Tcp2, 2)).seeds(5));
    }
    variants().for_each(&mut add);
    for fabric in [Fabric::Shm, Fabric::Rxm, Fabric::Tcp2] {
        add(job("cycles", fabric, 2));
        add(job("cycles", fabric, 2).on("device"));
        add(job("released", fabric, 2));
        add(job("released", fabric, 2).on("device"));
    }
    for fabric in [Fabric::Shm, Fabric::Rxm, Fabric::Tcp2] {
        add(job("test_alone", fabric, 1));
        let patience = ("NVSHMEM_LIBFABRIC_TIMEOUT_SECONDS", "2");
        add(job("closed_in_turn", fabric, 2).env(patience.0, patience.1));
    }
    let counters = Scratch::new();
    let left = job("left", Fabric::Tcp2, 2)
        .dies(1, Outcome::Exited(0))
        .env("NVSHMEM_LIBFABRIC_TIMEOUT_SECONDS", "2");
    add(left.env("NVSHMEM_LIBFABRIC_COUNTERS", counters.join("%p").display()));
    add(job("seen_by_others", Fabric::Shm, 1));
    add(job("seen_by_others", Fabric::Tcp2, 1).on("device"));
    add(job("groups", Fabric::Shm, 4).on("device"));
    add(job("aborted_connect", Fabric::Tcp2, 3));
    // Not over shm: who is killed may have a lock there, for which the others wait in the provider.
    for (fabric, n_pes) in [(Fabric::Rxm, 2), (Fabric::Rxm, 3), (Fabric::Tcp2, 3)] {
        for memory in [None, Some("device")] {
            let killed = || Outcome::Signal(libc::SIGKILL);
            let job = |scenario| job(scenario, fabric, n_pes).on(memory).dies(n_pes - 1, killed());
            add(job("killed").env("NVSHMEM_LIBFABRIC_TIMEOUT_SECONDS", "2"));
            // However long operations are waited for.
            add(job("aborted"));
        }
    }
    add(job("bad_arguments", Fabric::Shm, 2));
    add(job("bad_arguments", Fabric::Tcp2, 1));
    add(job("bad_arguments", Fabric::Rxm, 2).on("device"));
    let is_always = |job: &Job| ALWAYS.contains(&job.name().as_str());
    let (always, others): (Vec<Job>, Vec<Job>) = jobs.into_iter().partition(is_always);
    assert_eq!(always.len(), ALWAYS.len(), "each is the name of a job");
    let trials = Job::trials(always, others, arguments.filter.is_some());
    libtest_mimic::run(&arguments, trials).exit_code()
}

const ALWAYS: [&str; 34] = [
    "traffic::shm_3_pes",
    "traffic::shm_1_pes",
    "traffic::rxm_2_pes_own",
    "traffic::tcp2_3_pes_mixed",
    "order::shm_3_pes_mixed",
    "order::rxm_2_pes",
    "order::tcp2_3_pes",
    "host_order::shm_3_pes_device",
    "host_order::tcp2_3_pes",
    "regions::shm_3_pes",
    "regions::rxm_2_pes_own",
    "paused::tcp2_3_pes",
    "order::shm_2_pes_device_slow",
    "order::rxm_2_pes_device_stream",
    "order::shm_2_pes_own_apart",
    "order::tcp2_2_pes_few",
    "order::rxm_2_pes_short",
    "order::shm_3_pes_chained",
    "order::tcp2_2_pes_eager",
    "order::tcp2_3_pes_counted",
    "traffic::shm_2_pes_v14",
    "traffic::rxm_2_pes_device_flushed",
    "order::tcp2_2_pes_v15",
    "closed_in_turn::shm_2_pes",
    "test_alone::shm_1_pes",
    "left::tcp2_2_pes",
    "groups::shm_4_pes_device",
    "cycles::rxm_2_pes",
    "cycles::shm_2_pes_device",
    "released::shm_2_pes_device",
    "killed::tcp2_3_pes",
    "aborted::rxm_2_pes_device",
    "bad_arguments::shm_2_pes",
    "bad_arguments::rxm_2_pes_device",
];

/// Fabrics with so many PEs, and where their memory is.
const EVERYWHERE: [(Fabric, u32, Option<&str>); 9] = [
    (Fabric::Shm, 3, None),
    (Fabric::Rxm, 2, None),
    (Fabric::Tcp2, 3, None),
    (Fabric::Shm, 1, None),
    (Fabric::Shm, 3, Some("device")),
    (Fabric::Rxm, 2, Some("own")),
    (Fabric::Tcp2, 3, Some("mixed")),
    (Fabric::Shm, 3, Some("mixed")),
    (Fabric::Rxm, 1, Some("device")),
];

fn variants() -> impl Iterator<Item = Job> {
    const DEBUG: &str = "NVSHMEM_LIBFABRIC_DEBUG";
    let order = |fabric, n_pes| job("order", fabric, n_pes).seeds(5);
    let slow = [("FAKE_CUDA_COPY_NS", "20000"), ("FAKE_CUDA_BYTE_PS", "200")];
    [
        order(Fabric::Shm, 2).on("device").with("slow", &slow),
        order(Fabric::Tcp2, 3).on("mixed").with("slow", &slow),
        order(Fabric::Rxm, 2).on("device").with("stream", &[(DEBUG, "words=stream")]),
        order(Fabric::Shm, 2).on("mixed").with("stream", &[(DEBUG, "words=stream")]),
        order(Fabric::Shm, 2).on("own").with("apart", &[(DEBUG, "share_bounce=0")]),
        order(Fabric::Tcp2, 2).with("few", &[(DEBUG, "queue_depth=2")]),
        order(Fabric::Rxm, 2).with("short", &[(DEBUG, "max_segment=4096")]),
        order(Fabric::Shm, 3).with("chained", &[(DEBUG, "signals=chained")]),
        order(Fabric::Tcp2, 2).with("eager", &[(DEBUG, "signals=eager")]),
        order(Fabric::Tcp2, 3).with("counted", &[(DEBUG, "signals=counted")]),
        order(Fabric::Rxm, 2).with("counted", &[(DEBUG, "signals=counted")]),
        job("traffic", Fabric::Rxm, 2).on("device").with("flushed", &[(DEBUG, rounds::FLUSHED)]),
    ]
    .into_iter()
}
