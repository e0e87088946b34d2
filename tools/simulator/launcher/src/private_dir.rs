//! Directories of a run's own, which nobody else can have foreseen or look into.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Names that are tried. Each is 64 random bits, so the first is free unless something else is
/// wrong.
const TRIES: usize = 8;

/// A private directory, removed at the end.
#[derive(Debug)]
pub struct PrivateDir(PathBuf);

impl PrivateDir {
    /// Makes one for this user alone, where temporary files are.
    ///
    /// # Errors
    /// As the system answers.
    pub fn new(called: &str) -> io::Result<Self> {
        let mut last = io::Error::from(io::ErrorKind::AlreadyExists);
        for _ in 0..TRIES {
            let mut random = [0; 8];
            File::open("/dev/urandom")?.read_exact(&mut random)?;
            let name = format!("{called}-{:016x}", u64::from_ne_bytes(random));
            let path = std::env::temp_dir().join(name);
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error) => last = error,
            }
            if last.kind() != io::ErrorKind::AlreadyExists {
                break;
            }
        }
        Err(last)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for PrivateDir {
    fn drop(&mut self) {
        // Nothing depends on it any more; a directory that stays is only untidy.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn a_directory_is_this_users_alone_and_has_a_name_of_its_own() {
        let (one, other) =
            (PrivateDir::new("nvshmem-t").unwrap(), PrivateDir::new("nvshmem-t").unwrap());
        assert_ne!(one.path(), other.path());
        assert_eq!(fs::metadata(one.path()).unwrap().mode() & 0o777, 0o700);
        let name = one.path().file_name().unwrap().to_str().unwrap().to_owned();
        let pid = std::process::id().to_string();
        let foreseen = name.strip_prefix("nvshmem-t-").unwrap();
        assert!(foreseen.len() == 16 && foreseen != pid, "{name}");
        let path = one.path().to_owned();
        drop(one);
        assert!(!path.exists());
    }
}
