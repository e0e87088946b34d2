//! One of our files beside an NVSHMEM, in place of the one that came with it, which is kept.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::record::{self, Entry};
use super::{Content, Staged, digest, refused};
use crate::error::ToolError;
use crate::libraries::elf::Elf;
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

    /// Whether one is there, be it a link that leads nowhere.
    fn has_original(&self) -> bool {
        self.original().symlink_metadata().is_ok()
    }
}

/// What is at the place of our file now.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Now {
    Nothing,
    /// A file of ours, by its digest.
    Ours(String),
    /// Something else: the file that came with NVSHMEM, or what a package manager has put there
    /// since.
    Other,
}

impl Now {
    fn of(place: &Place, target: &Path, record: Option<&Record>) -> Self {
        if target.symlink_metadata().is_err() {
            return Self::Nothing;
        }
        let name = target.file_name().unwrap_or_default().to_string_lossy();
        let Some(record) = record else { return Self::Other };
        // A link that leads nowhere is not what was installed.
        let is = digest(target).unwrap_or_default();
        let recorded = record.entry(&name).is_some_and(|entry| entry.is_ours(&is));
        // A file with our note that no record has: put there by hand, or by an older version's
        // update that was killed before its last step. It is not worth the original that is kept.
        let replaces_original = || record.more.original && place.has_original() && has_note(target);
        if recorded || replaces_original() { Self::Ours(is) } else { Self::Other }
    }
}

/// Whether a file is a plugin of this project.
fn has_note(file: &Path) -> bool {
    Elf::read(file).is_ok_and(|elf| elf.transport.is_some())
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
    let before = Now::of(&place, &target, old.as_ref());
    if before == Now::Ours(sha256.clone()) {
        println!("{} is there already, version {}", target.display(), plugin.version);
        return Ok(());
    }

    let was_there = place.record.is_dir();
    let done = replace(&place, &target, &plugin.path, sha256, &before, old.as_ref());
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
    before: &Now,
    old: Option<&Record>,
) -> Result<(), ToolError> {
    match fs::create_dir(&place.record) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(refused(&place.record, "cannot be made")(error));
        }
        _ => {}
    }
    let name = target.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let staged = Staged::make(&Content::File(plugin.to_owned()), &name, &place.record)?;
    let (kept, before) = match before {
        // An update of ours: what we have replaced first stays.
        Now::Ours(is) => (old.is_some_and(|old| old.more.original), Some(is.clone())),
        Now::Nothing => (false, None),
        Now::Other => {
            keep(target, place)?;
            (true, None)
        }
    };
    // Recorded before it is done, with what is there until then: whoever is killed in between
    // leaves a target that is either what it was or what it is to be, and the record knows both.
    let entry = Entry { name, sha256, before };
    Record::new(vec![entry], Replaced { original: kept }).write(&place.record)?;
    staged.rename(target)
}

/// Gives a file a second name, so that a rename brings back the very same; a copy where the file
/// system has no such names. One that was kept before is there until the new one is whole.
fn keep(file: &Path, place: &Place) -> Result<(), ToolError> {
    let name = place.original();
    let fresh = place.record.join(".original");
    match fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(refused(&fresh, "cannot be removed")(error));
        }
        _ => {}
    }
    let staged = Staged(Some(fresh.clone()));
    let copy = || -> io::Result<()> {
        if let Ok(target) = fs::read_link(file) {
            return std::os::unix::fs::symlink(target, &fresh);
        }
        fs::copy(file, &fresh)?;
        let copy = File::options().append(true).open(&fresh)?;
        copy.set_modified(fs::metadata(file)?.modified()?)?;
        copy.sync_all()
    };
    if fs::hard_link(file, &fresh).is_err() {
        copy().map_err(refused(&fresh, "cannot be written"))?;
    }
    staged.rename(&name)?;
    // A rename from one name of a file to another of the same file does nothing, and says that it
    // is done.
    let _ = fs::remove_file(&fresh);
    Ok(())
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
    match Now::of(&place, &target, Some(&record)) {
        Now::Other => println!(
            "{} is not what was installed: somebody has replaced it since, so it stays",
            target.display()
        ),
        _ if record.more.original => {
            fs::rename(place.original(), &target)
                .map_err(refused(&target, "cannot be restored"))?;
            println!("{} is the original again", target.display());
        }
        Now::Ours(_) => {
            fs::remove_file(&target).map_err(refused(&target, "cannot be removed"))?;
            println!("{} is removed; there was none before", target.display());
        }
        Now::Nothing => println!("{} was gone already", target.display()),
    }
    record::remove(&place.record)?;
    fs::remove_dir_all(&place.record).map_err(refused(&place.record, "cannot be removed"))
}
