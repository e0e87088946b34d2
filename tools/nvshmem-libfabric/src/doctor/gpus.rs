//! GPUs: how the transport reaches their memory, and what may keep its copies from running.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use cuda::StagingContext;
use nvshmem_transport_libfabric::settings::Settings;
use ofi::Devices;
use ofi::topology::{Known, PciAddress, Plan, Topology};

use super::Check;
use crate::info::{Info, accepted};
use crate::probe::{Fabric, Gpus, Rail};

const NVIDIA: &str = "0x10de";
const DISPLAY: &str = "0x03";

pub(super) fn checks(info: &Info) -> Vec<Check> {
    let gpus = info.gpus.clone().unwrap_or_default();
    if gpus.devices.is_empty() {
        return vec![none(&gpus)];
    }
    let fabric = info.fabric.clone().unwrap_or_default();
    let (settings, ..) = accepted();
    let mut checks = vec![driver(&gpus)];
    checks.extend(distances(&Topology::system(), &gpus, &fabric, &settings));
    checks.push(memory(&gpus, &fabric));
    checks.push(peer_memory(&gpus, &fabric, Path::new("/sys/module")));
    checks.push(gdrcopy(&gpus, &settings));
    checks.push(staging_context(gpus.loads_kernels_lazily, &settings));
    checks
}

fn none(gpus: &Gpus) -> Check {
    let reason = gpus.error.as_deref().unwrap_or("the driver shows no device");
    let seen = pci_displays(Path::new("/sys/bus/pci/devices"));
    if seen.is_empty() {
        return Check::note("gpu", format!("no GPU here, so all memory is the host's ({reason})"));
    }
    Check::warning(
        "gpu",
        format!("there are NVIDIA's devices, and CUDA's driver shows none: {reason}"),
        "install the driver that fits them; in a container, start it with the GPUs (--gpus all)",
    )
    .details(seen)
}

fn pci_displays(devices: &Path) -> Vec<String> {
    let entries = fs::read_dir(devices).into_iter().flatten().flatten();
    let is = |path: &PathBuf, file: &str, begins: &str| {
        fs::read_to_string(path.join(file)).is_ok_and(|text| text.starts_with(begins))
    };
    let displays = entries.map(|entry| entry.path());
    let displays = displays.filter(|path| is(path, "vendor", NVIDIA) && is(path, "class", DISPLAY));
    displays
        .map(|path| path.file_name().unwrap_or_default().to_string_lossy().into_owned())
        .collect()
}

fn driver(gpus: &Gpus) -> Check {
    let details = gpus
        .devices
        .iter()
        .enumerate()
        .map(|(at, gpu)| format!("{at}: {}, {}, compute {}", gpu.name, gpu.pci, gpu.compute));
    let driver = gpus.driver.as_deref().unwrap_or("CUDA's driver");
    Check::ok("gpu", format!("{driver}; GPUs: {}", gpus.devices.len())).details(details.collect())
}

fn distances(
    topology: &Topology,
    gpus: &Gpus,
    fabric: &Fabric,
    settings: &Settings,
) -> Option<Check> {
    let rails = &fabric.across_hosts.rails;
    let address = |rail: &Rail| rail.pci.as_deref().and_then(|pci| pci.parse::<PciAddress>().ok());
    let nics: Vec<Option<PciAddress>> = rails.iter().map(address).collect();
    if nics.iter().all(Option::is_none) {
        return None;
    }
    let places: Vec<Option<PciAddress>> =
        gpus.devices.iter().map(|gpu| gpu.pci.parse().ok()).collect();
    let (mut details, mut far) = (Vec::new(), false);
    for (me, gpu) in gpus.devices.iter().enumerate() {
        let named = matches!(settings.devices, Devices::Include(_));
        let known = Known { nics: &nics, gpus: &places, me, named, picked: &[] };
        let plan = Plan::make(topology, &known, usize::from(settings.max_nic_per_pe));
        let chosen = plan.nics.iter().map(|(nic, distance)| match distance {
            Some(distance) => {
                far |= *distance > settings.gdr_level;
                format!("{} ({distance})", rails[*nic].name)
            }
            None => rails[*nic].name.clone(),
        });
        let chosen: Vec<String> = chosen.collect();
        details.push(format!("GPU {me}, {}: {}: {}", gpu.pci, plan.decided, chosen.join(", ")));
        let others = rails
            .iter()
            .enumerate()
            .filter(|(nic, _)| plan.nics.iter().all(|(used, _)| used != nic));
        let others = others.filter_map(|(nic, rail)| {
            Some(format!("{} ({})", rail.name, topology.distance(places[me]?, nics[nic]?)?))
        });
        let others: Vec<String> = others.collect();
        if !others.is_empty() {
            details.push(format!("  not its own: {}", others.join(", ")));
        }
    }
    let reason = "NICs of one PE on each GPU (LOC, PIX: nearest; PXB, PHB, NODE, SYS: farther)";
    Some(match far {
        false => Check::ok("nic-distance", reason).details(details),
        true => Check::warning(
            "nic-distance",
            format!("{reason}; some are farther than NVSHMEM_LIBFABRIC_GDR_LEVEL={}, so memory is staged", settings.gdr_level.to_string().to_lowercase()),
            "name nearer ones with NVSHMEM_LIBFABRIC_DEVICES, or raise the level if the machine moves data well that far",
        )
        .details(details),
    })
}

fn memory(gpus: &Gpus, fabric: &Fabric) -> Check {
    const ID: &str = "gpu-memory";
    let details = gpus.devices.iter().enumerate().map(|(at, gpu)| {
        let yes = |yes| if yes { "yes" } else { "no" };
        format!(
            "GPU {at}: GPUDirect RDMA {}, with VMM {}, dma-buf {}, writes of NICs ordered for {}",
            yes(gpu.gpudirect_rdma),
            yes(gpu.gpudirect_rdma_vmm),
            yes(gpu.dma_buf),
            gpu.writes_ordering
        )
    });
    let details = details.collect();
    let provider = fabric.across_hosts.provider.as_deref().unwrap_or("the provider");
    if fabric.across_hosts.reaches_gpus {
        return Check::ok(
            ID,
            format!("{provider} may reach it by itself; what it does not take is staged"),
        )
        .details(details);
    }
    Check::note(ID, format!("it is staged through host memory: {provider} does not reach it"))
        .details(details)
}

fn peer_memory(gpus: &Gpus, fabric: &Fabric, modules: &Path) -> Check {
    const ID: &str = "peer-memory";
    let dma_buf = gpus.devices.iter().all(|gpu| gpu.dma_buf);
    let module =
        ["nvidia_peermem", "nv_peer_mem"].into_iter().find(|name| modules.join(name).is_dir());
    match (dma_buf, module) {
        (true, Some(module)) => {
            Check::ok(ID, format!("the GPUs export dma-bufs, and {module} is loaded"))
        }
        (true, None) => {
            Check::ok(ID, "the GPUs export dma-bufs, so no module for peer memory is needed")
        }
        (false, Some(module)) => Check::ok(ID, format!("no dma-bufs; {module} is loaded")),
        (false, None) if fabric.across_hosts.reaches_gpus => Check::warning(
            ID,
            "neither dma-bufs nor a module for peer memory, so NICs do not get at GPU memory, and it is staged",
            "modprobe nvidia_peermem, or use NVIDIA's open kernel modules on Linux 5.12 or newer, which export dma-bufs",
        ),
        (false, None) => {
            Check::note(ID, "neither dma-bufs nor a module for peer memory; staging needs none")
        }
    }
}

fn gdrcopy(gpus: &Gpus, settings: &Settings) -> Check {
    const ID: &str = "gdrcopy";
    if !settings.may_use_gdrcopy() {
        return Check::note(ID, "not used, as the settings say");
    }
    match &gpus.gdrcopy_error {
        None => Check::ok(ID, "works: signals and atomics in GPU memory are reached by it"),
        Some(error) => Check::note(
            ID,
            format!("{error}; the driver's streams do its work, some microseconds slower"),
        )
        .remedy("where signals have to be fast: install GDRCopy 2.x and load its module gdrdrv"),
    }
}

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
    const ID: &str = "staging-context";
    // So few queues that copies may wait behind a kernel.
    let few = queues.and_then(|queues| queues.trim().parse().ok()).is_some_and(|few: u32| few <= 3);
    match choice {
        StagingContext::Program if lazy || few => Check::warning(
            ID,
            "NVSHMEM_LIBFABRIC_STAGING_CONTEXT=program: staged memory is copied in the program's context, and a kernel that waits \
             for it stands still while another one is loaded, or where they share a queue of the GPU",
            "unset it, or set CUDA_MODULE_LOADING=EAGER and CUDA_DEVICE_MAX_CONNECTIONS=32",
        ),
        _ if owned => Check::warning(
            ID,
            "NVSHMEM_DISABLE_CUDA_VMM is set: the heap belongs to the program's context, so a kernel that waits for staged data stands \
             still while the program frees memory or loads code",
            "unset it",
        ),
        StagingContext::Program => {
            Check::ok(ID, "staged memory is copied in the program's context")
        }
        StagingContext::Auto | StagingContext::Own => Check::ok(
            ID,
            "staged memory is copied in a context of the transport's own, which no call of the program holds up",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;
    use crate::probe::{Choice, Gpu};

    fn gpu(pci: &str) -> Gpu {
        Gpu {
            name: String::from("a GPU"),
            pci: pci.to_owned(),
            compute: String::from("9.0"),
            gpudirect_rdma: true,
            gpudirect_rdma_vmm: true,
            dma_buf: false,
            writes_ordering: String::from("owner"),
            numa_node: None,
        }
    }

    fn on(rails: &[(&str, &str)]) -> Fabric {
        let rail = |(name, pci): &(&str, &str)| Rail {
            name: (*name).to_owned(),
            fabric: String::new(),
            link_speed: None,
            pci: Some((*pci).to_owned()),
            threads: 0,
        };
        let across_hosts = Choice {
            provider: Some(String::from("efa")),
            rails: rails.iter().map(rail).collect(),
            reaches_gpus: true,
            ..Choice::default()
        };
        Fabric { across_hosts, ..Fabric::default() }
    }

    #[test]
    fn gpus_list_nics_with_distance() {
        let scratch = launcher::PrivateDir::new("tool-tree").unwrap();
        let scratch = scratch.path();
        // Two switches, each with a GPU and a NIC.
        for (switch, gpu, nic) in
            [("00:01.0", "02:00.0", "03:00.0"), ("00:02.0", "05:00.0", "06:00.0")]
        {
            for (port, device) in [("01:00.0", gpu), ("01:01.0", nic)] {
                let directory = scratch
                    .join(format!("devices/pci0000:00/0000:{switch}/0000:{port}/0000:{device}"));
                fs::create_dir_all(&directory).unwrap();
                fs::create_dir_all(scratch.join("bus/pci/devices")).unwrap();
                let link = scratch.join(format!("bus/pci/devices/0000:{device}"));
                std::os::unix::fs::symlink(&directory, link).unwrap();
            }
        }
        let gpus =
            Gpus { devices: vec![gpu("0000:02:00.0"), gpu("0000:05:00.0")], ..Gpus::default() };
        let fabric = on(&[("near", "0000:03:00.0"), ("far", "0000:06:00.0")]);
        let settings = Settings::default();
        let check = distances(&Topology::at(scratch), &gpus, &fabric, &settings).unwrap();
        let crossed = Settings { devices: Devices::Include(vec![String::from("far")]), ..settings };
        let only = on(&[("far", "0000:06:00.0")]);
        let warned = distances(&Topology::at(scratch), &gpus, &only, &crossed).unwrap();
        assert_eq!(check.verdict, Verdict::Ok);
        assert!(
            check.details[0].contains("GPU 0") && check.details[0].ends_with(": near (PIX)"),
            "{check:?}"
        );
        assert!(check.details[1].contains("not its own: far (PHB)"), "{check:?}");
        assert!(
            check.details[2].contains("GPU 1") && check.details[2].ends_with(": far (PIX)"),
            "{check:?}"
        );
        assert_eq!(warned.verdict, Verdict::Warning, "{warned:?}");
        assert!(warned.details[0].contains("named by"), "{warned:?}");
        assert!(
            distances(&Topology::system(), &gpus, &Fabric::default(), &Settings::default())
                .is_none()
        );
    }

    #[test]
    fn missing_peer_memory_is_reported() {
        let gpus = Gpus { devices: vec![gpu("0000:02:00.0")], ..Gpus::default() };
        let nowhere = Path::new("/nonexistent");
        let verdict =
            |gpus: &Gpus, fabric: &Fabric, modules| peer_memory(gpus, fabric, modules).verdict;
        assert_eq!(verdict(&gpus, &on(&[]), nowhere), Verdict::Warning);
        assert_eq!(verdict(&gpus, &Fabric::default(), nowhere), Verdict::Note);
        let exports =
            Gpus { devices: vec![Gpu { dma_buf: true, ..gpu("0000:02:00.0") }], ..Gpus::default() };
        assert_eq!(verdict(&exports, &on(&[]), nowhere), Verdict::Ok);
        let modules = launcher::PrivateDir::new("tool-modules").unwrap();
        fs::create_dir(modules.path().join("nvidia_peermem")).unwrap();
        assert_eq!(verdict(&gpus, &on(&[]), modules.path()), Verdict::Ok);
    }

    #[test]
    fn blocked_copies_are_warned_of() {
        use StagingContext::{Auto, Own, Program};
        let verdict =
            |lazy, choice, owned, queues| staging_context_of(lazy, choice, owned, queues).verdict;
        for choice in [Auto, Own] {
            assert_eq!(verdict(true, choice, false, Some("1")), Verdict::Ok);
            assert_eq!(verdict(true, choice, true, None), Verdict::Warning);
        }
        assert_eq!(verdict(true, Program, false, None), Verdict::Warning);
        assert_eq!(verdict(false, Program, false, Some("3")), Verdict::Warning);
        assert_eq!(verdict(false, Program, false, Some("32")), Verdict::Ok);
    }
}
