//! The suites of host memory, on memory of a device.

use libtest_mimic::{Failed, Trial};
use nvshmem_sim::{JobSettings, Layout, MemoryKind};

use super::device::{Needs, job, staged};
use crate::fabric::Fabric;
use crate::matrix::run;
use crate::resident::RESIDENT;

/// Every provider; the two heaps that NVSHMEM has; one rail to four.
const KINDS: [MemoryKind; 2] = [MemoryKind::Device, MemoryKind::DeviceVmm];
const FABRICS: [Fabric; 3] = [Fabric::Rxm, Fabric::Tcp2, Fabric::Shm];

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for fabric in FABRICS {
        let on = fabric.name();
        for kind in KINDS {
            for rails in 1..=4 {
                trials.push(staged(
                    format!("{kind}::operations_{on}_2_pes_{rails}_rails"),
                    fabric,
                    Needs::Any,
                    move || {
                        // Every layout, spread over the numbers of rails.
                        let all = Layout::ALL.into_iter().enumerate();
                        all.filter(|(at, _)| at % 4 == usize::from(rails) - 1).try_for_each(
                            |(_, layout)| done(job(fabric, kind, "operations", 2, rails, layout)),
                        )
                    },
                ));
            }
            trials.push(staged(
                format!("{kind}::atomics_{on}_2_pes_2_rails"),
                fabric,
                Needs::Any,
                move || {
                    done(job(fabric, kind, "atomics", 2, 2, Layout::V3b))?;
                    done(job(fabric, kind, "atomics", 2, 2, Layout::V7))
                },
            ));
            trials.push(staged(
                format!("{kind}::order_{on}_3_pes_2_rails"),
                fabric,
                Needs::StandIn,
                move || done(job(fabric, kind, "order", 3, 2, Layout::V6)),
            ));
        }
        trials.push(staged(
            format!("device::operations_{on}_4_pes_2_rails"),
            fabric,
            Needs::StandIn,
            move || done(job(fabric, MemoryKind::Device, "operations", 4, 2, Layout::V7)),
        ));
        trials.push(staged(
            format!("device::order_{on}_2_pes_1_rails"),
            fabric,
            Needs::Any,
            move || done(job(fabric, MemoryKind::Device, "order", 2, 1, Layout::V3a)),
        ));
        for (n_pes, rails, needs) in
            [(2, 1, Needs::Any), (2, 4, Needs::Any), (4, 2, Needs::StandIn)]
        {
            for engine in ["auto", "chained", "eager", "counted"] {
                if engine != "auto" && rails == 1 {
                    continue;
                }
                trials.push(staged(
                    format!("device::signals_{on}_{n_pes}_pes_{rails}_rails_{engine}"),
                    fabric,
                    needs,
                    move || {
                        let most = if n_pes == 2 { 4 << 20 } else { 300_000 };
                        let layout = if rails == 1 { Layout::V3b } else { Layout::V7 };
                        let job = job(fabric, MemoryKind::Device, "signals", n_pes, rails, layout);
                        let job = job.env("NVSHMEM_LIBFABRIC_SIGNAL_ENGINE", engine);
                        // A place for each transfer under way, at either end.
                        let job = job.heap(96 << 20, 2 << 20);
                        done(job.param("rounds", 150).param("most", most))
                    },
                ));
            }
        }
        trials.push(staged(
            format!("vmm::signals_{on}_2_pes_2_rails"),
            fabric,
            Needs::Any,
            move || {
                let job = job(fabric, MemoryKind::DeviceVmm, "signals", 2, 2, Layout::V6);
                done(job.heap(96 << 20, 2 << 20).param("rounds", 150).param("most", 4 << 20))
            },
        ));
        trials.push(staged(
            format!("device::storm_{on}_4_pes"),
            fabric,
            Needs::StandIn,
            move || {
                let job = job(fabric, MemoryKind::Device, "storm", 4, 2, Layout::V7);
                done(job.param("operations", 8_000))
            },
        ));
        trials.push(staged(format!("device::storm_{on}_2_pes"), fabric, Needs::Any, move || {
            let job = job(fabric, MemoryKind::Device, "storm", 2, 2, Layout::V7);
            done(job.param("operations", 4_000).env("NVSHMEM_LIBFABRIC_QUEUE_DEPTH", 1))
        }));
        trials.push(staged(format!("managed::operations_{on}"), fabric, Needs::Any, move || {
            done(job(fabric, MemoryKind::Managed, "operations", 2, 2, Layout::V7))
        }));
        trials.push(staged(
            format!("vmm_pieces::operations_{on}"),
            fabric,
            Needs::Any,
            move || {
                let job = job(fabric, MemoryKind::DeviceVmmPieces, "operations", 2, 2, Layout::V7);
                done(job.heap_grows())
            },
        ));
        trials.push(staged(format!("device::cycles_{on}"), fabric, Needs::Any, move || {
            // The second layout's host unloads the plugin each time.
            done(job(fabric, MemoryKind::Device, "cycles", 2, 2, Layout::V7))?;
            done(job(fabric, MemoryKind::Device, "cycles", 2, 2, Layout::V5))
        }));
        trials.push(staged(
            format!("device::operations_{on}_under_a_kernel"),
            fabric,
            Needs::Any,
            move || {
                let job = job(fabric, MemoryKind::Device, "operations", 2, 2, Layout::V7);
                done(job.param(RESIDENT, true))
            },
        ));
        for (variable, value) in [
            ("NVSHMEM_LIBFABRIC_STAGING_CHUNK", "4K"),
            ("NVSHMEM_LIBFABRIC_STAGING_CHUNK", "4M"),
            ("NVSHMEM_LIBFABRIC_STAGING_DEPTH", "1"),
            ("NVSHMEM_LIBFABRIC_QUEUE_DEPTH", "1"),
        ] {
            let setting = variable.trim_start_matches("NVSHMEM_LIBFABRIC_").to_lowercase();
            let name = format!("device::{setting}_{}_{on}", value.to_lowercase());
            trials.push(staged(name, fabric, Needs::Any, move || {
                let with = |job: JobSettings| done(job.env(variable, value));
                with(job(fabric, MemoryKind::Device, "operations", 2, 2, Layout::V7))?;
                let signals = job(fabric, MemoryKind::Device, "signals", 2, 2, Layout::V7);
                with(signals.param("rounds", 60).param("most", 1 << 20))
            }));
        }
        trials.push(staged(
            format!("device::slow_copies_{on}"),
            fabric,
            Needs::StandIn,
            move || {
                let slow = |job: JobSettings| done(job.env("FAKE_CUDA_COPY_NS", 200_000));
                let signals = job(fabric, MemoryKind::Device, "signals", 2, 2, Layout::V7);
                slow(signals.param("rounds", 60).param("most", 1 << 20))?;
                slow(job(fabric, MemoryKind::Device, "atomics", 2, 1, Layout::V5))
            },
        ));
    }
    trials
}

/// Runs a job that is to succeed, cleanly, and whose PEs with device memory say that it is staged.
pub(crate) fn done(job: JobSettings) -> Result<(), Failed> {
    let memory = |pe| job.memory_of_pe.get(&pe).copied().unwrap_or(job.memory);
    let staged: Vec<u32> = (0..job.n_pes).filter(|pe| memory(*pe) != MemoryKind::Host).collect();
    let report = run(job)?;
    for pe in staged {
        let text = report.pes[pe as usize].text();
        if !text.contains("memory of devices is staged") {
            return Err(format!("PE {pe} does not say that it stages:\n{text}").into());
        }
    }
    Ok(())
}
