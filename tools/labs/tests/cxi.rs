//! The plugin on a strict mock of cxi (`tools/labs/cxi`), which keeps cxi's rules over libfabric's
//! tcp and aborts the process that breaks one.

use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use nvshmem_sim::traffic::RESIDENT;
use nvshmem_sim::{JobSettings, MemoryKind};
use test_support::built::fake_cuda_dir;
use test_support::needs::{self, Need, libfabric2};

use crate::job::{SCENARIOS, cases, cxi_library, job, run, says, warns};

const VERSIONS: [&str; 5] = ["2.6", "2.4", "2.2", "1.22", "1.20"];

/// What heaps of devices are made of: NVSHMEM's, with `NVSHMEM_DISABLE_CUDA_VMM=1` and without.
const KINDS: [MemoryKind; 2] = [MemoryKind::Device, MemoryKind::DeviceVmm];

const THREADING: [&str; 4] = ["auto", "domain", "completion", "safe"];

const SHAPES: [(u32, u8); 3] = [(2, 2), (4, 1), (4, 4)];

const CARRIERS: [&str; 2] = ["second", "system"];

fn carrier(name: &str) -> Need<String> {
    match name {
        "system" => Ok(String::from("libfabric.so.1")),
        _ => libfabric2().map(|path| path.display().to_string()),
    }
}

fn on_cxi(job: JobSettings, carrier: &str, version: &str) -> JobSettings {
    job.env("NVSHMEM_LIBFABRIC_PROVIDER", "cxi")
        .env("NVSHMEM_LIBFABRIC_LIBRARY", cxi_library())
        .env("CXI_LAB_LIBFABRIC", carrier)
        .env("CXI_LAB_VERSION", version)
}

/// A trial carried by the second libfabric.
fn trial(name: &str, run: impl FnOnce(String) -> Result<(), Failed> + Send + 'static) -> Trial {
    needs::trial(format!("cxi::{name}"), carrier("second"), run)
}

pub(crate) fn trials() -> Vec<Trial> {
    let sizes = [VERSIONS.len(), CARRIERS.len(), THREADING.len(), SHAPES.len(), SCENARIOS.len()];
    let mut trials: Vec<Trial> = cases(sizes)
        .map(|[version, by, threading, shape, scenario]| {
            let (version, threading) = (VERSIONS[version], THREADING[threading]);
            let ((n_pes, nics), scenario) = (SHAPES[shape], SCENARIOS[scenario]);
            let by = CARRIERS[by];
            let name =
                format!("cxi::{scenario}_{version}_{by}_{threading}_{n_pes}_pes_{nics}_nics");
            needs::trial(name, carrier(by), move |carrier| {
                // Chunks are registered while the proxy thread polls.
                let job = small(job(scenario, n_pes)).heap(32 << 20, 1 << 20).heap_grows();
                let job = on_cxi(job, &carrier, version).env("CXI_LAB_NICS", nics);
                let job = if threading == "auto" { job } else { job.debug("threading", threading) };
                for pe in run(job)?.pes {
                    says(&pe.text(), "provider cxi with ")?;
                    costs_nothing(&pe.text())?;
                }
                Ok(())
            })
        })
        .collect();
    trials.extend(on_devices());
    trials.extend(by_setting());
    trials.extend(out_of_room());
    trials
}

fn on_devices() -> Vec<Trial> {
    let trial_of = |[version, kind, scenario]: [usize; 3]| {
        let (version, kind) = (VERSIONS[version], KINDS[kind]);
        let scenario = SCENARIOS[scenario];
        trial(&format!("devices_{scenario}_{version}_{kind}"), move |carrier| {
            let way = match version {
                "2.6" => "rail(s) by dma-buf",
                _ => "rail(s) by FI_HMEM_CUDA (dma-buf: not with this provider and version)",
            };
            let job = on_cxi(with_devices(scenario, 2, kind), &carrier, version);
            let report = run(job)?;
            for pe in report.pes {
                says(&pe.text(), way)?;
                costs_nothing(&pe.text())?;
            }
            Ok(())
        })
    };
    cases([VERSIONS.len(), KINDS.len(), SCENARIOS.len()]).map(trial_of).collect()
}

fn by_setting() -> Vec<Trial> {
    let mut trials = Vec::new();
    for variable in ["FI_MR_CACHE_MAX_COUNT", "FI_MR_CUDA_CACHE_MONITOR_ENABLED"] {
        trials.push(trial(&format!("staged_without_{variable}"), move |carrier| {
            // Registrations begin within allocations.
            let job = with_devices("operations", 2, MemoryKind::Device).env(variable, 0);
            for pe in on_cxi(job, &carrier, "2.6").run()?.check()?.pes {
                let set = format!("{variable}=0");
                warns(&pe.text(), &["memory of devices is staged: ", &set, "unset it"])?;
            }
            Ok(())
        }));
    }
    for (way, monitor) in [("by_default", None), ("named_by_user", Some("kdreg2"))] {
        trials.push(trial(&format!("staged_without_monitor_{way}"), move |carrier| {
            let job = without_a_monitor(&carrier, "2.4");
            let job = monitor.into_iter().fold(job, |job, name| job.env(MONITOR, name));
            // Libfabric's own log goes on, for whoever reads it.
            for log in ["", "warn"] {
                let job =
                    if log.is_empty() { job.clone() } else { job.clone().env("FI_LOG_LEVEL", log) };
                for pe in job.run()?.check()?.pes {
                    let text = pe.text();
                    let staged = "memory of devices is staged: ";
                    warns(&text, &[staged, "MR caching disabled", MONITOR])?;
                    if text.lines().any(|line| line.starts_with("libfabric:")) == log.is_empty() {
                        return Err(format!("FI_LOG_LEVEL={log}:\n{text}").into());
                    }
                }
            }
            Ok(())
        }));
    }
    trials.push(trial("another_monitor_reaches_devices", |carrier| {
        for pe in run(without_a_monitor(&carrier, "2.6").env(MONITOR, "memhooks"))?.pes {
            says(&pe.text(), "rail(s) by dma-buf")?;
            costs_nothing(&pe.text())?;
        }
        Ok(())
    }));
    trials.push(trial("nvidia_transports_settings", |carrier| {
        let job = with_devices("connect", 2, MemoryKind::DeviceVmm)
            .env("FI_CXI_DISABLE_HMEM_DEV_REGISTER", 1)
            .env("FI_CXI_OPTIMIZED_MRS", 0)
            .env("FI_HMEM_CUDA_USE_GDRCOPY", 1)
            .env("NVSHMEM_LIBFABRIC_GPU_DIRECT", "always");
        for pe in run(on_cxi(job, &carrier, "2.6"))?.pes {
            says(&pe.text(), "rail(s) by dma-buf")?;
        }
        Ok(())
    }));
    trials.push(trial("user_settings_stay", |carrier| {
        let job = with_devices("connect", 2, MemoryKind::Device).env("FI_CXI_OPTIMIZED_MRS", 1);
        let other = ("FI_CXI_DISABLE_NON_INJECT_RMA_IDC", 0);
        for (job, copies) in [(job.clone(), false), (job.env(other.0, other.1), true)] {
            for pe in run(on_cxi(job, &carrier, "2.6"))?.pes {
                let text = pe.text();
                says(&text, "a region is optimised")?;
                says(&text, "FI_CXI_OPTIMIZED_MRS=1 is the user's")?;
                // CUDA's copies would be wrong there.
                if text.contains(COPIES) != copies {
                    return Err(format!("{COPIES:?} in:\n{text}").into());
                }
            }
        }
        Ok(())
    }));
    trials
}

/// What a NIC has so much of: match entries, buffers for unexpected messages, endpoints.
fn out_of_room() -> Vec<Trial> {
    vec![
        trial("more_messages_than_match_entries", |carrier| {
            let job = small(job("signals", 4)).heap(96 << 20, 1 << 20);
            let job = job.env("FI_CXI_DEFAULT_RX_SIZE", 4).env("CXI_LAB_MATCH_ENTRIES", 5);
            run(on_cxi(job, &carrier, "2.6")).map(drop)
        }),
        trial("more_unexpected_messages_than_buffers", |carrier| {
            let job = with_devices("signals", 4, MemoryKind::Device);
            let job = job.env("FI_CXI_DEFAULT_RX_SIZE", 1).env("CXI_LAB_OVERFLOW_BYTES", 64);
            run(on_cxi(job, &carrier, "2.6")).map(drop)
        }),
        trial("fewer_endpoints_than_lanes", |carrier| {
            let job = job("connect", 2).grace(Duration::from_secs(30));
            for pe in on_cxi(job, &carrier, "2.6").env("CXI_LAB_ENDPOINTS", 1).run()?.pes {
                says(&pe.text(), "host lane: fi_enable failed: No space left on device")?;
                says(&pe.text(), "the NIC's service has no room for another endpoint")?;
            }
            Ok(())
        }),
    ]
}

fn small(job: JobSettings) -> JobSettings {
    job.param("rounds", 60).param("most", 300_000).param("operations", 4_000)
}

fn with_devices(scenario: &str, n_pes: u32, kind: MemoryKind) -> JobSettings {
    let job = small(job(scenario, n_pes)).memory(kind).heap(96 << 20, 2 << 20);
    job.library_path(fake_cuda_dir()).param(RESIDENT, true)
}

const MONITOR: &str = "FI_MR_CACHE_MONITOR";

fn without_a_monitor(carrier: &str, version: &str) -> JobSettings {
    let job = with_devices("operations", 2, MemoryKind::Device).env("CXI_LAB_KDREG2", 0);
    on_cxi(job, carrier, version)
}

const COPIES: &str = "CUDA copies small writes";

fn costs_nothing(text: &str) -> Result<(), Failed> {
    says(text, ": the order of writes is free")?;
    let wrong = [
        "the order of writes is ordered",
        "a region is optimised",
        "GDRCopy maps",
        "CUDA is asked about memory",
        COPIES,
        "carry nothing",
    ];
    if let Some(wrong) = wrong.into_iter().find(|wrong| text.contains(wrong)) {
        return Err(format!("{wrong:?} in:\n{text}").into());
    }
    let queues = text.lines().filter_map(|line| line.strip_suffix(" completions"));
    let sizes = queues.filter_map(|line| line.rsplit(' ').next()?.parse::<usize>().ok());
    match sizes.min() {
        Some(16384..) => Ok(()),
        least => Err(format!("the smallest queue is {least:?}:\n{text}").into()),
    }
}
