//! Directories of a run's own, which nobody else can have foreseen or look into.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::{env, process};

/// A directory for this user alone, removed when dropped.
#[derive(Debug)]
pub struct PrivateDir(PathBuf);

impl PrivateDir {
    /// Makes one where temporary files are. Its name has this process's number and 64 random bits.
    pub fn new(called: &str) -> io::Result<Self> {
        let mut random = [0; 8];
        File::open("/dev/urandom")?.read_exact(&mut random)?;
        let random = u64::from_ne_bytes(random);
        let directory = env::temp_dir();
        let path = directory.join(format!("{called}{}{random:016x}", infix(process::id())));
        let named = |error: io::Error| {
            let text = format!("a directory in {} (TMPDIR): {error}", directory.display());
            io::Error::new(error.kind(), text)
        };
        DirBuilder::new().mode(0o700).create(&path).map_err(named)?;
        Ok(Self(path))
    }

    /// Removes those of a process that has ended. What cannot be removed stays.
    pub fn remove_of(pid: u32) {
        for entry in fs::read_dir(env::temp_dir()).into_iter().flatten().flatten() {
            // SAFETY: a call without arguments.
            let user = unsafe { libc::geteuid() };
            let is_own = entry.metadata().is_ok_and(|at| at.is_dir() && at.uid() == user);
            if is_own && is_of(&entry.file_name().to_string_lossy(), pid) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }

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

fn infix(pid: u32) -> String {
    format!("-of-{pid}-")
}

/// Whether [`PrivateDir::new`] has given a name in the process. Others' names are never taken for
/// such: what they name would be lost.
fn is_of(name: &str, pid: u32) -> bool {
    name.split_once(&infix(pid)).is_some_and(|(called, random)| {
        let is_digit = |letter: u8| letter.is_ascii_digit() || (b'a'..=b'f').contains(&letter);
        !called.is_empty() && random.len() == 16 && random.bytes().all(is_digit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_own_names_are_recognized() {
        let ours = PrivateDir::new("ours").expect("a directory");
        let name = ours.path().file_name().expect("a name").to_string_lossy().into_owned();
        let pid = process::id();
        assert!(is_of(&name, pid) && !is_of(&name, pid + 1), "{name}");
        let infix = infix(pid);
        for other in ["photos", "0123456789abcdeg", "0123456789ABCDEF", "0123456789abcdef0"] {
            assert!(!is_of(&format!("backup{infix}{other}"), pid), "{other}");
        }
        assert!(!is_of(&format!("{infix}0123456789abcdef"), pid));
    }
}
