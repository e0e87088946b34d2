//! Staged memory on the fake: bytes that neither the fabric nor the CPU may touch.

#[path = "../../../../../tests/engine/staged/brought.rs"]
mod brought;
#[path = "../../../../../tests/engine/staged/cases.rs"]
mod cases;
mod forged;
#[path = "../../../../../tests/engine/staged/gathered.rs"]
mod gathered;
#[path = "../../../../../tests/engine/staged/mixed.rs"]
mod mixed;
mod refusals;
#[path = "../../../../../tests/engine/staged/same_host.rs"]
mod same_host;
#[path = "../../../../../tests/engine/staged/steps.rs"]
mod steps;

use engine::port::packet::MAX_LONG_MESSAGE;
use engine::wire::staged::most_brought;

use crate::job::Job;

const ALL: u32 = u32::MAX;

fn pattern(pe: u32, at: usize) -> u8 {
    (pe as usize * 97 + at * 31 + (at >> 8) * 7 + 1) as u8
}

fn fill(job: &Job, n: u32) {
    for pe in 0..n {
        let bytes: Vec<u8> = (0..job.heap).map(|at| pattern(pe, at)).collect();
        job.fill_scratch(pe, &bytes);
    }
}

/// Longest put whose bytes come with the message that tells of them, over one rail.
const MOST_BROUGHT: usize = most_brought(MAX_LONG_MESSAGE, 1);
