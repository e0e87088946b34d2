//! Connections for bulk: threads of their own move what is long, and nothing else changes. PEs may
//! differ in how many they have.

use libtest_mimic::{Failed, Trial};
use nvshmem_sim::{JobReport, JobSettings, Layout, MemoryKind};
use serde_json::Value;
use test_support::full;

use crate::counters;
use crate::fabric::{Fabric, trial};
use crate::matrix::{run, signal_engine};
use crate::staged::device::{Needs, job as staged_job, staged};

const FABRICS: [Fabric; 3] = [Fabric::Tcp2, Fabric::Rxm, Fabric::Rxm2];
const KEY: &str = "bulk_connections";
const DEBUG: &str = "NVSHMEM_LIBFABRIC_DEBUG";

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for fabric in FABRICS {
        if fabric == Fabric::Rxm2 && !full() {
            continue;
        }
        let on = fabric.name();
        let mut new = |name: &str, run: fn(Fabric) -> Result<(), Failed>| {
            let name = format!("bulk::{name}_{on}");
            trials.push(trial(name, Some(fabric), move || run(fabric)));
        };
        new("threads_move_what_is_long", threads_move);
        new("one_rail_has_several", one_rail);
        new("pes_differ", pes_differ);
        new("signals_are_counted_there", counted);
        new("nothing_is_opened_where_nothing_is_striped", off);
        trials.push(staged(format!("bulk_{on}"), fabric, Needs::Any, move || through(fabric)));
    }
    trials
}

/// Runs a job, and gives how many bytes the proxy lane of each PE has given to its rails, and to
/// their threads.
fn moved(job: JobSettings) -> Result<(JobReport, Vec<[u64; 2]>), Failed> {
    let (report, all) = counters::counted(job, run)?;
    let moved = |counters: &Value| {
        let rails = counters["lanes"][0]["rails"].as_array().cloned().unwrap_or_default();
        let sum = |name: &str| rails.iter().filter_map(|rail| rail[name].as_u64()).sum();
        [sum("bytes"), sum("bulk_bytes")]
    };
    Ok((report, all.iter().map(moved).collect()))
}

/// Whether a PE has said that so many threads move bytes.
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
fn threads_move(fabric: Fabric) -> Result<(), Failed> {
    let job = fabric.job("largest", 2, 2, Layout::V7).heap(192 << 20, 64 << 20);
    let (report, all) = moved(job.debug(KEY, 1))?;
    (0..2).try_for_each(|pe| has_said(&report, pe, 2))?;
    check("some", all.iter().all(|[_, bulk]| *bulk > 0), &all)?;
    // Operations of all kinds and lengths, from all to all.
    let job = fabric.job("operations", 4, 2, Layout::V7).heap(64 << 20, 1 << 20);
    moved(job.debug(KEY, 1))?;
    let (_, all) = moved(signals(fabric, 4, 2).debug(KEY, 1))?;
    check("long ones", all.iter().all(|[bytes, bulk]| 0 < *bulk && bulk < bytes), &all)
}

/// Puts with signals of up to a MiB, from all to all: so many that each connection is made, until
/// when the proxy thread moves what is long as well.
fn signals(fabric: Fabric, n_pes: u32, rails: u8) -> JobSettings {
    let job = fabric.job("signals", n_pes, rails, Layout::V7).heap(96 << 20, 1 << 20);
    job.param("rounds", 150).param("most", 1 << 20)
}

fn one_rail(fabric: Fabric) -> Result<(), Failed> {
    for connections in [1, 3, 6] {
        let job = fabric.job("largest", 2, 1, Layout::V6).heap(192 << 20, 64 << 20);
        let (report, all) = moved(job.debug(KEY, connections))?;
        has_said(&report, 1, connections)?;
        check("some", all.iter().all(|[_, bulk]| *bulk > 0), &all)?;
    }
    let (_, all) = moved(signals(fabric, 4, 1).debug(KEY, 2))?;
    check("some", all.iter().all(|[_, bulk]| *bulk > 0), &all)
}

/// With none, with one for each rail, with three, and with other numbers of rails.
fn pes_differ(fabric: Fabric) -> Result<(), Failed> {
    let key = |count: u32| format!("{KEY}={count}");
    let operations = fabric.job("operations", 4, 2, Layout::V7).heap(64 << 20, 1 << 20);
    for (job, is_long) in [(operations, false), (signals(fabric, 4, 2), true)] {
        let job = job
            .env_of_pe(0, DEBUG, key(0))
            .env_of_pe(1, DEBUG, key(1))
            .env_of_pe(2, DEBUG, key(3))
            .env_of_pe(3, DEBUG, key(2))
            .env_of_pe(3, "NVSHMEM_LIBFABRIC_DEVICES", "127.0.0.1");
        let (report, all) = moved(job)?;
        for (pe, threads) in [0, 2, 6, 2].into_iter().enumerate() {
            has_said(&report, pe, threads)?;
        }
        let others = all[1..].iter().all(|[_, bulk]| *bulk > 0 || !is_long);
        check("all but PE 0", all[0][1] == 0 && others, &all)?;
    }
    Ok(())
}

/// What tells a target of a segment comes in where the segment does.
fn counted(fabric: Fabric) -> Result<(), Failed> {
    for rails in [1, 2] {
        let job = fabric.job("signals", 2, rails, Layout::V7).heap(128 << 20, 1 << 20);
        let job = signal_engine(job, "counted").debug(KEY, 2);
        let (_, all) = moved(job.param("rounds", 150).param("most", 4 << 20))?;
        check("some", all.iter().all(|[_, bulk]| *bulk > 0), &all)?;
    }
    Ok(())
}

fn off(fabric: Fabric) -> Result<(), Failed> {
    let job = || fabric.job("operations", 2, 2, Layout::V7).heap(64 << 20, 1 << 20);
    let whole = job().debug(KEY, 2).env("NVSHMEM_LIBFABRIC_RAIL_BALANCE", "round_robin");
    for job in [job().debug(KEY, 0), whole] {
        let (report, all) = moved(job)?;
        has_said(&report, 0, 0)?;
        check("none", all.iter().all(|[_, bulk]| *bulk == 0), &all)?;
    }
    Ok(())
}

/// Fragments of device memory that goes through the fabric.
fn through(fabric: Fabric) -> Result<(), Failed> {
    for rails in [1, 2] {
        let job = staged_job(fabric, MemoryKind::DeviceVmm, "same_host", 2, rails, Layout::V7);
        let (_, all) = moved(job.debug("share_bounce", 0).debug(KEY, 2))?;
        check("some", all.iter().all(|[_, bulk]| *bulk > 0), &all)?;
    }
    Ok(())
}
