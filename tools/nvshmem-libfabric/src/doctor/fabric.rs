//! libfabric: its version, what is taken of it and why not the rest, and the environment that
//! providers need.

use std::env;
use std::path::Path;

use super::Check;
use crate::info::Info;
use crate::probe::{Choice, Fabric, Rail, Refused};

pub(super) fn checks(info: &Info) -> Vec<Check> {
    const INSTALL: &str =
        "install libfabric 1.17 or newer, or name one with NVSHMEM_LIBFABRIC_LIBRARY";
    let Some(fabric) = &info.fabric else {
        return vec![Check::error("libfabric", "libfabric was not asked", INSTALL)];
    };
    let Some(version) = &fabric.version else {
        let reason = fabric.error.as_deref().unwrap_or("libfabric cannot be used");
        let is_there = reason.contains("cannot load") && !reason.contains("; install ");
        let other = is_there || reason.contains("came to nothing");
        let remedy = if other { "see the reason" } else { INSTALL };
        return vec![Check::error("libfabric", reason, remedy)];
    };
    let library = fabric.file.as_deref().unwrap_or(&fabric.asked);
    vec![
        Check::ok("libfabric", format!("version {version}, {library}")),
        provider(fabric),
        refused(fabric),
        environment(fabric),
        other_variables(&|name| env::var(name).ok().filter(|value| !value.is_empty())),
    ]
}

const VARIABLES: [(&str, &str, &str); 7] = [
    (
        "FI_PROVIDER",
        "hides all providers that it does not name",
        "unset it; NVSHMEM_LIBFABRIC_PROVIDER chooses",
    ),
    (
        "FI_TCP_IO_URING",
        "has tcp use io_uring, with which libfabric 2.5.1 crashes where it has no descriptors left",
        "unset it",
    ),
    (
        "FI_TCP_PORT_LOW_RANGE",
        "bounds tcp's ports: each PE wants one for each rail and direction",
        "leave several hundred ports between it and FI_TCP_PORT_HIGH_RANGE, or unset both",
    ),
    (
        "FI_TCP_IFACE",
        "hides other interfaces from tcp",
        "unset it; NVSHMEM_LIBFABRIC_DEVICES chooses",
    ),
    ("FI_IFACE", "hides other interfaces", "unset it; NVSHMEM_LIBFABRIC_DEVICES chooses"),
    ("FI_EFA_IFACE", "hides other NICs of efa", "unset it; NVSHMEM_LIBFABRIC_DEVICES chooses"),
    (
        "NVSHMEM_CONF_FILE",
        "has NVSHMEM set variables that are not looked at here",
        "export those that are for the transport",
    ),
];

fn other_variables(value: &dyn Fn(&str) -> Option<String>) -> Check {
    const ID: &str = "libfabric-environment";
    let set = |(name, does, helps): &(&str, &str, &str)| {
        value(name).map(|value| format!("{name}={value} {does}: {helps}"))
    };
    let mut set: Vec<String> = VARIABLES.iter().filter_map(set).collect();
    let log = value("NVSHMEM_DEBUG_FILE").filter(|file| {
        let directory = Path::new(file).parent().filter(|at| !at.as_os_str().is_empty());
        // What `%` stands for differs by process.
        directory.is_some_and(|at| !at.to_string_lossy().contains('%') && !at.is_dir())
    });
    set.extend(log.map(|file| format!("NVSHMEM_DEBUG_FILE={file} is in no directory: make it")));
    if set.is_empty() {
        return Check::ok(ID, "no variable of libfabric or NVSHMEM is in the way");
    }
    Check::warning(ID, "variables in the way are set", "unset them, or see what each does")
        .details(set)
}

fn provider(fabric: &Fabric) -> Check {
    const ID: &str = "provider";
    let Choice { asked, .. } = &fabric.across_hosts;
    let rails = |choice: &Choice| {
        let names: Vec<String> = choice.rails.iter().map(Rail::to_string).collect();
        names.join(", ")
    };
    match (&fabric.across_hosts.provider, &fabric.one_host.provider) {
        (Some(across), Some(one)) => {
            let (rails, local) = (rails(&fabric.across_hosts), rails(&fabric.one_host));
            let also = match across == one && rails == local {
                true => String::new(),
                false => format!("; on one host {one} on {local}"),
            };
            Check::ok(ID, format!("`{asked}` gives {across} on {rails}{also}"))
        }
        (Some(across), None) => {
            Check::ok(ID, format!("`{asked}` gives {across} on {}", rails(&fabric.across_hosts)))
        }
        (None, Some(one)) => Check::warning(
            ID,
            format!("`{asked}` gives {one} on {}, for PEs on this host alone", rails(&fabric.one_host)),
            "for several hosts, see below why nothing leads there",
        )
        .details(lines(&fabric.across_hosts.refused)),
        (None, None) => Check::error(
            ID,
            format!("`{asked}` gives nothing that can be used"),
            "see the reasons; NVSHMEM_LIBFABRIC_PROVIDER and NVSHMEM_LIBFABRIC_DEVICES narrow the choice",
        )
        .details(lines(&fabric.one_host.refused)),
    }
}

fn lines(refused: &[Refused]) -> Vec<String> {
    refused.iter().map(|refused| format!("{}: {}", refused.what, refused.reason)).collect()
}

fn refused(fabric: &Fabric) -> Check {
    const ID: &str = "other-providers";
    let taken = [&fabric.across_hosts.provider, &fabric.one_host.provider];
    let mut details = Vec::new();
    for choice in &fabric.providers {
        let usable = choice.provider.is_some();
        if usable {
            if !taken.contains(&&choice.provider) {
                let provider = choice.provider.as_deref().unwrap_or_default();
                details
                    .push(format!("{}: usable, as {provider}, when it is asked for", choice.asked));
            }
            continue;
        }
        let reasons: Vec<&str> =
            choice.refused.iter().map(|refused| refused.reason.as_str()).collect();
        details.push(format!("{}: {}", choice.asked, reasons.join("; ")));
    }
    // What of the chosen one is not used.
    details.extend(lines(&unique(fabric)));
    let reason = "what is not used, and why";
    let devices = rdma_devices();
    if devices.is_empty() || fabric.across_hosts.rails.iter().any(|rail| uses_any(rail, &devices)) {
        return Check::ok(ID, reason).details(details);
    }
    Check::warning(
        ID,
        "the kernel lists RDMA devices, and none of them is used",
        "see the reason of their provider; often libfabric is built without it: try the vendor's, by NVSHMEM_LIBFABRIC_LIBRARY",
    )
    .details(details)
}

/// What was passed over of the providers taken, each once.
fn unique(fabric: &Fabric) -> Vec<Refused> {
    let mut found: Vec<Refused> = Vec::new();
    for choice in [&fabric.across_hosts, &fabric.one_host] {
        let Some(provider) = &choice.provider else { continue };
        let of = choice.refused.iter().filter(|refused| {
            refused.what.split(", ").next() == Some(provider) && refused.what.contains(", ")
        });
        for refused in of {
            if !found.contains(refused) {
                found.push(refused.clone());
            }
        }
    }
    found
}

fn rdma_devices() -> Vec<String> {
    ["/sys/class/infiniband", "/sys/class/cxi"]
        .iter()
        .filter_map(|class| std::fs::read_dir(class).ok())
        .flatten()
        .filter_map(|device| device.ok()?.file_name().into_string().ok())
        .collect()
}

/// Whether a rail is one of these devices: soft RoCE is known by its name alone, without a PCI
/// address, and efa's rails have more in their names than the device's.
fn uses_any(rail: &Rail, devices: &[String]) -> bool {
    rail.pci.is_some() || devices.contains(&rail.name)
}

fn environment(fabric: &Fabric) -> Check {
    const ID: &str = "provider-environment";
    let mut differ = Vec::new();
    let mut set = Vec::new();
    for wish in &fabric.environment {
        let (provider, name, value, why) = (&wish.provider, &wish.name, &wish.value, &wish.why);
        match &wish.theirs {
            Some(theirs) if theirs != value => {
                differ.push(format!("{provider}: {name}={theirs}, and {value} is advised: {why}"));
            }
            Some(_) => set.push(format!("{provider}: {name}={value}, as the environment has it")),
            None => set.push(format!("{provider}: {name}={value} will be set: {why}")),
        }
    }
    if !differ.is_empty() {
        return Check::warning(
            ID,
            "variables of providers are set otherwise than advised",
            "unset them, and the transport sets what is advised; docs/providers.md has the sources",
        )
        .details(differ);
    }
    match set.len() {
        0 => Check::ok(ID, "the providers of this machine need none"),
        _ => Check::ok(ID, "the transport sets what they need").details(set),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    #[test]
    fn exported_variables_are_explained() {
        assert_eq!(other_variables(&|_| None).verdict, Verdict::Ok);
        let efa = |name: &str| (name == "FI_PROVIDER").then(|| String::from("efa"));
        let check = other_variables(&efa);
        assert_eq!(check.verdict, Verdict::Warning);
        assert!(check.details[0].starts_with("FI_PROVIDER=efa hides"), "{check:?}");
        let log = |file: &'static str| {
            other_variables(&move |name| (name == "NVSHMEM_DEBUG_FILE").then(|| file.into()))
        };
        for file in ["n-%p.log", "/tmp/n.log", "/none/%h/n.log"] {
            assert_eq!(log(file).verdict, Verdict::Ok, "{file}");
        }
        assert!(log("/none/n.log").details[0].contains("in no directory"));
    }

    #[test]
    fn rails_match_name_or_pci_address() {
        let devices = [String::from("rxe0"), String::from("mlx5_0")];
        let rail = |name: &str, pci: Option<&str>| Rail {
            name: String::from(name),
            fabric: String::new(),
            pci: pci.map(String::from),
            link_speed: None,
            threads: 0,
        };
        assert!(uses_any(&rail("rxe0", None), &devices));
        assert!(uses_any(&rail("rdmap0s6-rdm", Some("0000:00:06.0")), &devices));
        assert!(!uses_any(&rail("eth0", None), &devices));
    }
}
