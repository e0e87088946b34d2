//! `install` and `uninstall`: all our files in a prefix, as `make install` leaves them.
//!
//! All that can be refused is refused before anything is changed. Files appear whole, by a rename,
//! so that a process that has an old one loaded keeps it. What was done is recorded, and
//! `uninstall` undoes what is recorded and no more.

mod contents;
mod record;
mod staged;

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use self::contents::Named;
use self::record::{Entry, RECORD, Record};
use self::staged::{Content, Staged, sweep};
use crate::error::ToolError;
use crate::libraries::elf::Elf;
use crate::libraries::plugins::Plugins;
use crate::options::{InstallOptions, UninstallOptions};

/// Whether an installation may have a file of this name below its prefix. The record is a file that
/// others may write, and what it names beside these is not touched.
fn may_be_ours(name: &str) -> bool {
    let path = Path::new(name);
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    let stems = ["nvshmem_transport_", "nvshmem-libfabric", "nvshmem_libfabric"];
    is_below(path) && stems.iter().any(|stem| file.contains(stem))
}

/// Whether a path has only names, so that it leads nowhere else.
fn is_below(path: &Path) -> bool {
    path.components().all(|part| matches!(part, Component::Normal(_)))
}

fn refused<'a>(path: &'a Path, what: &'a str) -> impl Fn(io::Error) -> ToolError + 'a {
    move |error| {
        let hint = match error.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                "who may write there has to do this; `nvshmem-libfabric run -- PROGRAM` needs nothing to be installed"
            }
            io::ErrorKind::StorageFull => "the file system is full",
            _ => "look at the path and at the file system",
        };
        ToolError::file(path, what, error, hint)
    }
}

pub(crate) fn install(options: &InstallOptions) -> Result<(), ToolError> {
    let plugins = Plugins::find(options.plugin_dir.as_deref())?;
    let prefix = std::path::absolute(&options.prefix).unwrap_or_else(|_| options.prefix.clone());
    let files = contents::all(&plugins)?;
    let old = Record::read(&prefix.join(RECORD))?;
    for (name, content) in &files {
        refuse(content, &prefix.join(name), name)?;
    }

    let mut made = old.as_ref().map(|old| old.directories.clone()).unwrap_or_default();
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
    for (name, _) in &files {
        println!("  {name}");
    }
    Ok(())
}

fn refuse(content: &Content, target: &Path, name: &str) -> Result<(), ToolError> {
    let Content::File(file) = content else { return Ok(()) };
    if target.symlink_metadata().is_err() {
        return Ok(());
    }
    if fs::canonicalize(file).ok() == fs::canonicalize(target).ok() {
        let message = format!("{} is the file that would be installed", target.display());
        return Err(ToolError::new(message, "it is in this prefix already; name another"));
    }
    let is_plugin =
        name.starts_with("lib/nvshmem_transport") || name.starts_with("lib/libnccl-rma");
    if is_plugin && Elf::read(target).ok().and_then(|elf| elf.transport).is_none() {
        let message = format!("{} is not of this project", target.display());
        let hint = "that is an NVSHMEM's own directory: name another, and start programs with `nvshmem-libfabric run`";
        return Err(ToolError::new(message, hint));
    }
    Ok(())
}

fn put(
    prefix: &Path,
    files: &[Named],
    old: Option<&Record>,
    fresh: &mut Vec<PathBuf>,
    made: &mut Vec<String>,
) -> Result<(), ToolError> {
    let mut staged = Vec::new();
    let mut entries = Vec::new();
    let targets = files.iter().map(|(name, _)| prefix.join(name));
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
    for (name, content) in files {
        let target = prefix.join(name);
        let file = target.file_name().unwrap_or_default().to_string_lossy();
        let made = Staged::make(content, &file, target.parent().unwrap_or(prefix))?;
        entries.push(Entry { name: name.clone(), sha256: made.digest()? });
        staged.push((made, target));
    }
    // What an older version had and this one has not; the record still knows it if this is killed.
    let kept = |name: &str| files.iter().any(|(kept, _)| kept == name);
    for entry in old.iter().flat_map(|old| &old.files).filter(|entry| !kept(&entry.name)) {
        remove(prefix, entry)?;
    }
    Record::new(entries, made.clone()).write(&prefix.join(RECORD))?;
    staged.into_iter().try_for_each(|(staged, target)| staged.rename(&target))
}

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

pub(crate) fn uninstall(options: &UninstallOptions) -> Result<(), ToolError> {
    let prefix = std::path::absolute(&options.prefix).unwrap_or_else(|_| options.prefix.clone());
    let place = prefix.join(RECORD);
    let Some(record) = Record::read(&place)? else {
        let message = format!("nothing was installed in {}", prefix.display());
        let hint = "`install` leaves a record there, in share/nvshmem-libfabric, and there is none";
        return Err(ToolError::new(message, hint));
    };
    for entry in &record.files {
        remove(&prefix, entry)?;
    }
    record::remove(&place)?;
    for directory in record.directories.iter().rev() {
        let below = Path::new(directory);
        // Only what is empty goes.
        if is_below(below) {
            let _ = fs::remove_dir(prefix.join(below));
        }
    }
    Ok(())
}

fn remove(prefix: &Path, entry: &Entry) -> Result<(), ToolError> {
    if !may_be_ours(&entry.name) {
        return Ok(());
    }
    let target = prefix.join(&entry.name);
    if let (Some(directory), Some(name)) = (target.parent(), target.file_name()) {
        sweep(directory, &name.to_string_lossy());
    }
    if target.symlink_metadata().is_err() {
        return Ok(());
    }
    if Content::digest_at(&target).unwrap_or_default() != entry.sha256 {
        println!("{} is not what was installed, so it stays", target.display());
        return Ok(());
    }
    fs::remove_file(&target).map_err(refused(&target, "cannot be removed"))?;
    println!("{} is removed", target.display());
    Ok(())
}
