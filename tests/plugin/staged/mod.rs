//! Heaps and buffers on a device that the fabric does not reach.
//!
//! Without a GPU the device is a stand-in whose memory faults when the CPU touches it. With
//! `NVSHMEM_TEST_GPU` set, the same cases run on the device that the machine's own driver has, with
//! a kernel that stays on it in every PE; those that need a device which fails on demand are left
//! out.

mod borders;
pub(crate) mod device;
mod failures;
mod limits;
pub(crate) mod matrix;
mod same_host;
mod tokens;

use libtest_mimic::Trial;
use nvshmem_sim::Scenario;

pub(crate) const SCENARIOS: [(&str, Scenario); 8] = [
    ("probe", device::probe),
    ("borders", borders::scenario),
    ("failing", failures::scenario),
    ("connect_with_a_device", failures::connect),
    ("limits", limits::scenario),
    ("same_host", same_host::scenario),
    ("same_host_death", same_host::death),
    ("tokens", tokens::scenario),
];

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    trials.extend(matrix::trials());
    trials.extend(borders::trials());
    trials.extend(failures::trials());
    trials.extend(limits::trials());
    trials.extend(same_host::trials());
    trials.extend(tokens::trials());
    trials
}
