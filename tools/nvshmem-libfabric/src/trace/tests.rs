use nvshmem_transport_libfabric::job::recording::format::{Record, Recording, Region, encode};

use super::job::Job;

/// Memory from the beginning on.
pub(super) fn region(base: u64, len: u64) -> Region {
    Region { base, len, time: 0, local_only: false }
}

/// A job whose PEs have recorded this, each with the same regions.
pub(super) fn job(n_pes: u32, recorded: &[(u32, &[Record])], regions: &[Region]) -> Job {
    let mut job: Option<Job> = None;
    for (pe, records) in recorded {
        let bytes = encode((*pe, n_pes), records.len().max(1) as u64, regions, records);
        let recording = Recording::decode(&bytes).unwrap();
        job.get_or_insert_with(Job::default).add(recording).unwrap();
    }
    job.unwrap()
}
