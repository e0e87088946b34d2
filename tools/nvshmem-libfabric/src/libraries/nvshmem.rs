//! An NVSHMEM host library: which release it is, which plugin file it asks for, and which it would
//! get.

use std::fs;
use std::path::{Path, PathBuf};

use nvshmem_abi::Layout;
use serde::Serialize;

use crate::error::ToolError;
use crate::libraries::elf::{Elf, MACHINE};
use crate::libraries::linker::{Linker, Rule};
use crate::libraries::plugins::file_name;

pub(crate) const HOST_LIBRARY: &str = "libnvshmem_host.so";

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Nvshmem {
    /// Not resolved: the linker takes `$ORIGIN` from there.
    pub(crate) library: PathBuf,
    /// The ways by which it was found: several may lead to one file.
    pub(crate) found_by: Vec<String>,
    pub(crate) release: Option<String>,
    pub(crate) rpath: Option<String>,
    pub(crate) runpath: Option<String>,
    /// The number of the plugin file that it asks for.
    pub(crate) number: Option<u32>,
    pub(crate) would_load: Option<WouldLoad>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct WouldLoad {
    pub(crate) path: PathBuf,
    pub(crate) rule: Rule,
    /// Our version, if it is ours.
    pub(crate) ours: Option<String>,
}

impl Nvshmem {
    /// The host library at a path: the file, or a directory that has it.
    pub(crate) fn at(path: &Path, linker: &Linker) -> Result<Self, ToolError> {
        const HINT: &str = "give libnvshmem_host.so.3 itself or the directory above its lib; with pip that is \
                            nvidia/nvshmem in site-packages. `nvshmem-libfabric info` lists what it finds";
        let found = if path.is_dir() { in_prefix(path) } else { vec![path.to_owned()] };
        let Some(library) = found.first() else {
            let message = format!("{} has no {HOST_LIBRARY}*", path.display());
            return Err(ToolError::new(message, HINT));
        };
        Self::read(library, "--nvshmem", linker)
            .map_err(|reason| ToolError::file(library, "is no NVSHMEM", reason, HINT))
    }

    pub(crate) fn read(library: &Path, found_by: &str, linker: &Linker) -> Result<Self, String> {
        let library = std::path::absolute(library).unwrap_or_else(|_| library.to_owned());
        let elf = Elf::read(&library).map_err(|error| error.to_string())?;
        let soname = elf.soname.as_deref().unwrap_or_default();
        if !soname.starts_with(HOST_LIBRARY) {
            return Err(format!("its name inside is `{soname}` and not {HOST_LIBRARY}.N"));
        }
        if elf.machine != MACHINE {
            return Err(String::from("it is for another processor"));
        }
        Ok(Self::of(library, elf, found_by, linker))
    }

    /// The NVSHMEM that is linked into a program, if any.
    pub(crate) fn within(program: &Path, linker: &Linker) -> Option<Self> {
        let elf = Elf::read(program).ok().filter(|elf| elf.nvshmem.is_some())?;
        Some(Self::of(program.to_owned(), elf, "linked into the program", linker))
    }

    fn of(library: PathBuf, elf: Elf, found_by: &str, linker: &Linker) -> Self {
        // A release that is not known may be newer than this.
        let number =
            elf.nvshmem.as_deref().and_then(number_of).or_else(|| neighbours(library.parent()?));
        let mut found = Self {
            found_by: vec![found_by.to_owned()],
            release: elf.nvshmem.clone(),
            rpath: elf.rpath.clone(),
            runpath: elf.runpath.clone(),
            number,
            would_load: None,
            library,
        };
        let name = number.map(file_name);
        let asks = [(found.library.clone(), elf)];
        found.would_load = name.and_then(|name| linker.find(&name, &asks)).map(|found| WouldLoad {
            path: found.path,
            rule: found.rule,
            ours: found.elf.transport,
        });
        found
    }

    pub(crate) fn number(&self) -> Result<u32, ToolError> {
        self.number.ok_or_else(|| {
            let why = match &self.release {
                Some(release) => format!("release {release} is none that this version knows"),
                None => String::from("it names no release"),
            };
            let library = self.library.display();
            ToolError::new(
                format!("which plugin {library} asks for is not known: {why}"),
                "install a newer release of this transport, or an NVSHMEM from 3.1 to 3.8",
            )
        })
    }

    pub(crate) fn describe(&self) -> String {
        let release = self.release.as_deref().unwrap_or("of unknown release");
        format!("NVSHMEM {release} ({})", self.library.display())
    }
}

fn number_of(release: &str) -> Option<u32> {
    // All patches of a minor release have one interface.
    let minor = |text: &str| text.rsplit_once('.').map(|(minor, _)| minor.to_owned());
    let of = |layout: &Layout| layout.releases().iter().any(|text| minor(text) == minor(release));
    Some(Layout::ALL.into_iter().find(of)?.major().number().unsigned_abs())
}

/// The number of the other transports in a directory, if all have one.
fn neighbours(directory: &Path) -> Option<u32> {
    let number = |name: &str| {
        let (name, number) = name.split_once(".so.")?;
        let transport = name.strip_prefix("nvshmem_transport_")?;
        if transport == "libfabric" { None } else { number.split('.').next()?.parse().ok() }
    };
    let files = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut numbers: Vec<u32> =
        files.filter_map(|file| number(file.file_name().to_str()?)).collect();
    numbers.dedup();
    <[u32; 1]>::try_from(numbers).ok().map(|[number]| number)
}

/// The host libraries in a directory, by file; names that lead to one file count once.
pub(crate) fn in_directory(directory: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<PathBuf> = files
        .filter(|file| file.file_name().to_string_lossy().starts_with(HOST_LIBRARY))
        .map(|file| directory.join(file.file_name()))
        .filter(|path| path.is_file())
        .collect();
    // `libnvshmem_host.so.3`, which is what programs ask for, before `libnvshmem_host.so`.
    names.sort_by_key(|path| std::cmp::Reverse(path.clone()));
    names.dedup_by_key(|path| fs::canonicalize(path).ok());
    names
}

pub(crate) fn in_prefix(prefix: &Path) -> Vec<PathBuf> {
    let places = [prefix.to_owned(), prefix.join("lib"), prefix.join("lib64")];
    places.iter().flat_map(|place| in_directory(place)).collect()
}
