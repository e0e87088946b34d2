//! Files that are made under another name in the directory where they are to be, and renamed.
//!
//! Others may be able to write to that directory, and the tool may run as root. So the names are
//! random, an entry that is there is never opened, and modes are set by descriptor.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::refused;
use crate::error::ToolError;

/// The SHA-256 of a file, in hexadecimal digits.
fn digest(path: &Path) -> io::Result<String> {
    let mut hash = Sha256::new();
    io::copy(&mut File::open(path)?, &mut hash)?;
    Ok(hexadecimal(hash))
}

fn hexadecimal(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Content {
    /// A copy of this file, with its mode.
    File(PathBuf),
    /// Readable by all.
    Text(Vec<u8>),
    Link(String),
}

impl Content {
    /// The digest of what is at a path, where a link is no more than what it says.
    pub(super) fn digest_at(path: &Path) -> io::Result<String> {
        match fs::read_link(path) {
            Ok(to) => Ok(hexadecimal(Sha256::new_with_prefix(to.as_os_str().as_encoded_bytes()))),
            Err(_) => digest(path),
        }
    }

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

/// A file under its temporary name, removed unless it is renamed.
pub(super) struct Staged(Option<PathBuf>);

impl Staged {
    /// Makes what is to be called `name` in a directory.
    pub(super) fn make(content: &Content, name: &str, directory: &Path) -> Result<Self, ToolError> {
        sweep(directory, name);
        let mut random = [0; 8];
        let urandom = Path::new("/dev/urandom");
        File::open(urandom)
            .and_then(|mut file| file.read_exact(&mut random))
            .map_err(refused(urandom, "cannot be read"))?;
        let random = u64::from_ne_bytes(random);
        let path = directory.join(format!(".{name}.{random:0width$x}", width = RANDOM_DIGITS));
        content.make(&path).map_err(refused(&path, "cannot be written"))?;
        Ok(Self(Some(path)))
    }

    pub(super) fn digest(&self) -> Result<String, ToolError> {
        let path = self.0.as_deref().unwrap_or(Path::new(""));
        Content::digest_at(path).map_err(refused(path, "cannot be read"))
    }

    /// Takes the place of what is at the path, in one step.
    pub(super) fn rename(mut self, to: &Path) -> Result<(), ToolError> {
        let Some(path) = self.0.take() else { return Ok(()) };
        fs::rename(&path, to).map_err(|error| {
            self.0 = Some(path.clone());
            refused(to, "cannot be replaced")(error)
        })
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            // What stays is swept by the next run.
            let _ = fs::remove_file(path);
        }
    }
}

const RANDOM_DIGITS: usize = 16;

pub(super) fn sweep(directory: &Path, name: &str) {
    let prefix = format!(".{name}.");
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let file = entry.file_name();
        let random = file.to_str().and_then(|file| file.strip_prefix(&prefix));
        let is_hex = |digits: &str| digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        if random.is_some_and(|random| random.len() == RANDOM_DIGITS && is_hex(random)) {
            let _ = fs::remove_file(entry.path());
        }
    }
}
