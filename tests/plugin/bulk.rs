//! Bulk connections: threads of their own move long transfers, also between PEs that differ in
//! their number, and immediate data comes in with what they move, once.

use libtest_mimic::{Failed, Trial};
use nvshmem_sim::{JobSettings, Layout, MemoryKind};

use crate::counters;
use crate::fabric::{Fabric, job_on, says, trial};
use crate::staged::device::{Needs, job as staged_job, staged};

const KEY: &str = "bulk_connections";

pub(crate) fn trials() -> Vec<Trial> {
    let tcp2 = Fabric::Tcp2;
    let of = |name: &str, fabric: Fabric, scenario, connections| {
        let name = format!("bulk::{name}_{}", fabric.name());
        trial(name, Some(fabric), move || {
            let job = job_on(fabric, scenario, 2, 2, Layout::V7).heap(96 << 20, 8 << 20);
            let job = job.debug("signals", "counted").param("rounds", 60).param("most", 4 << 20);
            moves_in_bulk(job, connections)
        })
    };
    vec![
        of("threads_move_long_transfers", tcp2, "same_host", [1, 1]),
        of("unequal_threads", Fabric::Rxm, "same_host", [3, 1]),
        of("threads_of_one_pe", tcp2, "same_host", [0, 2]),
        of("counted_signals", tcp2, "signals", [2, 2]),
        of("counted_signals_of_one_pe", Fabric::Rxm, "signals", [2, 0]),
        staged(String::from("bulk_tcp2"), tcp2, Needs::Any, move || {
            let kind = MemoryKind::DeviceVmm;
            let job = staged_job(tcp2, kind, "same_host", 2, 2, Layout::V7);
            moves_in_bulk(job.debug("share_bounce", 0), [2, 2])
        }),
    ]
}

/// Fails unless each PE has so many connections on each of two rails, a thread for each, and some
/// of the bytes went by them.
fn moves_in_bulk(job: JobSettings, connections: [u32; 2]) -> Result<(), Failed> {
    const DEBUG: &str = "NVSHMEM_LIBFABRIC_DEBUG";
    let [job, other] = connections.map(|each| job.clone().debug(KEY, each));
    let job = job.env_of_pe(1, DEBUG, &other.env[DEBUG]);
    let (report, all) = counters::counted(job)?;
    for (pe, connections) in report.pes.iter().zip(connections).filter(|(_, each)| *each > 0) {
        says(&pe.text(), &format!("{} thread(s) move bytes in bulk", 2 * connections))?;
    }
    // How many bytes go before the connections are made depends on the machine: of one PE all may,
    // where it is busy.
    let rails = all.iter().filter_map(|of| of["lanes"][0]["rails"].as_array()).flatten();
    let moved: u64 = rails.filter_map(|rail| rail["bulk_bytes"].as_u64()).sum();
    if moved > 0 { Ok(()) } else { Err(format!("no byte went in bulk: {all:?}").into()) }
}
