//! Reads through every rail when the host asks for consistency, forced by a debug key: on host
//! memory they change nothing, and every byte of the operations beside them must be right.

use libtest_mimic::{Failed, Trial};
use nvshmem_sim::Layout;

use crate::fabric::{Fabric, says, trial};
use crate::matrix::run;

pub(crate) fn trials() -> Vec<Trial> {
    let rows = [
        (Fabric::Rxm, Layout::V3a, 1, "read", "a read through each rail"),
        (Fabric::Tcp2, Layout::V7, 2, "write-read", "a write and a read through each rail"),
    ];
    let of = |(fabric, layout, rails, choice, words): (Fabric, _, _, &'static str, _)| {
        let name = format!("consistency_{choice}_{}", fabric.name());
        trial(name, Some(fabric), move || {
            let job = fabric.job("operations", 2, rails, layout).heap(64 << 20, 1 << 20);
            let report = run(job.debug("consistency", choice))?;
            report.pes.iter().try_for_each(|pe| -> Result<(), Failed> {
                let text = pe.text();
                says(&text, &format!("{words} (NVSHMEM_LIBFABRIC_DEBUG=consistency)"))?;
                says(&text, &format!("{words}: done "))
            })
        })
    };
    rows.map(of).into()
}
