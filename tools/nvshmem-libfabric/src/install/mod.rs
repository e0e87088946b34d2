//! `install` and `uninstall`: our files in a prefix of their own, or one of them beside an NVSHMEM
//! that is there.
//!
//! All that can be refused is refused before anything is changed. Files appear whole, by a rename,
//! so that a process that has an old one loaded keeps it. What was done is recorded, and
//! `uninstall` undoes what is recorded and no more.

mod beside;
mod contents;
mod prefix;
mod record;

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::error::ToolError;
use crate::libraries::plugins::Plugins;
use crate::options::{InstallOptions, UninstallOptions};

/// Installs.
///
/// # Errors
/// What does not fit, and what the file system refuses.
pub(crate) fn install(options: &InstallOptions) -> Result<(), ToolError> {
    let plugins = Plugins::find(options.plugin_dir.as_deref())?;
    match (&options.place.prefix, &options.place.nvshmem) {
        (Some(prefix), _) => prefix::install(prefix, &plugins),
        (None, Some(nvshmem)) => beside::install(nvshmem, &plugins),
        (None, None) => Err(nowhere()),
    }
}

/// Undoes it.
///
/// # Errors
/// Nothing was installed there, and what the file system refuses.
pub(crate) fn uninstall(options: &UninstallOptions) -> Result<(), ToolError> {
    match (&options.place.prefix, &options.place.nvshmem) {
        (Some(prefix), _) => prefix::uninstall(prefix),
        (None, Some(nvshmem)) => beside::uninstall(nvshmem),
        (None, None) => Err(nowhere()),
    }
}

fn nowhere() -> ToolError {
    ToolError::new("no place is named", "name one with --prefix or --nvshmem")
}

/// For what the file system refuses.
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

/// The SHA-256 of a file, in hexadecimal digits.
fn digest(path: &Path) -> io::Result<String> {
    let mut hash = Sha256::new();
    io::copy(&mut File::open(path)?, &mut hash)?;
    Ok(hexadecimal(hash))
}

fn hexadecimal(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What a file that is installed is made of.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Content {
    /// What a file has.
    File(PathBuf),
    Text(Vec<u8>),
    /// A symbolic link to this.
    Link(String),
}

impl Content {
    /// The digest of what is made of it.
    fn digest(&self) -> Result<String, ToolError> {
        match self {
            Self::File(path) => digest(path).map_err(refused(path, "cannot be read")),
            Self::Text(text) => Ok(hexadecimal(Sha256::new_with_prefix(text))),
            Self::Link(to) => Ok(hexadecimal(Sha256::new_with_prefix(to))),
        }
    }

    /// The digest of what is at a path, where a link is no more than what it says.
    fn digest_at(path: &Path) -> io::Result<String> {
        match fs::read_link(path) {
            Ok(to) => Ok(hexadecimal(Sha256::new_with_prefix(to.as_os_str().as_encoded_bytes()))),
            Err(_) => digest(path),
        }
    }
}

/// A file under a name of its own in the directory where it is to be, gone unless it gets there.
struct Staged(Option<PathBuf>);

impl Staged {
    fn make(content: &Content, name: &str, directory: &Path) -> Result<Self, ToolError> {
        sweep(directory, name);
        let path = directory.join(format!(".{name}.{}", std::process::id()));
        let staged = Self(Some(path.clone()));
        let make = || match content {
            Content::File(file) => {
                fs::copy(file, &path)?;
                File::open(&path)?.sync_all()
            }
            Content::Text(text) => {
                let mut file = File::create(&path)?;
                file.write_all(text)?;
                file.sync_all()
            }
            Content::Link(to) => symlink(to, &path),
        };
        make().map_err(refused(&path, "cannot be written"))?;
        Ok(staged)
    }

    /// Takes the place of what is at the path, in one step.
    fn rename(mut self, to: &Path) -> Result<(), ToolError> {
        let Some(path) = self.0.take() else { return Ok(()) };
        fs::rename(&path, to).map_err(|error| {
            self.0 = Some(path.clone());
            refused(to, "cannot be replaced")(error)
        })
    }
}

/// Removes copies of a file that processes have left which were killed.
fn sweep(directory: &Path, name: &str) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    let prefix = format!(".{name}.");
    for entry in entries.flatten() {
        let left = entry.file_name();
        let pid = left.to_str().and_then(|left| left.strip_prefix(&prefix));
        let Some(pid) = pid.and_then(|pid| pid.parse::<u32>().ok()) else { continue };
        if !Path::new("/proc").join(pid.to_string()).exists() {
            let _ = fs::remove_file(entry.path());
        }
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            // Whether it was made at all is not known here.
            let _ = fs::remove_file(path);
        }
    }
}
