//! libfabric: its version, what is taken of it and why not the rest, and the environment that
//! providers need.

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
        return vec![Check::error("libfabric", reason, INSTALL)];
    };
    let library = fabric.file.as_deref().unwrap_or(&fabric.asked);
    vec![
        Check::ok("libfabric", format!("version {version}, {library}")),
        provider(fabric),
        refused(fabric),
        environment(fabric),
    ]
}

/// The provider that jobs get.
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

/// Each provider that is not taken, with its reasons.
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
    if fabric.across_hosts.rails.iter().any(|rail| rail.pci.is_some()) || !has_rdma() {
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

/// Whether the kernel has devices of the classes that RDMA providers open.
fn has_rdma() -> bool {
    ["/sys/class/infiniband", "/sys/class/cxi"]
        .iter()
        .any(|class| std::fs::read_dir(class).is_ok_and(|mut devices| devices.next().is_some()))
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
