//! Versions that have to fit: our files, NVSHMEM's, settings.

use std::env;

use super::Check;
use crate::info::{Info, VERSION};
use crate::libraries::nvshmem::{Nvshmem, is_served};
use crate::libraries::plugins::{NCCL_FILE, Plugins, file_name, numbers};

const RUN: &str =
    "start programs with `nvshmem-libfabric run -- PROGRAM`, which puts ours in front";

pub(super) fn checks(info: &Info) -> Vec<Check> {
    let mut checks = vec![plugins(info)];
    checks.extend(info.plugins.as_ref().map(nccl));
    let found = info.nvshmem.as_deref().unwrap_or_default();
    if found.is_empty() {
        checks.push(
            Check::note("nvshmem", "no NVSHMEM is found; the device channel needs none").remedy(
                "pip install nvidia-nvshmem-cu13, or name one with --nvshmem or NVSHMEM_HOME",
            ),
        );
    }
    checks.extend(found.iter().map(nvshmem));
    checks.extend(info.wrong_home.as_ref().map(|wrong| {
        Check::warning("nvshmem-home", wrong, "name the directory above its lib, or unset it")
    }));
    checks.extend(transport(!found.is_empty()));
    checks.push(settings(info));
    checks
}

fn plugins(info: &Info) -> Check {
    const ID: &str = "plugin-files";
    const INSTALL: &str = "`make install PREFIX=...`, or name PREFIX/lib with --plugin-dir";
    let Some(plugins) = &info.plugins else {
        let reason =
            info.plugins_error.as_deref().unwrap_or("the plugin files were not looked for");
        return Check::warning(ID, reason, INSTALL);
    };
    let missing: Vec<String> = numbers()
        .into_iter()
        .filter(|number| plugins.of(*number).is_err())
        .map(file_name)
        .collect();
    let directory = plugins.directory.display();
    if !plugins.refused.is_empty() {
        let reason = format!("{directory} has files that cannot be used");
        return Check::warning(ID, reason, INSTALL).details(plugins.refused.clone());
    }
    if !missing.is_empty() {
        let reason = format!("{directory} lacks {}", missing.join(", "));
        return Check::warning(ID, reason, INSTALL);
    }
    if let Some(other) = plugins.files.iter().find(|file| file.version != VERSION) {
        let reason = format!(
            "{} is of version {}, and this is {VERSION}",
            other.path.display(),
            other.version
        );
        return Check::warning(ID, reason, "install files and tool of one version");
    }
    Check::ok(ID, format!("all {} are in {directory}", plugins.files.len()))
}

fn nccl(plugins: &Plugins) -> Check {
    const ID: &str = "nccl-plugin";
    match &plugins.nccl {
        None => {
            let reason = format!("{} has no {NCCL_FILE}", plugins.directory.display());
            Check::note(ID, reason).remedy("`make install PREFIX=...` installs it, for NCCL alone")
        }
        Some(plugin) if plugin.version != VERSION => {
            let path = plugin.path.display();
            let reason = format!("{path} is of version {}, and this is {VERSION}", plugin.version);
            Check::warning(ID, reason, "install files and tool of one version")
        }
        Some(plugin) => {
            let path = plugin.path.display();
            Check::ok(ID, format!("NCCL 2.30.7 and later load {path} by `run --nccl`"))
        }
    }
}

fn nvshmem(nvshmem: &Nvshmem) -> Check {
    const ID: &str = "nvshmem";
    let what = nvshmem.describe();
    let number = match nvshmem.number() {
        Ok(number) => number,
        Err(error) => return Check::warning(ID, error.to_string(), error.hint),
    };
    if !is_served(number) {
        let reason =
            format!("{what} asks for {}, which this version does not have", file_name(number));
        return Check::warning(ID, reason, "install a newer release of this transport");
    }
    let name = file_name(number);
    match &nvshmem.would_load {
        Some(file) => match &file.ours {
            Some(version) => Check::ok(
                ID,
                format!(
                    "{what} would load ours, {version}: {} by {}",
                    file.path.display(),
                    file.rule
                ),
            ),
            None => Check::note(
                ID,
                format!(
                    "{what} would load another's {name}: {} by {}",
                    file.path.display(),
                    file.rule
                ),
            )
            .remedy(RUN),
        },
        None => {
            Check::note(ID, format!("{what} asks for {name}, and there is none where it looks"))
                .remedy(RUN)
        }
    }
}

fn transport(has_nvshmem: bool) -> Option<Check> {
    const ID: &str = "remote-transport";
    let set = env::var("NVSHMEM_REMOTE_TRANSPORT").unwrap_or_default();
    match set.as_str() {
        "libfabric" => Some(Check::ok(ID, "NVSHMEM_REMOTE_TRANSPORT=libfabric")),
        "" if !has_nvshmem => None,
        "" => Some(
            Check::note(
                ID,
                "NVSHMEM_REMOTE_TRANSPORT is not set, so NVSHMEM uses another transport",
            )
            .remedy(RUN),
        ),
        other => Some(Check::warning(
            ID,
            format!("NVSHMEM_REMOTE_TRANSPORT={other}, so this transport is not used"),
            RUN,
        )),
    }
}

fn settings(info: &Info) -> Check {
    const ID: &str = "settings";
    let rows = info.settings.as_deref().unwrap_or_default();
    if rows.iter().any(|row| row.source == "refused") {
        return Check::error(
            ID,
            "the transport will refuse to start",
            "correct these variables, or unset them",
        )
        .details(info.complaints.clone());
    }
    if !info.complaints.is_empty() {
        return Check::warning(
            ID,
            "variables that do nothing",
            "look whether another name was meant",
        )
        .details(info.complaints.clone());
    }
    let set: Vec<String> = rows
        .iter()
        .filter(|row| row.source == "environment")
        .map(|row| format!("{}={}", row.name, row.value.as_deref().unwrap_or_default()))
        .collect();
    match set.len() {
        0 => Check::ok(ID, "all are at their defaults"),
        count => Check::ok(ID, format!("{count} set by the environment")).details(set),
    }
}
