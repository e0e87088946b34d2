//! The dynamic linker's search, done again: which file a name leads to, and by which rule.
//!
//! The rules are those of ld.so(8) for programs without privileges: what is preloaded, `DT_RPATH`
//! of who asks (and of whom that was loaded by) unless it has a `DT_RUNPATH`, `LD_LIBRARY_PATH`,
//! `DT_RUNPATH`, the cache, the default directories.

use std::cell::OnceCell;
use std::collections::{BTreeSet, VecDeque};
use std::env;
use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::child;
use crate::libraries::elf::{Elf, MACHINE, directories};

#[derive(Debug)]
pub(crate) struct Linker {
    preload: Vec<PathBuf>,
    pub(crate) library_path: Vec<PathBuf>,
    cache: OnceCell<Vec<(String, PathBuf)>>,
}

/// The rule by which a file is found, as people know it.
pub(crate) type Rule = &'static str;

const PRELOAD: Rule = "LD_PRELOAD";
const RPATH: Rule = "DT_RPATH";
pub(crate) const LIBRARY_PATH: Rule = "LD_LIBRARY_PATH";
const RUNPATH: Rule = "DT_RUNPATH";
const CACHE: Rule = "the linker's cache";
const DEFAULT: Rule = "a default directory";

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    pub(crate) path: PathBuf,
    pub(crate) rule: Rule,
    pub(crate) elf: Elf,
}

pub(crate) type Loaded = (PathBuf, Elf);

const MAX_LIBRARIES: usize = 512;

impl Linker {
    pub(crate) fn of_environment() -> Self {
        let list = |name, separators: &[char]| -> Vec<PathBuf> {
            let value = env::var_os(name).unwrap_or_default();
            value.to_string_lossy().split(separators).map(PathBuf::from).collect()
        };
        let mut library_path = list(LIBRARY_PATH, &[':', ';']);
        if library_path == [PathBuf::new()] {
            library_path.clear();
        }
        // An empty entry is the working directory.
        library_path.iter_mut().filter(|at| at.as_os_str().is_empty()).for_each(|at| at.push("."));
        let mut preload = list(PRELOAD, &[':', ' ']);
        preload.retain(|entry| !entry.as_os_str().is_empty());
        Self { preload, library_path, cache: OnceCell::new() }
    }

    /// The file that is taken for a name when `chain[0]` asks, which `chain[1]` has loaded, and so
    /// on.
    pub(crate) fn find(&self, name: &str, chain: &[Loaded]) -> Option<Found> {
        if name.contains('/') {
            return fitting(Path::new(name), RPATH);
        }
        self.preloaded(name).or_else(|| self.search(name, chain))
    }

    fn search(&self, name: &str, chain: &[Loaded]) -> Option<Found> {
        let asks = chain.first();
        // With a DT_RUNPATH neither a file's own DT_RPATH is heeded, nor those of who loads it.
        let heeds_rpath = asks.is_none_or(|(_, elf)| elf.runpath.is_none());
        let rpaths = chain.iter().filter(|(_, elf)| heeds_rpath && elf.runpath.is_none());
        let rpaths = rpaths.flat_map(|(path, elf)| directories(elf.rpath.as_deref(), path));
        let runpaths = asks.into_iter();
        let runpaths = runpaths.flat_map(|(path, elf)| directories(elf.runpath.as_deref(), path));
        let directories = (rpaths.map(|at| (at, RPATH)))
            .chain(self.library_path.iter().map(|at| (at.clone(), LIBRARY_PATH)))
            .chain(runpaths.map(|at| (at, RUNPATH)));
        let within = |(at, rule): (PathBuf, Rule)| fitting(&at.join(name), rule);
        // The cache is read only where nothing comes before it.
        let cached = || {
            let mut cached = self.cache().iter().filter(|(cached, _)| cached == name);
            cached.find_map(|(_, path)| fitting(path, CACHE))
        };
        let defaults = ["/lib64", "/usr/lib64", "/lib", "/usr/lib"].map(PathBuf::from);
        let default = || defaults.into_iter().find_map(|at| within((at, DEFAULT)));
        directories.into_iter().find_map(within).or_else(cached).or_else(default)
    }

    fn preloaded(&self, name: &str) -> Option<Found> {
        let loaded = |entry: &PathBuf| match entry.components().count() {
            0 | 1 => self.search(&entry.to_string_lossy(), &[]),
            _ => fitting(entry, PRELOAD),
        };
        let mut all = self.preload.iter().filter_map(loaded);
        let found = all.find(|found| found.elf.soname.as_deref() == Some(name))?;
        Some(Found { rule: PRELOAD, ..found })
    }

    pub(crate) fn cached(&self, prefix: &str) -> Vec<PathBuf> {
        let fits = self.cache().iter().filter(|(name, _)| name.starts_with(prefix));
        fits.map(|(_, path)| path.clone()).collect()
    }

    fn cache(&self) -> &[(String, PathBuf)] {
        self.cache.get_or_init(|| {
            let programs = ["ldconfig", "/sbin/ldconfig", "/usr/sbin/ldconfig"].map(Path::new);
            let said = programs.iter().find_map(|program| child::output(program, &["-p"]).ok());
            said.map_or_else(Vec::new, |said| parse_cache(&said))
        })
    }

    /// Returns the library that a program loads whose name begins so, and who loads it: the
    /// program last.
    pub(crate) fn library_of(&self, program: &Path, prefix: &str) -> Option<(Found, Vec<Loaded>)> {
        let elf = Elf::read(program).ok()?;
        let mut queue = VecDeque::from([vec![(program.to_owned(), elf)]]);
        let mut seen = BTreeSet::new();
        // Breadth first, as the linker loads.
        while let Some(chain) = queue.pop_front().filter(|_| seen.len() < MAX_LIBRARIES) {
            for name in &chain[0].1.needed {
                if !seen.insert(name.clone()) {
                    continue;
                }
                let Some(found) = self.find(name, &chain) else { continue };
                if name.starts_with(prefix) {
                    return Some((found, chain));
                }
                let longer = [&[(found.path, found.elf)], &chain[..]].concat();
                queue.push_back(longer);
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
    let runs = |path: &PathBuf| {
        let metadata = std::fs::metadata(path);
        metadata.is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    if word.to_string_lossy().contains('/') {
        return Some(PathBuf::from(word)).filter(runs);
    }
    let path = env::var_os("PATH").filter(|_| !word.is_empty())?;
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
        let directory = if cfg!(target_arch = "aarch64") { "a" } else { "x" };
        let path = PathBuf::from(format!("/usr/lib/{directory}/libnvshmem_host.so.3"));
        assert_eq!(parse_cache(text), [(String::from("libnvshmem_host.so.3"), path)]);
    }
}
