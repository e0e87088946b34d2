//! The scenarios of host memory on memory of a device. Staging knows nothing of layouts: the rows
//! have each kind of memory, each setting of staging and each way of signals, on each fabric.

use libtest_mimic::{Failed, Trial};
use nvshmem_sim::{JobSettings, Layout, MemoryKind};

use super::device::{Needs, job, staged};
use crate::fabric::Fabric::{self, Rxm, Shm, Tcp2};
use crate::fabric::says;
use crate::matrix::{Setting, place, run, signal_engine, with, words};
use nvshmem_sim::MemoryKind::{Device, DeviceVmm, DeviceVmmPieces, Host, Managed};
use nvshmem_sim::traffic::RESIDENT;

#[derive(Clone, Copy, Debug)]
struct Row(Fabric, MemoryKind, u32, u8, Layout, Setting);

impl Row {
    fn job(self, scenario: &str) -> JobSettings {
        let Self(fabric, kind, n_pes, rails, layout, setting) = self;
        with(job(fabric, kind, scenario, n_pes, rails, layout), setting)
    }

    fn trial(
        self,
        scenario: &str,
        end: &str,
        job: impl FnOnce() -> JobSettings + Send + 'static,
    ) -> Trial {
        let Self(fabric, kind, n_pes, rails, layout, setting) = self;
        let place = place(fabric, n_pes, rails, layout) + &words(setting);
        // More PEs than two share a machine's GPU badly.
        let needs = if n_pes > 2 { Needs::StandIn } else { Needs::Any };
        staged(format!("{kind}::{scenario}_{place}{end}"), fabric, needs, move || done(job()))
    }
}

const OPERATIONS: [(Row, bool); 5] = [
    (Row(Shm, Device, 2, 2, Layout::V7, None), true),
    (Row(Tcp2, DeviceVmm, 2, 1, Layout::V6, Some(("STAGING_CHUNK", "4K"))), true),
    (Row(Rxm, Managed, 2, 4, Layout::V4, Some(("STAGING_DEPTH", "1"))), false),
    (Row(Tcp2, DeviceVmmPieces, 4, 2, Layout::V5, None), false),
    (Row(Rxm, DeviceVmm, 2, 2, Layout::V7, Some(("queue_depth", "1"))), false),
];

const SIGNALS: [(Row, &str); 4] = [
    (Row(Tcp2, DeviceVmm, 2, 2, Layout::V7, None), "auto"),
    (Row(Rxm, Device, 2, 2, Layout::V6, Some(("STAGING_CHUNK", "4M"))), "counted"),
    (Row(Shm, DeviceVmm, 4, 2, Layout::V5, Some(("queue_depth", "1"))), "eager"),
    (Row(Tcp2, Device, 2, 4, Layout::V3b, Some(("STAGING_DEPTH", "1"))), "chained"),
];

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    trials.extend(OPERATIONS.map(|(row, kernel)| operations(row, kernel)));
    trials.extend(SIGNALS.map(|(row, engine)| signals(row, engine)));
    let atomics = Row(Rxm, Device, 2, 1, Layout::V6, None);
    trials.push(atomics.trial("atomics", "", move || atomics.job("atomics")));
    let order = Row(Tcp2, DeviceVmm, 2, 2, Layout::V3a, None);
    trials.push(order.trial("order", "", move || order.job("order")));
    let storm = Row(Shm, Device, 2, 2, Layout::V7, Some(("queue_depth", "1")));
    trials.push(storm.trial("storm", "", move || storm.job("storm").param("operations", 4_000)));
    let cycles = Row(Rxm, Device, 2, 2, Layout::V7, None);
    trials.push(cycles.trial("cycles", "", move || cycles.job("cycles")));
    // Host and device on the two sides, and every kind of heap in one job.
    let mixed = Row(Tcp2, DeviceVmm, 2, 2, Layout::V7, None);
    trials.push(
        mixed.trial("operations", "_mixed", move || mixed.job("operations").memory_of_pe(1, Host)),
    );
    let mixed = Row(Shm, Device, 2, 2, Layout::V7, None);
    trials
        .push(mixed.trial("atomics", "_mixed", move || mixed.job("atomics").memory_of_pe(0, Host)));
    let mixed = Row(Shm, Device, 4, 2, Layout::V6, None);
    trials.push(mixed.trial("operations", "_all_kinds", move || {
        let job = mixed.job("operations").memory_of_pe(1, Host);
        job.memory_of_pe(2, DeviceVmm).memory_of_pe(3, Managed)
    }));
    let slow = Row(Shm, Device, 2, 2, Layout::V7, None);
    let name = String::from("device::slow_copies_shm");
    trials.push(staged(name, Shm, Needs::StandIn, move || {
        let job = slow.job("signals").param("rounds", 40).param("most", 1 << 20);
        done(job.env("FAKE_CUDA_COPY_NS", 200_000))
    }));
    trials
}

fn operations(row: Row, kernel: bool) -> Trial {
    let under = if kernel { "_under_kernel" } else { "" };
    row.trial("operations", under, move || {
        let job = row.job("operations");
        let job = if row.1 == DeviceVmmPieces { job.heap_grows() } else { job };
        if kernel { job.param(RESIDENT, true) } else { job }
    })
}

fn signals(row: Row, engine: &'static str) -> Trial {
    row.trial("signals", &format!("_{engine}"), move || {
        let most = if row.2 == 2 && row.5.is_none() { 4 << 20 } else { 300_000 };
        let job = signal_engine(row.job("signals"), engine);
        // A place for each transfer in flight, at either end.
        job.heap(96 << 20, 2 << 20).param("rounds", 60).param("most", most)
    })
}

pub(crate) fn done(job: JobSettings) -> Result<(), Failed> {
    let memory = |pe| job.memory_of_pe.get(&pe).copied().unwrap_or(job.memory);
    let staged: Vec<u32> = (0..job.n_pes).filter(|pe| memory(*pe) != MemoryKind::Host).collect();
    let report = run(job)?;
    for pe in staged {
        let text = report.pes[pe as usize].text();
        says(&text, "memory of devices is staged")?;
    }
    Ok(())
}
