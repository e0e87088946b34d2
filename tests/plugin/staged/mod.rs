//! Heaps and buffers on a device that the fabric does not reach.
//!
//! Without a GPU the device is a stand-in whose memory faults when the CPU touches it. With
//! `NVSHMEM_TEST_GPU` set, the same cases run on the device that the machine's own driver has, with
//! a kernel that stays on it in every PE; those that need the stand-in are left out.

pub(crate) mod device;
mod same_host;
mod users_buffer;
mod warnings;

use libtest_mimic::Trial;
use nvshmem_sim::Scenario;

pub(crate) const SCENARIOS: [(&str, Scenario); 3] = [
    ("probe", device::probe),
    ("users_buffer", users_buffer::scenario),
    ("same_host", same_host::scenario),
];

pub(crate) fn trials() -> Vec<Trial> {
    [users_buffer::trials(), same_host::trials(), warnings::trials()]
        .into_iter()
        .flatten()
        .collect()
}
