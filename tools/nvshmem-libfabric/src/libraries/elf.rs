//! ELF files, as far as the dynamic linker and the owner of a plugin can be read from their headers
//! and constants. Nothing is loaded or run.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use nvshmem_transport_libfabric::abi::note;
use object::elf::{self, FileHeader64};
use object::read::elf::{Dyn, FileHeader, SectionHeader};
use object::{Endianness, ReadCache};

/// The machine of this build, as ELF numbers them.
pub(crate) const MACHINE: u16 =
    if cfg!(target_arch = "aarch64") { elf::EM_AARCH64 } else { elf::EM_X86_64 };

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Elf {
    pub(crate) machine: u16,
    pub(crate) soname: Option<String>,
    pub(crate) needed: Vec<String>,
    /// Searched before `LD_LIBRARY_PATH`, also for what is opened by name at run time.
    pub(crate) rpath: Option<String>,
    /// Searched after `LD_LIBRARY_PATH`. Where it is, the other is not heeded.
    pub(crate) runpath: Option<String>,
    /// The version of this project's transport that the file is, by its note.
    pub(crate) transport: Option<String>,
    /// The release that an NVSHMEM host library names among its constants: `3.4.5`.
    pub(crate) nvshmem: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ElfError {
    #[error("{0}")]
    Read(#[from] io::Error),
    #[error("it is no 64-bit ELF file ({0})")]
    Format(#[from] object::Error),
}

impl Elf {
    pub(crate) fn read(path: &Path) -> Result<Self, ElfError> {
        // Reading a directory fails later and says less.
        if !std::fs::metadata(path)?.is_file() {
            return Err(io::Error::other("it is no file").into());
        }
        let data = &ReadCache::new(File::open(path)?);
        let header = FileHeader64::<Endianness>::parse(data)?;
        let endian = header.endian()?;
        let sections = header.sections(endian, data)?;
        let mut found = Self { machine: header.e_machine(endian), ..Self::default() };
        if let Some((dynamic, link)) = sections.dynamic(endian, data)? {
            let strings = sections.strings(endian, data, link)?;
            for entry in dynamic {
                let text = strings.get(entry.val32(endian).unwrap_or(0)).unwrap_or_default();
                let text = String::from_utf8_lossy(text).into_owned();
                match entry.tag32(endian) {
                    Some(elf::DT_SONAME) => found.soname = Some(text),
                    Some(elf::DT_NEEDED) => found.needed.push(text),
                    Some(elf::DT_RPATH) => found.rpath = Some(text),
                    Some(elf::DT_RUNPATH) => found.runpath = Some(text),
                    _ => {}
                }
            }
        }
        for section in sections.iter() {
            // Notes of others that cannot be read say nothing against the file.
            let mut notes = section.notes(endian, data).ok().flatten();
            while let Some(Ok(Some(note))) = notes.as_mut().map(|notes| notes.next()) {
                if note.name() == note::OWNER.as_bytes() && note.n_type(endian) == note::KIND {
                    let version = String::from_utf8_lossy(note.desc());
                    found.transport = Some(version.into_owned());
                }
            }
            if sections.section_name(endian, section)? == b".rodata" {
                found.nvshmem = release_in(section.data(endian, data)?);
            }
        }
        Ok(found)
    }
}

/// Returns the directories of a list in a file, with the linker's words in them expanded.
pub(crate) fn directories(list: Option<&str>, path: &Path) -> Vec<PathBuf> {
    let origin = path.parent().unwrap_or(Path::new("/")).to_string_lossy();
    let with = |part: &str, word: &str, value: &str| {
        part.replace(&format!("${{{word}}}"), value).replace(&format!("${word}"), value)
    };
    let mut found = Vec::new();
    for part in list.unwrap_or_default().split(':').filter(|part| !part.is_empty()) {
        let part = with(part, "ORIGIN", &origin);
        // What the linker takes for it is a matter of its build.
        for lib in ["lib64", &format!("lib/{}-linux-gnu", std::env::consts::ARCH)] {
            let directory = PathBuf::from(with(&part, "LIB", lib));
            if !found.contains(&directory) {
                found.push(directory);
            }
        }
    }
    found
}

fn release_in(constants: &[u8]) -> Option<String> {
    const BEFORE: &[u8] = b"NVSHMEM v";
    let starts = constants.windows(BEFORE.len()).enumerate();
    let mut named = starts.filter(|(_, bytes)| *bytes == BEFORE);
    named.find_map(|(at, _)| {
        let rest = &constants[at + BEFORE.len()..];
        let end = rest.iter().position(|byte| !byte.is_ascii_digit() && *byte != b'.')?;
        let release = std::str::from_utf8(&rest[..end]).ok()?;
        let numbers: Vec<&str> = release.split('.').collect();
        let is_one = numbers.len() == 3 && !numbers.contains(&"");
        is_one.then(|| release.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn release_is_found_among_constants() {
        let constants = b"NVSHMEM version\0NVSHMEM vendor\0NVSHMEM v3.4.5\0NVSHMEM v9.9.9\0";
        assert_eq!(release_in(constants).as_deref(), Some("3.4.5"));
        for none in [&b"NVSHMEM v3.4\0"[..], b"NVSHMEM v3.4.5.6\0", b"NVSHMEM v3.4.5", b""] {
            assert_eq!(release_in(none), None);
        }
    }

    #[test]
    fn linker_tokens_are_expanded() {
        let found = directories(Some("${ORIGIN}:$ORIGIN/../x:/opt/$LIB"), Path::new("/a/b/c.so"));
        let multiarch = format!("/opt/lib/{}-linux-gnu", std::env::consts::ARCH);
        let wanted = ["/a/b", "/a/b/../x", "/opt/lib64", &multiarch];
        assert_eq!(found, wanted.map(PathBuf::from));
    }
}
