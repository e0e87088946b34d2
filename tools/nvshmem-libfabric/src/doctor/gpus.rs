//! GPUs: how the transport reaches their memory, and what may keep its copies from running.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use cuda::StagingContext;
use nvshmem_transport_libfabric::settings::Settings;
use ofi::Devices;
use ofi::topology::{NicInputs, NicPlan, PciAddress, Topology};

use super::{Check, Row, note, ok, warning};
use crate::info::{Info, accepted};
use crate::probe::{Fabric, Gpus};

pub(super) fn checks(info: &Info) -> Vec<Row> {
    let gpus = info.gpus.clone().unwrap_or_default();
    if gpus.devices.is_empty() {
        return vec![("gpu", none(&gpus))];
    }
    let fabric = info.fabric.clone().unwrap_or_default();
    let (settings, ..) = accepted();
    let modules = Path::new("/sys/module");
    let lazy = gpus.loads_kernels_lazily;
    let distances = distances(&Topology::system(), &gpus, &fabric, &settings);
    [
        Some(("gpu", driver(&gpus))),
        distances.map(|check| ("nic-distance", check)),
        Some(("gpu-memory", memory(&gpus, &fabric))),
        Some(("peer-memory", peer_memory(&gpus, &fabric, modules))),
        Some(("gdrcopy", gdrcopy(&gpus, &settings))),
        Some(("staging-context", staging_context(lazy, &settings))),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn none(gpus: &Gpus) -> Check {
    let reason = gpus.error.as_deref().unwrap_or("the driver shows no device");
    // NVIDIA's displays and accelerators, as the kernel numbers them.
    let is = |path: &Path, file: &str, begins: &str| {
        fs::read_to_string(path.join(file)).is_ok_and(|text| text.starts_with(begins))
    };
    let devices = fs::read_dir("/sys/bus/pci/devices").into_iter().flatten().flatten();
    let displays = devices.map(|device| device.path());
    let displays = displays.filter(|at| is(at, "vendor", "0x10de") && is(at, "class", "0x03"));
    let name = |at: PathBuf| Some(at.file_name()?.to_string_lossy().into_owned());
    let seen: Vec<String> = displays.filter_map(name).collect();
    if seen.is_empty() {
        return note(format!("no GPU here, so all memory is the host's ({reason})"));
    }
    warning(
        format!("there are NVIDIA's devices, and CUDA's driver shows none: {reason}"),
        "install the driver that fits them; in a container, start it with the GPUs (--gpus all)",
    )
    .details(seen)
}

fn driver(gpus: &Gpus) -> Check {
    let devices = gpus.devices.iter().enumerate();
    let details = devices
        .map(|(at, gpu)| format!("{at}: {}, {}, compute {}", gpu.name, gpu.pci, gpu.compute));
    let driver = gpus.driver.as_deref().unwrap_or("CUDA's driver");
    ok(format!("{driver}; GPUs: {}", gpus.devices.len())).details(details.collect())
}

/// Lists the NICs that a PE on each GPU takes. None where no NIC has a PCI address.
fn distances(
    topology: &Topology,
    gpus: &Gpus,
    fabric: &Fabric,
    settings: &Settings,
) -> Option<Check> {
    let rails = &fabric.across_hosts.rails;
    let nics = rails.iter().map(|rail| rail.pci.as_ref()?.parse().ok());
    let nics: Vec<Option<PciAddress>> = nics.collect();
    nics.iter().flatten().next()?;
    let places: Vec<Option<PciAddress>> =
        gpus.devices.iter().map(|gpu| gpu.pci.parse().ok()).collect();
    let (mut details, mut far) = (Vec::new(), false);
    for (me, gpu) in gpus.devices.iter().enumerate() {
        let named = matches!(settings.devices, Devices::Include(_));
        let known = NicInputs { nics: &nics, gpus: &places, me, named, picked: &[] };
        let plan = NicPlan::make(topology, &known, usize::from(settings.max_nic_per_pe));
        let chosen = plan.nics.iter().map(|(nic, distance)| {
            far |= distance.is_some_and(|distance| distance > settings.gdr_level);
            let distance = distance.map_or_else(String::new, |is| format!(" ({is})"));
            format!("{}{distance}", rails[*nic].name)
        });
        let chosen = chosen.collect::<Vec<_>>().join(", ");
        details.push(format!("GPU {me}, {}: {}: {chosen}", gpu.pci, plan.decided));
        let is_used = |nic: usize| plan.nics.iter().any(|(used, _)| *used == nic);
        let others = (0..rails.len()).filter(|nic| !is_used(*nic)).filter_map(|nic| {
            let distance = topology.distance(places[me]?, nics[nic]?)?;
            Some(format!("{} ({distance})", rails[nic].name))
        });
        let others = others.collect::<Vec<_>>().join(", ");
        if !others.is_empty() {
            details.push(format!("  not its own: {others}"));
        }
    }
    let reason = "NICs of one PE on each GPU (LOC, PIX: nearest; PXB, PHB, NODE, SYS: farther)";
    if !far {
        return Some(ok(reason).details(details));
    }
    let level = settings.gdr_level.to_string().to_lowercase();
    let reason = format!(
        "{reason}; some are farther than NVSHMEM_LIBFABRIC_GDR_LEVEL={level}, so memory is staged"
    );
    let remedy = "name nearer ones with NVSHMEM_LIBFABRIC_DEVICES, or raise the level if the machine moves data well that far";
    Some(warning(reason, remedy).details(details))
}

fn memory(gpus: &Gpus, fabric: &Fabric) -> Check {
    let yes = |yes| if yes { "yes" } else { "no" };
    let details = gpus.devices.iter().enumerate().map(|(at, gpu)| {
        format!(
            "GPU {at}: GPUDirect RDMA {}, with VMM {}, dma-buf {}, writes of NICs ordered for {}",
            yes(gpu.gpudirect_rdma),
            yes(gpu.gpudirect_rdma_vmm),
            yes(gpu.dma_buf),
            gpu.writes_ordering
        )
    });
    let provider = fabric.across_hosts.provider.as_deref().unwrap_or("the provider");
    let check = match fabric.across_hosts.reaches_gpus {
        true => ok(format!("{provider} may reach it by itself; what it does not take is staged")),
        false => note(format!("it is staged through host memory: {provider} does not reach it")),
    };
    check.details(details.collect())
}

fn peer_memory(gpus: &Gpus, fabric: &Fabric, modules: &Path) -> Check {
    let dma_buf = gpus.devices.iter().all(|gpu| gpu.dma_buf);
    let mut names = ["nvidia_peermem", "nv_peer_mem"].into_iter();
    match (dma_buf, names.find(|name| modules.join(name).is_dir())) {
        (true, Some(module)) => ok(format!("the GPUs export dma-bufs, and {module} is loaded")),
        (true, None) => ok("the GPUs export dma-bufs, so no module for peer memory is needed"),
        (false, Some(module)) => ok(format!("no dma-bufs; {module} is loaded")),
        (false, None) if fabric.across_hosts.reaches_gpus => warning(
            "neither dma-bufs nor a module for peer memory, so NICs do not get at GPU memory, and it is staged",
            "modprobe nvidia_peermem, or use NVIDIA's open kernel modules on Linux 5.12 or newer, which export dma-bufs",
        ),
        (false, None) => note("neither dma-bufs nor a module for peer memory; staging needs none"),
    }
}

fn gdrcopy(gpus: &Gpus, settings: &Settings) -> Check {
    let maps_dma_bufs = gpus.devices.iter().any(|gpu| gpu.dma_buf_mmap);
    match &gpus.gdrcopy_error {
        None if settings.may_use_gdrcopy() => {
            ok("works: signals and atomics in GPU memory are reached by it")
        }
        _ if maps_dma_bufs && settings.may_map_dma_bufs() => {
            ok("not needed: signals and atomics in GPU memory are reached by dma-bufs")
        }
        Some(error) if settings.may_use_gdrcopy() => {
            note(format!("{error}; the driver's streams do its work, some microseconds slower"))
                .remedy(
                    "where signals have to be fast: a driver of CUDA 13.3, or GDRCopy 2.x and its module gdrdrv",
                )
        }
        _ => note("not used, as the settings say"),
    }
}

/// Checks whether calls of the program may hold up staged copies; `lazy` says that CUDA loads
/// kernels at their first launch.
pub(crate) fn staging_context(lazy: bool, settings: &Settings) -> Check {
    let disabled = env::var("NVSHMEM_DISABLE_CUDA_VMM").unwrap_or_default();
    let owned = !["", "0", "no", "false", "off"].contains(&disabled.to_lowercase().as_str());
    let queues = env::var("CUDA_DEVICE_MAX_CONNECTIONS").ok();
    staging_context_of(lazy, settings.staging_context, owned, queues.as_deref())
}

fn staging_context_of(
    lazy: bool,
    choice: StagingContext,
    owned: bool,
    queues: Option<&str>,
) -> Check {
    // So few queues that copies may wait behind a kernel.
    let few = queues.and_then(|queues| queues.trim().parse().ok()).is_some_and(|few: u32| few <= 3);
    match choice {
        StagingContext::Program if lazy || few => warning(
            "NVSHMEM_LIBFABRIC_STAGING_CONTEXT=program: staged memory is copied in the program's context, and a kernel that waits \
             for it stands still while another one is loaded, or where they share a queue of the GPU",
            "unset it, or set CUDA_MODULE_LOADING=EAGER and CUDA_DEVICE_MAX_CONNECTIONS=32",
        ),
        _ if owned => warning(
            "NVSHMEM_DISABLE_CUDA_VMM is set: the heap belongs to the program's context, so a kernel that waits for staged data stands \
             still while the program frees memory or loads code",
            "unset it",
        ),
        StagingContext::Program => ok("staged memory is copied in the program's context"),
        StagingContext::Auto | StagingContext::Own => ok(
            "staged memory is copied in a context of the transport's own, which no call of the program holds up",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;
    use crate::probe::{Choice, Gpu, Rail};

    fn gpus(dma_buf: bool, addresses: &[&str]) -> Gpus {
        let gpu = |pci: &&str| Gpu { pci: String::from(*pci), dma_buf, ..Gpu::default() };
        Gpus { devices: addresses.iter().map(gpu).collect(), ..Gpus::default() }
    }

    fn on(rails: &[(&str, &str)]) -> Fabric {
        let rail = |(name, pci): &(&str, &str)| {
            let (name, pci) = (String::from(*name), Some(String::from(*pci)));
            Rail { name, pci, ..Rail::default() }
        };
        let rails = rails.iter().map(rail).collect();
        let across_hosts = Choice { rails, reaches_gpus: true, ..Choice::default() };
        Fabric { across_hosts, ..Fabric::default() }
    }

    #[test]
    fn gpus_list_nics_with_distance() {
        let root = test_support::scratch::Scratch::new();
        let devices = test_support::topology::lay_out("h100-8-nics", &root);
        let [nic0, gpu0, nic1, gpu1] =
            [0, 1, 2, 3].map(|at: usize| (devices[at].0.as_str(), devices[at].1.as_str()));
        let (topology, settings) = (Topology::at(&*root), Settings::default());
        let gpus = gpus(false, &[gpu0.1, gpu1.1]);
        let check = distances(&topology, &gpus, &on(&[nic0, nic1]), &settings).unwrap();
        assert_eq!(check.verdict, Verdict::Ok);
        for (at, begins, ends) in [
            (0, "GPU 0", ": nic0 (PXB)"),
            (1, "  not its own: ", "nic1 (NODE)"),
            (2, "GPU 1", ": nic1 (PXB)"),
        ] {
            let line = &check.details[at];
            assert!(line.starts_with(begins) && line.ends_with(ends), "{check:?}");
        }
        assert!(distances(&topology, &gpus, &on(&[]), &settings).is_none());
        let crossed =
            Settings { devices: Devices::Include(vec![String::from("nic1")]), ..settings };
        let warned = distances(&topology, &gpus, &on(&[nic1]), &crossed).unwrap();
        assert_eq!(warned.verdict, Verdict::Warning, "{warned:?}");
        assert!(warned.details[0].contains("named by"), "{warned:?}");
    }

    #[test]
    fn missing_peer_memory_is_reported() {
        let modules = launcher::PrivateDir::new("tool-modules").unwrap();
        let verdict = |dma_buf, fabric: &Fabric| {
            peer_memory(&gpus(dma_buf, &["0000:02:00.0"]), fabric, modules.path()).verdict
        };
        assert_eq!(verdict(false, &on(&[])), Verdict::Warning);
        assert_eq!(verdict(false, &Fabric::default()), Verdict::Note);
        assert_eq!(verdict(true, &on(&[])), Verdict::Ok);
        fs::create_dir(modules.path().join("nvidia_peermem")).unwrap();
        assert_eq!(verdict(false, &on(&[])), Verdict::Ok);
    }

    #[test]
    fn blocked_copies_are_warned_of() {
        use StagingContext::{Auto, Own, Program};
        for (lazy, choice, owned, queues, verdict) in [
            (true, Auto, false, Some("1"), Verdict::Ok),
            (true, Own, false, Some("1"), Verdict::Ok),
            (true, Auto, true, None, Verdict::Warning),
            (true, Own, true, None, Verdict::Warning),
            (true, Program, false, None, Verdict::Warning),
            (false, Program, false, Some("3"), Verdict::Warning),
            (false, Program, false, Some("32"), Verdict::Ok),
        ] {
            let check = staging_context_of(lazy, choice, owned, queues);
            assert_eq!(check.verdict, verdict, "{lazy} {choice:?} {owned} {queues:?}");
        }
    }
}
