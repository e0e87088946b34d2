//! Versions that have to fit: our files, NVSHMEM's, settings.

use std::env;

use super::{Check, Row, error, note, ok, warning};
use crate::info::{Info, VERSION};
use crate::libraries::nvshmem::Nvshmem;
use crate::libraries::plugins::{NCCL_FILE, Plugin, Plugins, file_name, numbers};

const RUN: &str =
    "start programs with `nvshmem-libfabric run -- PROGRAM`, which puts ours in front";

pub(super) fn checks(info: &Info) -> Vec<Row> {
    let found = info.nvshmem.as_deref().unwrap_or_default();
    let none = note("no NVSHMEM is found; the device channel needs none")
        .remedy("pip install nvidia-nvshmem-cu13, or name one with --nvshmem or NVSHMEM_HOME");
    let wrong_home = |wrong| warning(wrong, "name the directory above its lib, or unset it");
    let mut rows = vec![("plugin-files", plugins(info)), ("settings", settings(info))];
    rows.extend(info.plugins.as_ref().map(|plugins| ("nccl-plugin", nccl(plugins))));
    rows.extend(found.iter().map(|found| ("nvshmem", nvshmem(found))));
    rows.extend(found.is_empty().then_some(("nvshmem", none)));
    rows.extend(info.wrong_home.as_ref().map(|wrong| ("nvshmem-home", wrong_home(wrong))));
    rows.extend(transport(!found.is_empty()).map(|check| ("remote-transport", check)));
    rows
}

fn plugins(info: &Info) -> Check {
    const INSTALL: &str = "`make install PREFIX=...`, or name PREFIX/lib with --plugin-dir";
    let Some(plugins) = &info.plugins else {
        let reason = info.plugins_error.as_deref();
        return warning(reason.unwrap_or("the plugin files were not looked for"), INSTALL);
    };
    let mut missing = numbers();
    missing.retain(|number| plugins.of(*number).is_err());
    let directory = plugins.directory.display();
    if !plugins.refused.is_empty() {
        let reason = format!("{directory} has files that cannot be used");
        return warning(reason, INSTALL).details(plugins.refused.clone());
    }
    if !missing.is_empty() {
        let missing: Vec<String> = missing.into_iter().map(file_name).collect();
        return warning(format!("{directory} lacks {}", missing.join(", ")), INSTALL);
    }
    let other = plugins.files.iter().find_map(other_version);
    other.unwrap_or_else(|| ok(format!("all {} are in {directory}", plugins.files.len())))
}

fn other_version(Plugin { path, version, .. }: &Plugin) -> Option<Check> {
    let reason = format!("{} is of version {version}, and this is {VERSION}", path.display());
    (version != VERSION).then(|| warning(reason, "install files and tool of one version"))
}

fn nccl(plugins: &Plugins) -> Check {
    let Some(plugin) = &plugins.nccl else {
        return note(format!("{} has no {NCCL_FILE}", plugins.directory.display()))
            .remedy("`make install PREFIX=...` installs it, for NCCL alone");
    };
    let path = plugin.path.display();
    let loaded = || ok(format!("NCCL 2.30.7 and later load {path} by `run --nccl`"));
    other_version(plugin).unwrap_or_else(loaded)
}

fn nvshmem(nvshmem: &Nvshmem) -> Check {
    let what = nvshmem.describe();
    let name = match nvshmem.number() {
        Ok(number) if numbers().contains(&number) => file_name(number),
        Ok(number) => {
            let name = file_name(number);
            let reason = format!("{what} asks for {name}, which this version does not have");
            return warning(reason, "install a newer release of this transport");
        }
        Err(error) => return warning(error.to_string(), error.hint),
    };
    let Some(file) = &nvshmem.would_load else {
        let reason = format!("{what} asks for {name}, and there is none where it looks");
        return note(reason).remedy(RUN);
    };
    let found = format!("{} by {}", file.path.display(), file.rule);
    match &file.ours {
        Some(version) => ok(format!("{what} would load ours, {version}: {found}")),
        None => note(format!("{what} would load another's {name}: {found}")).remedy(RUN),
    }
}

fn transport(has_nvshmem: bool) -> Option<Check> {
    let set = env::var("NVSHMEM_REMOTE_TRANSPORT").unwrap_or_default();
    let other = "NVSHMEM_REMOTE_TRANSPORT is not set, so NVSHMEM uses another transport";
    match set.as_str() {
        "libfabric" => Some(ok("NVSHMEM_REMOTE_TRANSPORT=libfabric")),
        "" => has_nvshmem.then(|| note(other).remedy(RUN)),
        other => {
            let why = format!("NVSHMEM_REMOTE_TRANSPORT={other}, so this transport is not used");
            Some(warning(why, RUN))
        }
    }
}

fn settings(info: &Info) -> Check {
    let rows = info.settings.as_deref().unwrap_or_default();
    if rows.iter().any(|row| row.source == "refused") {
        let remedy = "correct these variables, or unset them";
        let refused = error("the transport will refuse to start", remedy);
        return refused.details(info.complaints.clone());
    }
    if !info.complaints.is_empty() {
        let remedy = "look whether another name was meant";
        return warning("variables that do nothing", remedy).details(info.complaints.clone());
    }
    let set = rows.iter().filter(|row| row.source == "environment");
    let set = set.map(|row| format!("{}={}", row.name, row.value.as_deref().unwrap_or_default()));
    let set: Vec<String> = set.collect();
    match set.len() {
        0 => ok("all are at their defaults"),
        count => ok(format!("{count} set by the environment")).details(set),
    }
}
