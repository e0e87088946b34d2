//! `install` and `uninstall`: all our files in a prefix, as `make install` leaves them.
//!
//! All that can be refused is refused before anything is changed. Files appear whole, by a rename,
//! so that a process that has an old one loaded keeps it. What was done is recorded, and
//! `uninstall` undoes what is recorded and no more.

mod contents;
mod staged;

use std::fs::{self, File};
use std::io;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use self::staged::{Content, Staged, digest, sweep};
use crate::error::ToolError;
use crate::info::{VERSION, json};
use crate::libraries::elf::Elf;
use crate::libraries::plugins::Plugins;
use crate::options::{InstallOptions, UninstallOptions};

/// The record, below the prefix.
const RECORD: &str = "share/nvshmem-libfabric/installed.json";

#[derive(Default, Serialize, Deserialize)]
struct Record {
    version: String,
    files: Vec<Entry>,
    /// Directories that were not there before, the outer first.
    directories: Vec<String>,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    name: String,
    /// Tells what was installed from what others have put in its place.
    sha256: String,
}

impl Record {
    fn read(prefix: &Path) -> Result<Option<Self>, ToolError> {
        let path = prefix.join(RECORD);
        let text = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(refused(&path, "cannot be read"))?,
        };
        serde_json::from_slice(&text).map(Some).map_err(|error| {
            let hint = "it is no record of this version: remove the files of this project by hand";
            ToolError::file(&path, "cannot be understood", error, hint)
        })
    }
}

fn is_below(path: &Path) -> bool {
    // Only names, so that it leads nowhere else.
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
    let old = Record::read(&prefix)?.unwrap_or_default();
    for (name, content) in &files {
        refuse(content, &prefix.join(name), name)?;
    }
    let mut fresh = Vec::new();
    let done = put(&prefix, &files, old, &mut fresh);
    if done.is_err() {
        // What is not empty was there before, or is not ours.
        fresh.iter().rev().for_each(|directory| _ = fs::remove_dir(directory));
    }
    done?;
    println!("Installed in {}:", prefix.display());
    files.iter().for_each(|(name, _)| println!("  {name}"));
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

/// Puts all files below the prefix; `fresh` gets the directories that were made for it.
fn put(
    prefix: &Path,
    files: &[contents::Named],
    old: Record,
    fresh: &mut Vec<PathBuf>,
) -> Result<(), ToolError> {
    for name in files.iter().map(|(name, _)| name.as_str()).chain([RECORD]) {
        let target = prefix.join(name);
        let missing = target.ancestors().skip(1).take_while(|above| !above.is_dir());
        for directory in missing.collect::<Vec<_>>().into_iter().rev() {
            fs::create_dir(directory).map_err(refused(directory, "cannot be made"))?;
            fresh.push(directory.to_owned());
        }
    }
    let below = fresh.iter().filter_map(|directory| directory.strip_prefix(prefix).ok());
    let mut directories = old.directories;
    directories.extend(below.map(|below| below.to_string_lossy().into_owned()));
    // All of them are there, under other names, before the first one is replaced.
    let (mut staged, mut entries) = (Vec::new(), Vec::new());
    for (name, content) in files {
        let made = Staged::make(content, prefix.join(name))?;
        entries.push(Entry { name: name.clone(), sha256: made.digest()? });
        staged.push(made);
    }
    // What an older version had and this one has not; the record still knows it if this is killed.
    let is_kept = |name: &str| files.iter().any(|(kept, _)| kept == name);
    for entry in old.files.iter().filter(|entry| !is_kept(&entry.name)) {
        remove(prefix, entry)?;
    }
    let record = Record { version: VERSION.to_owned(), files: entries, directories };
    let text = Content::Text(json(&record)?.into_bytes());
    Staged::make(&text, prefix.join(RECORD))?.rename()?;
    // On the disk before what it is the record of. A file system that cannot do this for a
    // directory has other ways.
    let directory = prefix.join(RECORD).parent().map(File::open);
    let _ = directory.transpose().map(|directory| directory.map(|at| at.sync_all()));
    staged.into_iter().try_for_each(Staged::rename)
}

pub(crate) fn uninstall(options: &UninstallOptions) -> Result<(), ToolError> {
    let prefix = std::path::absolute(&options.prefix).unwrap_or_else(|_| options.prefix.clone());
    let Some(record) = Record::read(&prefix)? else {
        let message = format!("nothing was installed in {}", prefix.display());
        let hint = "`install` leaves a record there, in share/nvshmem-libfabric, and there is none";
        return Err(ToolError::new(message, hint));
    };
    for entry in &record.files {
        remove(&prefix, entry)?;
    }
    let place = prefix.join(RECORD);
    fs::remove_file(&place).map_err(refused(&place, "cannot be removed"))?;
    sweep(&place);
    let directories = record.directories.iter().rev().map(Path::new);
    // Only what is empty goes.
    directories.filter(|at| is_below(at)).for_each(|at| _ = fs::remove_dir(prefix.join(at)));
    Ok(())
}

fn remove(prefix: &Path, entry: &Entry) -> Result<(), ToolError> {
    // The record is a file that others may write: names that no installation has are not touched.
    let target = prefix.join(&entry.name);
    let file = target.file_name().unwrap_or_default().to_string_lossy();
    let stems = ["nvshmem_transport_", "nvshmem-libfabric", "nvshmem_libfabric"];
    if !is_below(Path::new(&entry.name)) || !stems.iter().any(|stem| file.contains(stem)) {
        return Ok(());
    }
    sweep(&target);
    if target.symlink_metadata().is_err() {
        return Ok(());
    }
    if digest(&target).unwrap_or_default() != entry.sha256 {
        println!("{} is not what was installed, so it stays", target.display());
        return Ok(());
    }
    fs::remove_file(&target).map_err(refused(&target, "cannot be removed"))?;
    println!("{} is removed", target.display());
    Ok(())
}
