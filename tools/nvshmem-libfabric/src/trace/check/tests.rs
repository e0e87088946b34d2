use engine::atomic::AtomicOp;
use nvshmem_recording::{Kind as Call, Record};

use super::*;
use crate::trace::tests::{at, job, region};

fn put(time: u64) -> Record {
    Record { bytes: 4096, remote: 0x2000, local: 0x4000, ..at(time, Call::Put, 1) }
}

fn signal(time: u64) -> Record {
    let op = AtomicOp::SignalAdd as u8;
    Record { op, bytes: 8, remote: 0x1010, ..at(time, Call::Amo, 1) }
}

fn report(records: &[Record], signals: Signals) -> Report {
    let job = job(2, &[(0, records), (1, &[])], &[region(0x1000, 0x8000)]);
    Report::of(&job, Seeds::of(Some(20)), 100, signals)
}

#[test]
fn a_program_with_a_put_and_a_signal_is_well() {
    let report = report(&[put(10), signal(20)], Signals::AsTheyAre);
    assert_eq!(report.findings.len(), 0, "{}", report.text());
    assert!(report.text().contains("2 calls replayed with 20 seeds"), "{}", report.text());
}

#[test]
fn an_early_signal_is_named_by_the_replay() {
    // A transport that does not keep the order.
    let other = Record { pe: 0, ..put(15) };
    let found = report(&[put(5), put(10), other, signal(20)], Signals::AsAtomics);
    let [finding] = &found.findings[..] else { panic!("{}", found.text()) };
    assert_eq!(finding.kind, Kind::Replay);
    for text in [
        "a signal comes behind the puts before it",
        "PE 0's atomic SignalAdd (record 3",
        "region 0 + 0x10",
        "put (record ",
        " of 20 seeds, first with seed ",
    ] {
        assert!(finding.text.contains(text), "{}", finding.text);
    }
}

#[test]
fn a_missing_quiet_is_named_with_the_first_read() {
    let get = Record { kind: Call::Get, local: 0x6000, ..put(50) };
    let found = report(&[put(10), get, Record { time: 90, ..get }], Signals::AsTheyAre);
    assert_eq!(found.findings.len(), 2, "{}", found.text());
    let first = &found.findings[0];
    assert_eq!(first.kind, Kind::Unordered);
    assert!(first.text.contains("a missing quiet: PE 0's get (record 1"), "{}", first.text);
}

/// Files of few records may name many PEs.
#[test]
fn a_file_does_not_decide_how_long_it_is_replayed() {
    let records: Vec<Record> = (0..20).map(|at| Record { pe: at as u32, ..put(at) }).collect();
    let job = job(64, &[(0, &records)], &[region(0x1000, 0x8000)]);
    let of = |seeds| Report::of(&job, seeds, 100, Signals::AsTheyAre);
    let few = of(Seeds { work: Some(600), ..Seeds::of(None) });
    assert!((1..SEEDS).contains(&few.seeds), "{}", few.text());
    assert!(few.remarks.iter().any(|remark| remark.contains("--seeds 16")), "{:?}", few.remarks);
    assert_eq!(few.replayed, 20);
    // The user's number is kept, whatever it costs.
    assert_eq!(of(Seeds::of(Some(4))).seeds, 4);
    assert_eq!(of(Seeds::of(Some(0))).seeds, 0);
}
