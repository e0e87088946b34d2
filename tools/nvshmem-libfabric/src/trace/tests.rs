use nvshmem_recording::{Caller, Kind, Record, Recording, Region, encode};

use super::job::Job;

/// Memory from the beginning on.
pub(super) fn region(base: u64, len: u64) -> Region {
    Region { base, len, time: 0, local_only: false }
}

/// A call of the proxy thread that has taken a moment.
pub(super) fn at(time: u64, kind: Kind, pe: u32) -> Record {
    Record { time, took: Some(1), ..Record::new(kind, Caller::Proxy, pe) }
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
