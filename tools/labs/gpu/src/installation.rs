//! An NVSHMEM or NCCL as it is installed: by a package, or by pip.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// An NVSHMEM.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Installation {
    /// The directory with `include` and `lib`.
    pub(crate) root: PathBuf,
    /// As the headers say: `3.4.5`.
    pub(crate) version: String,
    /// The number in the file names of its transports, by which it looks for ours.
    pub(crate) transports: u32,
}

/// An NCCL.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Nccl {
    /// The directory with `include` and `lib`.
    pub(crate) root: PathBuf,
    /// As the header says: `2.30.7`.
    pub(crate) version: String,
}

/// Why a directory is no NVSHMEM, or no NCCL.
#[derive(Debug, Error)]
pub(crate) enum NoInstallation {
    /// A file cannot be read.
    #[error("{path} cannot be read: {source}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The header says no version.
    #[error("{path} does not define {name}", path = path.display())]
    Version {
        /// The header.
        path: PathBuf,
        /// A part of the version.
        name: String,
    },
    /// There is no file `nvshmem_transport_*.so.N`.
    #[error("{path} has no nvshmem_transport_*.so.N", path = path.display())]
    Transports {
        /// The directory.
        path: PathBuf,
    },
}

impl Installation {
    /// The NVSHMEM in a directory.
    ///
    /// # Errors
    /// It is none.
    pub(crate) fn at(root: &Path) -> Result<Self, NoInstallation> {
        let header = root.join("include/non_abi/nvshmem_version.h");
        let version = version(&header, |part| format!("NVSHMEM_VENDOR_{part}_VERSION"))?;
        let lib = root.join("lib");
        let files = read(&lib, |lib| fs::read_dir(lib))?;
        let transports = files
            .filter_map(Result::ok)
            .filter_map(|file| {
                let name = file.file_name();
                let (name, number) = name.to_str()?.rsplit_once(".so.")?;
                name.starts_with("nvshmem_transport_").then(|| number.parse().ok()).flatten()
            })
            .max()
            .ok_or(NoInstallation::Transports { path: lib })?;
        Ok(Self { root: root.to_owned(), version, transports })
    }

    /// Where its libraries are.
    pub(crate) fn lib(&self) -> PathBuf {
        self.root.join("lib")
    }
}

impl Nccl {
    /// The NCCL in a directory.
    ///
    /// # Errors
    /// It is none.
    pub(crate) fn at(root: &Path) -> Result<Self, NoInstallation> {
        let version = version(&root.join("include/nccl.h"), |part| format!("NCCL_{part}"))?;
        Ok(Self { root: root.to_owned(), version })
    }

    /// Where its library is.
    pub(crate) fn lib(&self) -> PathBuf {
        self.root.join("lib")
    }
}

/// The version that a header defines in three parts, by these names.
fn version(header: &Path, name: impl Fn(&str) -> String) -> Result<String, NoInstallation> {
    let text = read(header, |path| fs::read_to_string(path))?;
    let number = |part: &str| {
        let name = name(part);
        let value = text.lines().find_map(|line| {
            let mut words = line.split_whitespace();
            let named = words.next() == Some("#define") && words.next() == Some(&name);
            named.then(|| words.next()).flatten()?.parse::<u32>().ok()
        });
        value.ok_or_else(|| NoInstallation::Version { path: header.to_owned(), name })
    };
    Ok(format!("{}.{}.{}", number("MAJOR")?, number("MINOR")?, number("PATCH")?))
}

fn read<T>(path: &Path, how: impl FnOnce(&Path) -> io::Result<T>) -> Result<T, NoInstallation> {
    how(path).map_err(|source| NoInstallation::Read { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use launcher::PrivateDir;

    use super::*;

    struct Root(PrivateDir);

    impl Root {
        fn new(name: &str) -> Self {
            let root = PrivateDir::new(name).unwrap();
            fs::create_dir_all(root.path().join("include/non_abi")).unwrap();
            fs::create_dir_all(root.path().join("lib")).unwrap();
            Self(root)
        }

        fn file(&self, path: &str, text: &str) {
            fs::write(self.0.path().join(path), text).unwrap();
        }
    }

    const HEADER: &str = "include/non_abi/nvshmem_version.h";

    #[test]
    fn version_and_file_names_are_read() {
        let root = Root::new("an-nvshmem");
        root.file(
            HEADER,
            "#define NVSHMEM_VENDOR_MAJOR_VERSION 3\n  #define NVSHMEM_VENDOR_MINOR_VERSION   8\n\
             #define NVSHMEM_VENDOR_PATCH_VERSION 0 // third\n",
        );
        root.file("lib/libnvshmem_host.so.3", "");
        root.file("lib/nvshmem_transport_ibrc.so.7", "");
        let found = Installation::at(root.0.path()).unwrap();
        assert_eq!((found.version.as_str(), found.transports), ("3.8.0", 7));
    }
}
