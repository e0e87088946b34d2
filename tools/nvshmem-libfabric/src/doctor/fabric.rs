//! libfabric: its version, what is taken of it and why not the rest, and the environment that
//! providers need.

use std::env;
use std::path::Path;

use super::{Check, Row, error, ok, warning};
use crate::info::Info;
use crate::probe::{Choice, Fabric, Rail, Refused};

pub(super) fn checks(info: &Info) -> Vec<Row> {
    const INSTALL: &str =
        "install libfabric 1.17 or newer, or name one with NVSHMEM_LIBFABRIC_LIBRARY";
    let Some(fabric) = &info.fabric else {
        return vec![("libfabric", error("libfabric was not asked", INSTALL))];
    };
    let Some(version) = &fabric.version else {
        let reason = fabric.error.as_deref().unwrap_or("libfabric cannot be used");
        // Where a library is there and does not work, another installation is no cure.
        let is_there = reason.contains("cannot load") && !reason.contains("; install ");
        let other = is_there || reason.contains("came to nothing");
        let remedy = if other { "see the reason" } else { INSTALL };
        return vec![("libfabric", error(reason, remedy))];
    };
    let library = fabric.file.as_deref().unwrap_or(&fabric.asked);
    let value = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
    vec![
        ("libfabric", ok(format!("version {version}, {library}"))),
        ("provider", provider(fabric)),
        ("other-providers", refused(fabric)),
        ("provider-environment", environment(fabric)),
        ("libfabric-environment", other_variables(&value)),
    ]
}

/// Variables in the way, what each does, and what helps.
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
    ("FI_TCP_IFACE", "hides other interfaces from tcp", DEVICES),
    ("FI_IFACE", "hides other interfaces", DEVICES),
    ("FI_EFA_IFACE", "hides other NICs of efa", DEVICES),
    (
        "NVSHMEM_CONF_FILE",
        "has NVSHMEM set variables that are not looked at here",
        "export those that are for the transport",
    ),
];

const DEVICES: &str = "unset it; NVSHMEM_LIBFABRIC_DEVICES chooses";

fn other_variables(value: &dyn Fn(&str) -> Option<String>) -> Check {
    let set = VARIABLES.iter().filter_map(|(name, does, helps)| {
        value(name).map(|value| format!("{name}={value} {does}: {helps}"))
    });
    let log = value("NVSHMEM_DEBUG_FILE").filter(|file| {
        let directory = Path::new(file).parent().filter(|at| !at.as_os_str().is_empty());
        // What `%` stands for differs by process.
        directory.is_some_and(|at| !at.to_string_lossy().contains('%') && !at.is_dir())
    });
    let log = log.map(|file| format!("NVSHMEM_DEBUG_FILE={file} is in no directory: make it"));
    let set: Vec<String> = set.chain(log).collect();
    if set.is_empty() {
        return ok("no variable of libfabric or NVSHMEM is in the way");
    }
    warning("variables in the way are set", "unset them, or see what each does").details(set)
}

fn provider(fabric: &Fabric) -> Check {
    let Fabric { across_hosts, one_host, .. } = fabric;
    let gives = |choice: &Choice| {
        let rails: Vec<String> = choice.rails.iter().map(Rail::to_string).collect();
        choice.provider.as_ref().map(|name| format!("{name} on {}", rails.join(", ")))
    };
    let asked = &across_hosts.asked;
    match (gives(across_hosts), gives(one_host)) {
        (Some(across), Some(one)) if across != one => {
            ok(format!("`{asked}` gives {across}; on one host {one}"))
        }
        (Some(across), _) => ok(format!("`{asked}` gives {across}")),
        (None, Some(one)) => {
            let reason = format!("`{asked}` gives {one}, for PEs on this host alone");
            warning(reason, "for several hosts, see below why nothing leads there")
                .details(lines(&across_hosts.refused))
        }
        (None, None) => error(
            format!("`{asked}` gives nothing that can be used"),
            "see the reasons; NVSHMEM_LIBFABRIC_PROVIDER and NVSHMEM_LIBFABRIC_DEVICES narrow the choice",
        )
        .details(lines(&one_host.refused)),
    }
}

fn lines<'a>(refused: impl IntoIterator<Item = &'a Refused>) -> Vec<String> {
    let line = |refused: &Refused| format!("{}: {}", refused.what, refused.reason);
    refused.into_iter().map(line).collect()
}

fn refused(fabric: &Fabric) -> Check {
    let taken = [&fabric.across_hosts, &fabric.one_host];
    let is_taken = |name: &str| taken.iter().any(|choice| choice.provider.as_deref() == Some(name));
    let mut details = Vec::new();
    for Choice { asked, provider, refused, .. } in &fabric.providers {
        let reasons: Vec<&str> = refused.iter().map(|refused| refused.reason.as_str()).collect();
        match provider {
            Some(name) if is_taken(name) => {}
            Some(name) => {
                details.push(format!("{asked}: usable, as {name}, when it is asked for"));
            }
            None => details.push(format!("{asked}: {}", reasons.join("; "))),
        }
    }
    // Devices that were passed over of the providers taken, each once.
    for Choice { provider, refused, .. } in taken {
        let of = refused.iter().filter(|refused| {
            let device = refused.what.split_once(", ");
            device.is_some_and(|(of, _)| Some(of) == provider.as_deref())
        });
        for line in lines(of) {
            if !details.contains(&line) {
                details.push(line);
            }
        }
    }
    let devices = rdma_devices();
    let rails = &fabric.across_hosts.rails;
    if devices.is_empty() || rails.iter().any(|rail| uses_any(rail, &devices)) {
        return ok("what is not used, and why").details(details);
    }
    warning(
        format!("the kernel lists {} as RDMA devices, and none of them is used", devices.join(", ")),
        "see the reason of their provider; often libfabric is built without it: try the vendor's, by NVSHMEM_LIBFABRIC_LIBRARY",
    )
    .details(details)
}

fn rdma_devices() -> Vec<String> {
    let classes = ["/sys/class/infiniband", "/sys/class/cxi"].map(std::fs::read_dir);
    let devices = classes.into_iter().flatten().flatten();
    devices.filter_map(|device| device.ok()?.file_name().into_string().ok()).collect()
}

fn uses_any(rail: &Rail, devices: &[String]) -> bool {
    // Soft RoCE is known by its name alone, without a PCI address, and efa's rails have more in
    // their names than the device's.
    rail.pci.is_some() || devices.contains(&rail.name)
}

fn environment(fabric: &Fabric) -> Check {
    let (mut differ, mut set) = (Vec::new(), Vec::new());
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
    match (differ.is_empty(), set.is_empty()) {
        (true, true) => ok("the providers of this machine need none"),
        (true, false) => ok("the transport sets what they need").details(set),
        _ => warning(
            "variables of providers are set otherwise than advised",
            "unset them, and the transport sets what is advised; docs/providers.md has the sources",
        )
        .details(differ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exported_variables_are_explained() {
        for (variable, given, says) in [
            ("", "", ""),
            ("FI_PROVIDER", "efa", "FI_PROVIDER=efa hides"),
            ("NVSHMEM_DEBUG_FILE", "n-%p.log", ""),
            ("NVSHMEM_DEBUG_FILE", "/tmp/n.log", ""),
            ("NVSHMEM_DEBUG_FILE", "/none/%h/n.log", ""),
            ("NVSHMEM_DEBUG_FILE", "/none/n.log", "NVSHMEM_DEBUG_FILE=/none/n.log is in no"),
        ] {
            let check = other_variables(&|name| (name == variable).then(|| given.into()));
            let said = check.details.first().map_or("", |said| said.as_str());
            assert!(said.starts_with(says) && said.is_empty() == says.is_empty(), "{check:?}");
        }
    }

    #[test]
    fn rails_match_name_or_pci_address() {
        let devices = [String::from("rxe0"), String::from("mlx5_0")];
        let uses = |name: &str, pci: Option<&str>| {
            let (name, pci) = (name.into(), pci.map(String::from));
            uses_any(&Rail { name, pci, ..Rail::default() }, &devices)
        };
        assert!(uses("rxe0", None) && uses("rdmap0s6-rdm", Some("0000:00:06.0")));
        assert!(!uses("eth0", None));
    }
}
