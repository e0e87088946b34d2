//! The dynamic linker's search, done again: which file a name leads to, and by which rule.
//!
//! The rules are those of ld.so(8) for programs without privileges: what is preloaded, `DT_RPATH`
//! of who asks (and of whom that was loaded by) unless it has a `DT_RUNPATH`, `LD_LIBRARY_PATH`,
//! `DT_RUNPATH`, the cache, the default directories.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::libraries::elf::{Elf, MACHINE};

/// What the search depends on beside the files.
#[derive(Debug)]
pub(crate) struct Linker {
    preload: Vec<PathBuf>,
    library_path: Vec<PathBuf>,
    cache: OnceCell<Vec<(String, PathBuf)>>,
}

/// The rule by which a file is found, as people know it.
pub(crate) type Rule = &'static str;

const PRELOAD: Rule = "LD_PRELOAD";
const RPATH: Rule = "DT_RPATH";
const LIBRARY_PATH: Rule = "LD_LIBRARY_PATH";
const RUNPATH: Rule = "DT_RUNPATH";
const CACHE: Rule = "the linker's cache";
const DEFAULT: Rule = "a default directory";

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    pub(crate) path: PathBuf,
    pub(crate) rule: Rule,
    pub(crate) elf: Elf,
}

/// A file that asks for others, with its headers.
pub(crate) type Loaded = (PathBuf, Elf);

const MAX_LIBRARIES: usize = 512;

impl Linker {
    pub(crate) fn of_environment() -> Self {
        let list = |name, separators: &[char]| -> Vec<PathBuf> {
            let value = env::var_os(name).unwrap_or_default();
            let value = value.to_string_lossy();
            value.split(separators).map(PathBuf::from).collect()
        };
        let mut library_path = list(LIBRARY_PATH, &[':', ';']);
        if library_path == [PathBuf::new()] {
            library_path.clear();
        }
        // An empty entry is the working directory.
        for entry in &mut library_path {
            if entry.as_os_str().is_empty() {
                entry.push(".");
            }
        }
        let mut preload = list(PRELOAD, &[':', ' ']);
        preload.retain(|entry| !entry.as_os_str().is_empty());
        Self { preload, library_path, cache: OnceCell::new() }
    }

    pub(crate) fn library_path(&self) -> &[PathBuf] {
        &self.library_path
    }

    /// The file that is taken for a name when `chain[0]` asks, which `chain[1]` has loaded, and so
    /// on.
    pub(crate) fn find(&self, name: &str, chain: &[&Loaded]) -> Option<Found> {
        if name.contains('/') {
            return fitting(Path::new(name), RPATH);
        }
        if let Some(found) = self.preloaded(name) {
            return Some(found);
        }
        let asks = chain.first();
        let heeds_rpath = asks.is_none_or(|(_, elf)| elf.runpath.is_none());
        let rpaths = chain.iter().filter(|_| heeds_rpath);
        let rpaths = rpaths.flat_map(|(path, elf)| elf.rpath_of(path));
        let runpaths = asks.into_iter().flat_map(|(path, elf)| elf.runpath_of(path));
        let within = |directory: &Path, rule| fitting(&directory.join(name), rule);
        rpaths
            .into_iter()
            .find_map(|directory| within(&directory, RPATH))
            .or_else(|| {
                self.library_path.iter().find_map(|directory| within(directory, LIBRARY_PATH))
            })
            .or_else(|| runpaths.into_iter().find_map(|directory| within(&directory, RUNPATH)))
            .or_else(|| {
                let mut cached = self.cache().iter().filter(|(cached, _)| cached == name);
                cached.find_map(|(_, path)| fitting(path, CACHE))
            })
            .or_else(|| {
                let directories = ["/lib64", "/usr/lib64", "/lib", "/usr/lib"];
                let within = |directory| within(Path::new(directory), DEFAULT);
                directories.into_iter().find_map(within)
            })
    }

    fn preloaded(&self, name: &str) -> Option<Found> {
        let fits = |entry: &PathBuf| {
            let found = if entry.components().count() > 1 {
                fitting(entry, PRELOAD)
            } else {
                let bare = Self {
                    preload: Vec::new(),
                    library_path: self.library_path.clone(),
                    cache: self.cache.clone(),
                };
                bare.find(&entry.to_string_lossy(), &[])
            };
            found.filter(|found| found.elf.soname.as_deref() == Some(name))
        };
        self.preload.iter().find_map(fits).map(|found| Found { rule: PRELOAD, ..found })
    }

    pub(crate) fn cached(&self, prefix: &str) -> Vec<PathBuf> {
        let fits = self.cache().iter().filter(|(name, _)| name.starts_with(prefix));
        fits.map(|(_, path)| path.clone()).collect()
    }

    fn cache(&self) -> &[(String, PathBuf)] {
        self.cache.get_or_init(|| {
            let output =
                ["ldconfig", "/sbin/ldconfig", "/usr/sbin/ldconfig"].iter().find_map(|it| {
                    let mut command = Command::new(it);
                    command.arg("-p").stdin(Stdio::null()).stderr(Stdio::null());
                    command.output().ok().filter(|output| output.status.success())
                });
            output
                .map(|output| parse_cache(&String::from_utf8_lossy(&output.stdout)))
                .unwrap_or_default()
        })
    }

    pub(crate) fn library_of(&self, program: &Path, prefix: &str) -> Option<(Found, Vec<Loaded>)> {
        let elf = Elf::read(program).ok()?;
        let mut queue = vec![vec![(program.to_owned(), elf)]];
        let mut seen = BTreeSet::new();
        let mut next = 0;
        // Breadth first, as the linker loads.
        while next < queue.len() && queue.len() < MAX_LIBRARIES {
            let chain = queue[next].clone();
            next += 1;
            let by: Vec<&Loaded> = chain.iter().collect();
            for name in &chain[0].1.needed {
                if !seen.insert(name.clone()) {
                    continue;
                }
                let Some(found) = self.find(name, &by) else { continue };
                if name.starts_with(prefix) {
                    return Some((found, chain));
                }
                let mut longer = vec![(found.path, found.elf)];
                longer.extend(chain.iter().cloned());
                queue.push(longer);
            }
        }
        None
    }
}

fn fitting(path: &Path, rule: Rule) -> Option<Found> {
    let elf = Elf::read(path).ok().filter(|elf| elf.machine == MACHINE)?;
    Some(Found { path: path.to_owned(), rule, elf })
}

fn parse_cache(text: &str) -> Vec<(String, PathBuf)> {
    let kind = if cfg!(target_arch = "aarch64") { "AArch64" } else { "x86-64" };
    let entry = |line: &str| {
        let (name, rest) = line.trim().split_once(" (")?;
        let (kinds, path) = rest.split_once(") => ")?;
        kinds.contains(kind).then(|| (name.to_owned(), PathBuf::from(path)))
    };
    text.lines().filter_map(entry).collect()
}

pub(crate) fn program(word: &OsStr) -> Option<PathBuf> {
    use std::os::unix::fs::PermissionsExt as _;
    let runs = |path: &PathBuf| {
        let metadata = std::fs::metadata(path);
        metadata.is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    if word.to_string_lossy().contains('/') {
        return Some(PathBuf::from(word)).filter(runs);
    }
    if word.is_empty() {
        return None;
    }
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|directory| directory.join(word)).find(runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linker_cache_matches_ldconfig() {
        let text = "3 libs found in cache `/etc/ld.so.cache'\n\
             \tlibnvshmem_host.so.3 (libc6,x86-64) => /usr/lib/x/libnvshmem_host.so.3\n\
             \tlibnvshmem_host.so.3 (libc6,AArch64) => /usr/lib/a/libnvshmem_host.so.3\n\
             \tlibold.so (libc6) => /usr/lib32/libold.so\n";
        let found = parse_cache(text);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].0, "libnvshmem_host.so.3");
    }
}
