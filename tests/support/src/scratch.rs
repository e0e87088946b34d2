use std::fs;
use std::ops::Deref;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use launcher::PrivateDir;

/// A folder in the system's for temporary files, removed when dropped.
#[derive(Debug)]
pub struct Scratch(PrivateDir);

impl Scratch {
    #[expect(clippy::new_without_default, reason = "it makes a folder")]
    pub fn new() -> Self {
        Self(PrivateDir::new("nvshmem-scratch").expect("a folder"))
    }

    pub fn write(&self, file: &str, text: impl AsRef<[u8]>) {
        fs::write(self.place(file), text).expect("a file");
    }

    pub fn link(&self, file: &str, target: &str) {
        symlink(target, self.place(file)).expect("a link");
    }

    fn place(&self, file: &str) -> PathBuf {
        let place = self.join(file);
        fs::create_dir_all(place.parent().expect("a folder")).expect("a folder");
        place
    }
}

impl Deref for Scratch {
    type Target = Path;

    fn deref(&self) -> &Path {
        self.0.path()
    }
}
