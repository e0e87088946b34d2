//! Reads through every rail when the host asks for consistency, asked for by a setting: on host memory
//! they change nothing, and every byte of the operations beside them has to be right.

use libtest_mimic::Trial;
use nvshmem_sim::Layout;

use crate::fabric::{Fabric, trial};
use crate::matrix::run;

/// The same as the operations of the matrix have.
const HEAP: u64 = 64 << 20;
const CHUNK: u64 = 1 << 20;

pub(crate) fn trials() -> Vec<Trial> {
    let fabrics = [Fabric::Rxm, Fabric::Tcp2, Fabric::Rxm2, Fabric::Shm, Fabric::Shm2];
    let of = |fabric: Fabric| {
        trial(format!("consistency_{}", fabric.name()), Some(fabric), move || {
            for (choice, words) in [
                ("read", "a read through each rail"),
                ("write-read", "a write and a read through each rail"),
            ] {
                for (layout, rails) in [(Layout::V3a, 1), (Layout::V6, 2), (Layout::V7, 4)] {
                    let job = fabric.job("operations", 2, rails, layout).heap(HEAP, CHUNK);
                    let report = run(job.env("NVSHMEM_LIBFABRIC_CONSISTENCY", choice))?;
                    for pe in &report.pes {
                        let text = pe.text();
                        let chosen = format!("{words} (NVSHMEM_LIBFABRIC_CONSISTENCY)");
                        let done = format!("{words}: done ");
                        if !text.contains(&chosen) || !text.contains(&done) {
                            let what = format!("{layout}, {choice}, PE {}: not done", pe.pe);
                            return Err(format!("{what}:\n{text}").into());
                        }
                    }
                }
            }
            Ok(())
        })
    };
    fabrics.into_iter().map(of).collect()
}
