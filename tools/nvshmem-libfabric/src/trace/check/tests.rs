use nvshmem_recording::{Kind as Call, Record};

use super::*;
use crate::trace::tests::{at, job, region};

#[test]
fn a_missing_quiet_is_named_with_the_first_read() {
    let put = Record { bytes: 4096, remote: 0x2000, local: 0x4000, ..at(10, Call::Put, 1) };
    let get = Record { kind: Call::Get, time: 50, local: 0x6000, ..put };
    let records = [put, get, Record { time: 90, ..get }];
    let of = |records| Report::of(&job(2, &[(0, records), (1, &[])], &[region(0x1000, 0x8000)]));
    let found = of(&records[..]);
    assert_eq!(found.findings.len(), 2, "{}", found.text());
    let said =
        "a missing quiet: PE 0's get (record 1, 0.000 ms; 4096 bytes at PE 1, region 0 + 0x1000)";
    assert!(found.findings[0].starts_with(said), "{}", found.findings[0]);
    let none = of(&records[..1]).text();
    assert!(none.ends_with("\nnothing was read that was not ordered"), "{none}");
}
