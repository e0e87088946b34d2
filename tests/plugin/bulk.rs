//! Bulk connections: threads of their own move long transfers. PEs may differ in their number.

use libtest_mimic::{Failed, Trial};
use nvshmem_sim::{JobReport, JobSettings, Layout, MemoryKind};
use serde_json::Value;

use crate::counters;
use crate::fabric::{Fabric, trial};
use crate::matrix::{run, signal_engine};
use crate::staged::device::{Needs, job as staged_job, staged};

const KEY: &str = "bulk_connections";
const DEBUG: &str = "NVSHMEM_LIBFABRIC_DEBUG";

pub(crate) fn trials() -> Vec<Trial> {
    let new = |name: &str, fabric, run: fn() -> Result<(), Failed>| {
        trial(format!("bulk::{name}"), Some(fabric), run)
    };
    vec![
        new("threads_move_long_transfers_tcp2", Fabric::Tcp2, threads_move),
        new("pes_with_different_threads_rxm", Fabric::Rxm, pes_differ),
        new("signals_are_counted_rxm", Fabric::Rxm, counted),
        staged(String::from("bulk_tcp2"), Fabric::Tcp2, Needs::Any, through),
    ]
}

/// Runs a job; returns how many bytes the proxy lane of each PE has posted, and its bulk threads.
fn moved(job: JobSettings) -> Result<(JobReport, Vec<[u64; 2]>), Failed> {
    let (report, all) = counters::counted(job, run)?;
    let moved = |counters: &Value| {
        let rails = counters["lanes"][0]["rails"].as_array().cloned().unwrap_or_default();
        let sum = |name: &str| rails.iter().filter_map(|rail| rail[name].as_u64()).sum();
        [sum("bytes"), sum("bulk_bytes")]
    };
    Ok((report, all.iter().map(moved).collect()))
}

/// Fails unless the PE's log has this number of bulk threads.
fn has_said(report: &JobReport, pe: usize, threads: usize) -> Result<(), Failed> {
    let text = report.pes[pe].text();
    let said = format!("{threads} thread(s) move bytes in bulk");
    let right = match threads {
        0 => !text.contains("thread(s) move bytes in bulk"),
        _ => text.contains(&said),
    };
    if right { Ok(()) } else { Err(format!("PE {pe} has not said {said:?}:\n{text}").into()) }
}

fn check(what: &str, holds: bool, all: &[[u64; 2]]) -> Result<(), Failed> {
    if holds { Ok(()) } else { Err(format!("{what}: {all:?}").into()) }
}

/// Whole chunks over several rails. How many bytes go before the connections are made depends on
/// the machine.
fn threads_move() -> Result<(), Failed> {
    let job = Fabric::Tcp2.job("largest", 2, 2, Layout::V7).heap(192 << 20, 64 << 20);
    let (report, all) = moved(job.debug(KEY, 1))?;
    (0..2).try_for_each(|pe| has_said(&report, pe, 2))?;
    // Of one of them all bytes may go before, where the machine is busy.
    check("some", all.iter().any(|[_, bulk]| *bulk > 0), &all)
}

/// Puts with signals of up to a MiB, from all to all, by PEs with no thread, one for each rail,
/// three, and with another number of rails. There are enough for every connection to be made; the
/// proxy thread moves long ones until then.
fn pes_differ() -> Result<(), Failed> {
    let key = |count: u32| format!("{KEY}={count}");
    let job = Fabric::Rxm
        .job("signals", 4, 2, Layout::V7)
        .heap(96 << 20, 1 << 20)
        .param("rounds", 150)
        .param("most", 1 << 20)
        .env_of_pe(0, DEBUG, key(0))
        .env_of_pe(1, DEBUG, key(1))
        .env_of_pe(2, DEBUG, key(3))
        .env_of_pe(3, DEBUG, key(2))
        .env_of_pe(3, "NVSHMEM_LIBFABRIC_DEVICES", "127.0.0.1");
    let (report, all) = moved(job)?;
    for (pe, threads) in [0, 2, 6, 2].into_iter().enumerate() {
        has_said(&report, pe, threads)?;
    }
    let others = all[1..].iter().all(|[_, bulk]| *bulk > 0);
    check("all but PE 0", all[0][1] == 0 && others, &all)
}

/// The target counts segments by the rail's own queue, whichever thread has sent them.
fn counted() -> Result<(), Failed> {
    let job = Fabric::Rxm.job("signals", 2, 1, Layout::V7).heap(128 << 20, 1 << 20);
    let job = signal_engine(job, "counted").debug(KEY, 2);
    let (_, all) = moved(job.param("rounds", 150).param("most", 4 << 20))?;
    check("some", all.iter().all(|[_, bulk]| *bulk > 0), &all)
}

fn through() -> Result<(), Failed> {
    let job = staged_job(Fabric::Tcp2, MemoryKind::DeviceVmm, "same_host", 2, 2, Layout::V7);
    let (_, all) = moved(job.debug("share_bounce", 0).debug(KEY, 2))?;
    check("some", all.iter().all(|[_, bulk]| *bulk > 0), &all)
}
