use nvshmem_recording::{Kind, Record};

use super::*;
use crate::trace::tests::{at, job};

const SEEDS: u64 = 40;

fn call(time: u64, kind: Kind, pe: u32) -> Record {
    Record { bytes: 4096, remote: 0x10_000 + time, local: 0x20_000, ..at(time, kind, pe) }
}

fn amo(time: u64, op: AtomicOp, pe: u32) -> Record {
    Record { op: op as u8, bytes: 8, ..call(time, Kind::Amo, pe) }
}

/// A program of every kind of call, which is in order.
fn everything() -> Vec<Record> {
    let mut records = Vec::new();
    for round in 0..30 {
        let (time, pe) = (round * 100_000, 1 - (round % 3 == 2) as u32);
        let part = Record { bytes: 100, ..call(time + 9_000, Kind::Part, pe) };
        let fetch = amo(time + 40_000, AtomicOp::FetchAdd, pe);
        let host = |time, kind| Record { caller: Caller::Host, ..call(time, kind, pe) };
        records.extend([
            call(time, Kind::Put, pe),
            amo(time + 8_000, AtomicOp::SignalAdd, pe),
            part,
            Record { op: 9, ..call(time + 9_001, Kind::PutSignal, pe) },
            host(time + 15_000, Kind::Put),
            host(time + 20_000, Kind::Fence),
            Record { bytes: 8, ..host(time + 21_000, Kind::P) },
            call(time + 30_000, Kind::Fence, pe),
            amo(time + 31_000, AtomicOp::Inc, pe),
            fetch,
            Record { bytes: 4, ..call(time + 50_000, Kind::P, pe) },
        ]);
        if round % 5 == 0 {
            records.push(call(time + 60_000, Kind::Quiet, pe));
            records.push(call(time + 70_000, Kind::Get, pe));
        }
    }
    records
}

#[test]
fn what_is_in_order_stays_in_order() {
    let (zero, one) = (everything(), everything());
    let job = job(2, &[(0, &zero), (1, &one)], &[]);
    let plan = Plan::of(&job, 1000);
    assert_eq!((plan.n_pes, plan.lanes.len(), plan.left_out), (2, 4, 0));
    assert!(plan.calls > 600);
    for seed in 1..=SEEDS / 2 {
        let outcome = run(&plan, seed, Signals::AsTheyAre);
        assert_eq!(outcome.broken, None, "seed {seed}");
    }
    // The proxy threads alone, so that memory may be staged.
    let only = |records: &[Record]| -> Vec<Record> {
        records.iter().filter(|record| record.caller == Caller::Proxy).copied().collect()
    };
    let (zero, one) = (only(&zero), only(&one));
    let job = crate::trace::tests::job(2, &[(0, &zero), (1, &one)], &[]);
    let plan = Plan::of(&job, 1000);
    for seed in 1..=SEEDS {
        let outcome = run(&plan, seed, Signals::AsTheyAre);
        assert_eq!(outcome.broken, None, "seed {seed}");
    }
}

/// What the transport did before signals that are sent apart from their data came behind it.
#[test]
fn a_signal_ahead_of_its_data_is_found() {
    let records: Vec<Record> = (0..10)
        .flat_map(|round| {
            let time = round * 1000;
            [call(time, Kind::Put, 1), amo(time + 500, AtomicOp::SignalSet, 1)]
        })
        .collect();
    let job = job(2, &[(0, &records)], &[]);
    let plan = Plan::of(&job, 1000);
    let (mut found, mut now) = (0, 0);
    for seed in 1..=SEEDS {
        now += u64::from(run(&plan, seed, Signals::AsTheyAre).broken.is_some());
        if let Some(broken) = run(&plan, seed, Signals::AsAtomics).broken {
            let Broken::Order { late, early, why } = broken else { panic!("{broken:?}") };
            assert!(early.at % 2 == 1 && late.at % 2 == 0 && late.at < early.at, "{why}");
            found += 1;
        }
    }
    assert_eq!(now, 0);
    assert!(found > SEEDS / 2, "{found} of {SEEDS}");
}

#[test]
fn the_oldest_calls_are_left_out_where_there_are_too_many() {
    let records = everything();
    let job = job(2, &[(0, &records)], &[]);
    let plan = Plan::of(&job, 20);
    assert!(plan.left_out > 200 && plan.lanes.iter().all(|lane| lane.steps.len() <= 20));
    assert_eq!(run(&plan, 1, Signals::AsTheyAre).broken, None);
    let none = crate::trace::tests::job(3, &[(0, &[])], &[]);
    let plan = Plan::of(&none, 20);
    assert_eq!((plan.n_pes, plan.calls), (1, 0));
    assert_eq!(run(&plan, 1, Signals::AsTheyAre).broken, None);
}
