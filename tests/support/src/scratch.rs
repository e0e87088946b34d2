//! A folder of a test's own.

use std::fs;
use std::ops::Deref;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder in the system's for temporary files, removed when dropped.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    #[expect(clippy::new_without_default, reason = "it makes a folder")]
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("nvshmem-scratch-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).expect("a folder");
        Self(folder)
    }

    pub fn write(&self, file: &str, text: impl AsRef<[u8]>) {
        fs::write(self.place(file), text).expect("a file");
    }

    pub fn link(&self, file: &str, target: &str) {
        symlink(target, self.place(file)).expect("a link");
    }

    fn place(&self, file: &str) -> PathBuf {
        let place = self.0.join(file);
        fs::create_dir_all(place.parent().expect("a folder")).expect("a folder");
        place
    }
}

impl Deref for Scratch {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What is left in the way of that is in a temporary directory.
        let _ = fs::remove_dir_all(&self.0);
    }
}
