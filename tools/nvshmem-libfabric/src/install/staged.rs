//! Files that are made under another name in the directory where they are to be, and renamed.
//!
//! Others may be able to write to that directory, and the tool may run as root. So an entry that is
//! there is never opened, and modes are set by descriptor.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::refused;
use crate::error::ToolError;

pub(super) enum Content {
    /// A copy of this file, with its mode.
    File(PathBuf),
    /// Readable by all.
    Text(Vec<u8>),
    Link(String),
}

impl Content {
    fn make(&self, path: &Path) -> io::Result<()> {
        let (mut source, mode): (Box<dyn Read + '_>, u32) = match self {
            Self::Link(to) => return symlink(to, path),
            Self::Text(text) => (Box::new(text.as_slice()), 0o644),
            Self::File(file) => {
                let file = File::open(file)?;
                let mode = file.metadata()?.permissions().mode() & 0o777;
                (Box::new(file), mode)
            }
        };
        // Exclusive creation follows no link and opens nothing that is there.
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        io::copy(&mut source, &mut file)?;
        file.set_permissions(Permissions::from_mode(mode))?;
        file.flush()?;
        file.sync_all()
    }
}

/// The SHA-256 of what is at a path, in hexadecimal digits. A link is no more than what it says.
pub(super) fn digest(path: &Path) -> io::Result<String> {
    let mut hash = Sha256::new();
    match fs::read_link(path) {
        Ok(to) => hash.update(to.as_os_str().as_encoded_bytes()),
        Err(_) => _ = io::copy(&mut File::open(path)?, &mut hash)?,
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A file under its temporary name, removed unless it is renamed.
pub(super) struct Staged {
    path: PathBuf,
    target: PathBuf,
}

impl Staged {
    pub(super) fn make(content: &Content, target: PathBuf) -> Result<Self, ToolError> {
        sweep(&target);
        let path = aside(&target);
        content.make(&path).map_err(refused(&path, "cannot be written"))?;
        Ok(Self { path, target })
    }

    pub(super) fn digest(&self) -> Result<String, ToolError> {
        digest(&self.path).map_err(refused(&self.path, "cannot be read"))
    }

    /// Takes the place of what is at the target, in one step.
    pub(super) fn rename(self) -> Result<(), ToolError> {
        fs::rename(&self.path, &self.target).map_err(refused(&self.target, "cannot be replaced"))
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // After a rename there is nothing. What stays is swept by the next run.
        let _ = fs::remove_file(&self.path);
    }
}

fn aside(target: &Path) -> PathBuf {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    target.with_file_name(format!(".{name}.new"))
}

/// Removes the temporary file of a target that a run has left which was killed.
pub(super) fn sweep(target: &Path) {
    let _ = fs::remove_file(aside(target));
}
