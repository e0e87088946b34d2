//! One of our files beside an NVSHMEM, in place of the one that came with it, which is kept.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::record::{self, Entry};
use super::{Staged, digest, refused};
use crate::error::ToolError;
use crate::libraries::linker::Linker;
use crate::libraries::nvshmem::Nvshmem;
use crate::libraries::plugins::{Plugins, file_name};

/// Where the record and the original are, beside the library.
const RECORD: &str = ".nvshmem-libfabric";

/// What the record has beside the file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Replaced {
    /// Whether there was a file, which is kept.
    original: bool,
}

type Record = record::Record<Replaced>;

/// The place of one installation.
struct Place {
    /// The directory of the library.
    directory: PathBuf,
    /// Record and original.
    record: PathBuf,
}

impl Place {
    fn of(nvshmem: &Nvshmem) -> Self {
        let directory = nvshmem.library.parent().unwrap_or(Path::new("/")).to_owned();
        Self { record: directory.join(RECORD), directory }
    }

    fn original(&self) -> PathBuf {
        self.record.join("original")
    }
}

/// What is at the place of our file now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Now {
    Nothing,
    /// What was recorded.
    Ours,
    /// Something else: the file that came with NVSHMEM, or what a package manager has put there since.
    Other,
}

fn now(target: &Path, record: Option<&Record>) -> Result<Now, ToolError> {
    if target.symlink_metadata().is_err() {
        return Ok(Now::Nothing);
    }
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    let Some(entry) = record.and_then(|record| record.entry(&name)) else { return Ok(Now::Other) };
    // A link that leads nowhere is not what was installed.
    let is = digest(target).unwrap_or_default();
    Ok(if is == entry.sha256 { Now::Ours } else { Now::Other })
}

pub(super) fn install(path: &Path, plugins: &Plugins) -> Result<(), ToolError> {
    let linker = Linker::of_environment();
    let nvshmem = Nvshmem::at(path, &linker)?;
    let number = nvshmem.certain_number()?;
    let plugin = plugins.of(number)?;
    let place = Place::of(&nvshmem);
    let target = place.directory.join(file_name(number));
    if fs::canonicalize(&target).is_ok_and(|file| Some(file) == fs::canonicalize(&plugin.path).ok())
    {
        let message = format!("{} is the file that would be installed", target.display());
        return Err(ToolError::new(message, "name another directory with --plugin-dir"));
    }
    let old = Record::read(&place.record)?;
    let sha256 = digest(&plugin.path).map_err(refused(&plugin.path, "cannot be read"))?;
    let before = now(&target, old.as_ref())?;
    if before == Now::Ours && old.as_ref().is_some_and(|old| old.files[0].sha256 == sha256) {
        println!("{} is there already, version {}", target.display(), plugin.version);
        return Ok(());
    }

    let was_there = place.record.is_dir();
    let done = replace(&place, &target, &plugin.path, sha256, before, old.as_ref());
    if let Err(error) = done {
        // The target is what it was, and so is what is recorded of it.
        match old {
            Some(old) => old.write(&place.record)?,
            None if was_there => {}
            // The original is still in its place: what is here is a second name or a copy.
            None => drop(fs::remove_dir_all(&place.record)),
        }
        return Err(error);
    }
    println!("{}: version {} for {}", target.display(), plugin.version, nvshmem.describe());
    if before == Now::Other {
        println!("What was there is kept in {} until `uninstall`", place.original().display());
    }
    let nvshmem = Nvshmem::at(path, &linker)?;
    match &nvshmem.would_load {
        Some(file) if file.path == target => {
            println!("Programs take it with NVSHMEM_REMOTE_TRANSPORT=libfabric");
        }
        Some(file) => println!(
            "But this NVSHMEM would load {}, found by {}: it does not look beside itself first",
            file.path.display(),
            file.rule
        ),
        None => println!(
            "But this NVSHMEM does not look beside itself: put {} into LD_LIBRARY_PATH",
            place.directory.display()
        ),
    }
    Ok(())
}

fn replace(
    place: &Place,
    target: &Path,
    plugin: &Path,
    sha256: String,
    before: Now,
    old: Option<&Record>,
) -> Result<(), ToolError> {
    match fs::create_dir(&place.record) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(refused(&place.record, "cannot be made")(error));
        }
        _ => {}
    }
    let staged = Staged::copy(plugin, &place.record)?;
    let kept = match before {
        // An update of ours: what we have replaced first stays.
        Now::Ours => old.is_some_and(|old| old.more.original),
        Now::Nothing => false,
        Now::Other => {
            keep(target, &place.original())?;
            true
        }
    };
    let name = target.file_name().unwrap_or_default().to_string_lossy().into_owned();
    // Recorded before it is done: until the rename, the target is not what the record has, and `uninstall` leaves it.
    Record::new(vec![Entry { name, sha256 }], Replaced { original: kept }).write(&place.record)?;
    staged.rename(target)
}

/// Gives a file a second name, so that a rename brings back the very same; a copy where the file system has no such names.
fn keep(file: &Path, name: &Path) -> Result<(), ToolError> {
    match fs::remove_file(name) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(refused(name, "cannot be removed")(error));
        }
        _ => {}
    }
    if fs::hard_link(file, name).is_ok() {
        return Ok(());
    }
    let copy = || -> io::Result<()> {
        if let Ok(target) = fs::read_link(file) {
            return std::os::unix::fs::symlink(target, name);
        }
        fs::copy(file, name)?;
        let copy = File::options().append(true).open(name)?;
        copy.set_modified(fs::metadata(file)?.modified()?)?;
        copy.sync_all()
    };
    copy().map_err(refused(name, "cannot be written"))
}

pub(super) fn uninstall(path: &Path) -> Result<(), ToolError> {
    let nvshmem = Nvshmem::at(path, &Linker::of_environment())?;
    let place = Place::of(&nvshmem);
    let Some(record) = Record::read(&place.record)? else {
        let message = format!("nothing was installed in {}", place.directory.display());
        return Err(ToolError::new(
            message,
            "`install --nvshmem` leaves a record there, and there is none",
        ));
    };
    let Some(name) = record.files.first().map(|entry| Path::new(&entry.name)) else {
        let message = format!("the record in {} names no file", place.record.display());
        return Err(ToolError::new(message, "put `original` beside it in its place by hand"));
    };
    // The record is a file that others may write.
    if name.file_name() != Some(name.as_os_str()) {
        let message = format!("the record in {} names {}", place.record.display(), name.display());
        return Err(ToolError::new(
            message,
            "that is no file beside NVSHMEM; look who has written it",
        ));
    }
    let target = place.directory.join(name);
    let before = now(&target, Some(&record))?;
    match before {
        Now::Other => println!(
            "{} is not what was installed: somebody has replaced it since, so it stays",
            target.display()
        ),
        _ if record.more.original => {
            fs::rename(place.original(), &target)
                .map_err(refused(&target, "cannot be restored"))?;
            println!("{} is the original again", target.display());
        }
        Now::Ours => {
            fs::remove_file(&target).map_err(refused(&target, "cannot be removed"))?;
            println!("{} is removed; there was none before", target.display());
        }
        Now::Nothing => println!("{} was gone already", target.display()),
    }
    record::remove(&place.record)?;
    fs::remove_dir_all(&place.record).map_err(refused(&place.record, "cannot be removed"))
}
