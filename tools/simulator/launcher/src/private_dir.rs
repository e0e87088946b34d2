//! Directories of a run's own, which nobody else can have foreseen or look into.

use std::env;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub struct PrivateDir(PathBuf);

impl PrivateDir {
    /// Makes one where temporary files are. Its name has 64 random bits.
    pub fn new(called: &str) -> io::Result<Self> {
        let mut random = [0; 8];
        File::open("/dev/urandom")?.read_exact(&mut random)?;
        let random = u64::from_ne_bytes(random);
        let directory = env::temp_dir();
        let path = directory.join(format!("{called}-{random:016x}"));
        let named = |error: io::Error| {
            let text = format!("a directory in {} (TMPDIR): {error}", directory.display());
            io::Error::new(error.kind(), text)
        };
        DirBuilder::new().mode(0o700).create(&path).map_err(named)?;
        Ok(Self(path))
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
