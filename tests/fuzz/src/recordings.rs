//! Recordings of calls. What is read is written again as it was.

use nvshmem_recording::{Caller, Kind, Record, Recording, Region, encode};

use crate::Target;

pub(crate) const TARGET: Target = Target { name: "recording", short: 100, run, seeds };

fn run(input: &[u8]) {
    let recording = match Recording::decode(input) {
        Ok(recording) => recording,
        Err(why) => {
            assert!(!why.to_string().is_empty());
            return;
        }
    };
    let Recording { pe, n_pes, regions, records, .. } = &recording;
    assert!(records.len() as u64 * 64 <= input.len() as u64);
    let again = encode((*pe, *n_pes), records.len().max(1) as u64, regions, records);
    let again = Recording::decode(&again).unwrap();
    assert_eq!((&again.regions, &again.records), (regions, records));
    for record in records {
        if let Some((region, offset)) = recording.place(record.remote, record.time) {
            assert!(offset < regions[region].len);
        }
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let region = Region { base: 4096, len: 1 << 20, time: 3, local_only: false };
    let record = |time: u64, kind| Record {
        time,
        took: (time != 30).then_some(7),
        remote: 5000,
        local: 6000,
        bytes: 8,
        op: 9,
        ..Record::new(kind, Caller::Proxy, 1)
    };
    let records = [record(10, Kind::Put), record(20, Kind::Amo), record(30, Kind::Quiet)];
    vec![
        encode((0, 2), 8, &[region, region], &records),
        encode((1, 2), 2, &[region], &records),
        encode((0, 1), 1, &[], &[]),
    ]
}
