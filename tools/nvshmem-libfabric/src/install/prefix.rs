//! All our files in a prefix: the plugin files in `lib`, this program in `bin`.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::record::{self, Entry};
use super::{Staged, digest, refused, sweep};
use crate::error::ToolError;
use crate::libraries::elf::Elf;
use crate::libraries::plugins::{NCCL_FILE, Plugins, file_name, numbers, recorder_name};

/// Where the record is.
const RECORD: &str = "share/nvshmem-libfabric";
/// This program.
const PROGRAM: &str = "bin/nvshmem-libfabric";
/// What debuggers read, which all plugin files share.
const DEBUG: &str = "lib/.debug/nvshmem_transport_libfabric.debug";
/// What they read of the file for NCCL.
const NCCL_DEBUG: &str = "lib/.debug/libnccl-rma-nvshmem-libfabric.debug";

/// What the record has beside the files.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Made {
    /// Directories that were not there before, the outer first.
    directories: Vec<String>,
}

type Record = record::Record<Made>;

/// The names that an installation may have. What a record names beside these is not touched.
fn names() -> Vec<String> {
    let names = |number| [file_name(number), recorder_name(number)];
    let plugins = numbers().into_iter().flat_map(names).map(|name| format!("lib/{name}"));
    let others = [DEBUG, NCCL_DEBUG, PROGRAM].map(str::to_owned);
    plugins.chain([nccl()]).chain(others).collect()
}

/// The file for NCCL.
fn nccl() -> String {
    format!("lib/{NCCL_FILE}")
}

pub(super) fn install(prefix: &Path, plugins: &Plugins) -> Result<(), ToolError> {
    let prefix = std::path::absolute(prefix).unwrap_or_else(|_| prefix.to_owned());
    let mut files: Vec<(PathBuf, String)> = Vec::new();
    for number in numbers() {
        let plugin = plugins.of(number)?;
        files.push((plugin.path.clone(), format!("lib/{}", file_name(number))));
        if let Ok(recorder) = plugin.recorder() {
            files.push((recorder, format!("lib/{}", recorder_name(number))));
        }
    }
    if let Some(plugin) = &plugins.nccl {
        files.push((plugin.path.clone(), nccl()));
    }
    for name in [DEBUG, NCCL_DEBUG] {
        let debug = plugins.directory.join(name.trim_start_matches("lib/"));
        if debug.is_file() {
            files.push((debug, name.to_owned()));
        }
    }
    let program = env::current_exe();
    let program = program.map_err(|error| {
        ToolError::new(format!("this program's own file: {error}"), "is it there still?")
    })?;
    files.push((program, PROGRAM.to_owned()));

    let old = Record::read(&prefix.join(RECORD))?;
    for (file, name) in &files {
        refuse(file, &prefix.join(name), name)?;
    }

    let mut made = old.as_ref().map(|old| old.more.directories.clone()).unwrap_or_default();
    let mut fresh = Vec::new();
    let done = put(&prefix, &files, old.as_ref(), &mut fresh, &mut made);
    if done.is_err() {
        // What is not empty was there before, or is not ours.
        for directory in fresh.iter().rev() {
            let _ = fs::remove_dir(directory);
        }
    }
    done?;
    println!("Installed in {}:", prefix.display());
    for (_, name) in &files {
        println!("  {name}");
    }
    Ok(())
}

/// Refuses to replace what is not ours, or the file itself.
fn refuse(file: &Path, target: &Path, name: &str) -> Result<(), ToolError> {
    if target.symlink_metadata().is_err() {
        return Ok(());
    }
    if fs::canonicalize(file).ok() == fs::canonicalize(target).ok() {
        let message = format!("{} is the file that would be installed", target.display());
        return Err(ToolError::new(message, "it is in this prefix already; name another"));
    }
    let is_plugin = name.starts_with("lib/nvshmem_transport") || name == nccl();
    if is_plugin && Elf::read(target).ok().and_then(|elf| elf.transport).is_none() {
        let message = format!("{} is not of this project", target.display());
        let hint = "that is an NVSHMEM's own directory: `install --nvshmem` replaces a file there and keeps the original";
        return Err(ToolError::new(message, hint));
    }
    Ok(())
}

fn put(
    prefix: &Path,
    files: &[(PathBuf, String)],
    old: Option<&Record>,
    fresh: &mut Vec<PathBuf>,
    made: &mut Vec<String>,
) -> Result<(), ToolError> {
    let mut staged = Vec::new();
    let mut entries = Vec::new();
    let targets = files.iter().map(|(_, name)| prefix.join(name));
    for directory in targets.chain([prefix.join(RECORD).join("x")]) {
        make_directories(directory.parent().unwrap_or(prefix), fresh)?;
    }
    for directory in fresh.iter() {
        let Ok(below) = directory.strip_prefix(prefix) else { continue };
        let below = below.to_string_lossy().into_owned();
        if !made.contains(&below) {
            made.push(below);
        }
    }
    // All of them are there, under other names, before the first one is replaced.
    for (file, name) in files {
        let target = prefix.join(name);
        let sha256 = digest(file).map_err(refused(file, "cannot be read"))?;
        let is_ours = |is: &String| {
            old.and_then(|old| old.entry(name)).is_some_and(|entry| entry.is_ours(is))
        };
        let before = digest(&target).ok().filter(is_ours);
        entries.push(Entry { name: name.clone(), sha256, before });
        staged.push((Staged::copy(file, target.parent().unwrap_or(prefix))?, target));
    }
    Record::new(entries, Made { directories: made.clone() }).write(&prefix.join(RECORD))?;
    staged.into_iter().try_for_each(|(staged, target)| staged.rename(&target))
}

/// Makes a directory and those above it, and tells which were not there.
fn make_directories(directory: &Path, fresh: &mut Vec<PathBuf>) -> Result<(), ToolError> {
    if directory.is_dir() {
        return Ok(());
    }
    if let Some(above) = directory.parent() {
        make_directories(above, fresh)?;
    }
    match fs::create_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && directory.is_dir() => Ok(()),
        Err(error) => Err(refused(directory, "cannot be made")(error)),
        Ok(()) => {
            fresh.push(directory.to_owned());
            Ok(())
        }
    }
}

pub(super) fn uninstall(prefix: &Path) -> Result<(), ToolError> {
    let prefix = std::path::absolute(prefix).unwrap_or_else(|_| prefix.to_owned());
    let place = prefix.join(RECORD);
    let Some(record) = Record::read(&place)? else {
        let message = format!("nothing was installed in {}", prefix.display());
        let hint = "`install --prefix` leaves a record there, in share/nvshmem-libfabric, and there is none";
        return Err(ToolError::new(message, hint));
    };
    for name in names() {
        let target = prefix.join(&name);
        if let (Some(directory), Some(name)) = (target.parent(), target.file_name()) {
            sweep(directory, &name.to_string_lossy());
        }
        let Some(entry) = record.entry(&name) else { continue };
        if target.symlink_metadata().is_err() {
            continue;
        }
        if !entry.is_ours(&digest(&target).unwrap_or_default()) {
            println!("{} is not what was installed, so it stays", target.display());
            continue;
        }
        fs::remove_file(&target).map_err(refused(&target, "cannot be removed"))?;
        println!("{} is removed", target.display());
    }
    record::remove(&place)?;
    for directory in record.more.directories.iter().rev() {
        let below = Path::new(directory);
        // Only names, so that no other place is meant; and only what is empty goes.
        if below.components().all(|part| matches!(part, std::path::Component::Normal(_))) {
            let _ = fs::remove_dir(prefix.join(below));
        }
    }
    Ok(())
}
