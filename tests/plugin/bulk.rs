//! Bulk connections: threads of their own move long transfers. `tests/ofi` has PEs that differ in
//! their number, and what is counted beside them.

use libtest_mimic::{Failed, Trial};
use nvshmem_sim::{JobSettings, Layout, MemoryKind};

use crate::counters;
use crate::fabric::{Fabric, job_on, says, trial};
use crate::staged::device::{Needs, job as staged_job, staged};

const KEY: &str = "bulk_connections";

pub(crate) fn trials() -> Vec<Trial> {
    let tcp2 = Fabric::Tcp2;
    vec![
        trial(String::from("bulk::threads_move_long_transfers_tcp2"), Some(tcp2), move || {
            let job = job_on(tcp2, "same_host", 2, 2, Layout::V7).heap(24 << 20, 8 << 20);
            moves_in_bulk(job.debug(KEY, 1), 2)
        }),
        staged(String::from("bulk_tcp2"), tcp2, Needs::Any, move || {
            let kind = MemoryKind::DeviceVmm;
            let job = staged_job(tcp2, kind, "same_host", 2, 2, Layout::V7);
            moves_in_bulk(job.debug("share_bounce", 0).debug(KEY, 2), 4)
        }),
    ]
}

/// Fails unless each PE has so many bulk threads, and some of the bytes went by one.
fn moves_in_bulk(job: JobSettings, threads: u32) -> Result<(), Failed> {
    let (report, all) = counters::counted(job)?;
    for pe in &report.pes {
        says(&pe.text(), &format!("{threads} thread(s) move bytes in bulk"))?;
    }
    // How many bytes go before the connections are made depends on the machine: of one PE all may,
    // where it is busy.
    let rails = all.iter().filter_map(|of| of["lanes"][0]["rails"].as_array()).flatten();
    let moved: u64 = rails.filter_map(|rail| rail["bulk_bytes"].as_u64()).sum();
    if moved > 0 { Ok(()) } else { Err(format!("no byte went in bulk: {all:?}").into()) }
}
