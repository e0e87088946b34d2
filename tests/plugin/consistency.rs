//! Reads through every rail when the host asks for consistency, asked for by a setting: on host
//! memory they change nothing, and every byte of the operations beside them has to be right.

use libtest_mimic::Trial;
use nvshmem_sim::Layout;
use test_support::pairwise::rows;

use crate::fabric::trial;
use crate::matrix::{FABRICS, place, run};

/// The same as the operations of the matrix have.
const HEAP: u64 = 64 << 20;
const CHUNK: u64 = 1 << 20;

pub(crate) fn trials() -> Vec<Trial> {
    let choices = [
        ("read", "a read through each rail"),
        ("write-read", "a write and a read through each rail"),
    ];
    let shapes = [(Layout::V3a, 1), (Layout::V6, 2), (Layout::V7, 4)];
    let of = |[fabric, shape, choice]: [usize; 3]| {
        let (fabric, (layout, rails), (choice, words)) =
            (FABRICS[fabric], shapes[shape], choices[choice]);
        let name = format!("consistency_{}_{choice}", place(fabric, 2, rails, layout));
        trial(name, Some(fabric), move || {
            let job = fabric.job("operations", 2, rails, layout).heap(HEAP, CHUNK);
            let report = run(job.debug("consistency", choice))?;
            for pe in &report.pes {
                let text = pe.text();
                let chosen = format!("{words} (NVSHMEM_LIBFABRIC_DEBUG=consistency)");
                let done = format!("{words}: done ");
                if !text.contains(&chosen) || !text.contains(&done) {
                    return Err(format!("PE {}: not done:\n{text}", pe.pe).into());
                }
            }
            Ok(())
        })
    };
    rows([FABRICS.len(), shapes.len(), choices.len()], 3).into_iter().map(of).collect()
}
