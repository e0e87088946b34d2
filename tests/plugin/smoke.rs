//! A short run of every layout, as `make quick` and the shipped plugin have it.

use libtest_mimic::Trial;
use nvshmem_sim::Layout;

use crate::fabric::{Fabric, trial};
use crate::matrix::done;

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (at, layout) in Layout::ALL.into_iter().enumerate() {
        for fabric in [[Fabric::Tcp2, Fabric::Rxm][at % 2], Fabric::Shm] {
            let name = format!("smoke::layout_{layout}_{}", fabric.name());
            trials.push(trial(name, Some(fabric), move || {
                let signals = fabric.job("signals", 2, 2, layout).heap(32 << 20, 1 << 20);
                done(signals.param("rounds", 60).param("most", 300_000))?;
                done(fabric.job("atomics", 2, 1, layout))?;
                done(fabric.job("storm", 2, 2, layout).param("operations", 4_000))
            }));
        }
    }
    trials
}
