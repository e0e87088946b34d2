//! Staged memory on the fake: bytes that neither the fabric nor the CPU may touch.

mod answers;
mod cases;
mod gathered;
mod gets;
mod lists;
mod order;
mod same_host;
mod steps;
mod values;

use std::ops::Range;

use engine::wire::staging::max_pull_payload;

use crate::prelude::*;

pub(crate) const ALL: u32 = u32::MAX;

fn pattern(pe: u32, at: usize) -> u8 {
    (pe as usize * 97 + at * 31 + (at >> 8) * 7 + 1) as u8
}

pub(crate) fn patterned(pe: u32, places: Range<usize>) -> Vec<u8> {
    places.map(|at| pattern(pe, at)).collect()
}

fn fill(job: &Job, n: u32) {
    (0..n).for_each(|pe| job.fill_scratch(pe, &patterned(pe, 0..job.heap)));
}

/// Bounce buffers of 1 KiB, two each way.
fn same_host_shape() -> Shape {
    Shape { staged: ALL, shared: u32::MAX, rails: 1, ..PLAIN }
}

/// Longest put whose bytes come with the message that tells of them, over one rail.
const MAX_BROUGHT: usize = max_pull_payload(MAX_LONG_MESSAGE, 1);
