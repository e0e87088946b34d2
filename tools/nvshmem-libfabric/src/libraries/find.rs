//! The NVSHMEMs of this machine: where they are looked for, and what is found.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use crate::child;
use crate::error::ToolError;
use crate::libraries::linker::{Linker, program};
use crate::libraries::nvshmem::{HOST_LIBRARY, Nvshmem, in_directory, in_prefix};

const USUAL: [&str; 3] = ["/usr/local/nvshmem", "/opt/nvshmem", "/usr/lib/nvshmem"];

/// The NVSHMEMs found, those that programs are likelier to use first: what was named; or else
/// `NVSHMEM_HOME`, `LD_LIBRARY_PATH`, the packages of Python that this program is among, those of
/// `python3`, the linker's cache, the usual directories, conda's environment, and where packages
/// of NVIDIA's repositories have it.
pub(crate) fn all(named: Option<&Path>, linker: &Linker) -> Result<Vec<Nvshmem>, ToolError> {
    if let Some(named) = named {
        return Ok(vec![Nvshmem::at(named, linker)?]);
    }
    let mut found = Vec::new();
    if let Some(home) = env::var_os("NVSHMEM_HOME").filter(|home| !home.is_empty()) {
        add(&mut found, in_prefix(Path::new(&home)), "NVSHMEM_HOME", linker);
    }
    for directory in linker.library_path() {
        add(&mut found, in_directory(directory), "LD_LIBRARY_PATH", linker);
    }
    if let Some(packages) = own_packages() {
        let directory = packages.join("nvidia/nvshmem/lib");
        add(&mut found, in_directory(&directory), "the packages beside this program", linker);
    }
    if let Some(python) = program(OsStr::new("python3")) {
        let by = format!("the packages of {}", python.display());
        add(&mut found, of_python(&python), &by, linker);
    }
    add(&mut found, linker.cached(HOST_LIBRARY), "the linker's cache", linker);
    for directory in USUAL {
        add(&mut found, in_prefix(Path::new(directory)), "a usual directory", linker);
    }
    if let Some(prefix) = env::var_os("CONDA_PREFIX").filter(|prefix| !prefix.is_empty()) {
        add(&mut found, in_prefix(Path::new(&prefix)), "CONDA_PREFIX", linker);
    }
    for directory in by_cuda_release(Path::new("/usr/lib")) {
        add(&mut found, in_directory(&directory), "NVIDIA's packages of the distribution", linker);
    }
    for directory in hpc_sdk() {
        add(&mut found, in_prefix(&directory), "NVIDIA's HPC SDK", linker);
    }
    Ok(found)
}

pub(crate) fn wrong_home() -> Option<String> {
    let home = PathBuf::from(env::var_os("NVSHMEM_HOME").filter(|home| !home.is_empty())?);
    let lacks = match home.is_dir() {
        false => String::from("is no directory"),
        true if in_prefix(&home).is_empty() => format!("has no {HOST_LIBRARY}* in lib or lib64"),
        true => return None,
    };
    Some(format!("NVSHMEM_HOME={} {lacks}, so it is not heeded", home.display()))
}

fn add(found: &mut Vec<Nvshmem>, libraries: Vec<PathBuf>, by: &str, linker: &Linker) {
    for library in libraries {
        let file = |path: &Path| fs::canonicalize(path).ok();
        let same = found.iter_mut().find(|known| file(&known.library) == file(&library));
        if let Some(same) = same {
            if !same.found_by.iter().any(|known| known == by) {
                same.found_by.push(by.to_owned());
            }
            continue;
        }
        if let Ok(nvshmem) = Nvshmem::read(&library, by, linker) {
            found.push(nvshmem);
        }
    }
}

/// Python's packages that this program is among, where pip has installed it: it serves those of its
/// environment, also where that is not the one of the `python3` on `PATH`.
fn own_packages() -> Option<PathBuf> {
    let program = env::current_exe().ok()?;
    let package = program.parent()?.parent()?;
    (package.file_name() == Some(OsStr::new("nvshmem_libfabric")))
        .then(|| package.parent().map(Path::to_owned))?
}

pub(crate) fn of_python(python: &Path) -> Vec<PathBuf> {
    // The interpreter alone knows where its packages are.
    let said = child::output(python, &["-c", "import sys\nfor p in sys.path: print(p)"]);
    let Ok(said) = said else { return Vec::new() };
    let mut found = Vec::new();
    for directory in said.lines().filter(|line| line.starts_with('/')) {
        found.extend(in_directory(&Path::new(directory).join("nvidia/nvshmem/lib")));
    }
    found
}

fn below(path: PathBuf) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// Returns the directories of NVSHMEM in packages of NVIDIA's repositories, one for each CUDA, the
/// newest first: `/usr/lib/x86_64-linux-gnu/nvshmem/13`.
fn by_cuda_release(lib: &Path) -> Vec<PathBuf> {
    let systems = below(lib.to_owned()).into_iter();
    let mut found: Vec<_> = systems.flat_map(|system| below(system.join("nvshmem"))).collect();
    found.retain(|path| path.is_dir());
    found.sort_by(|one, other| other.file_name().cmp(&one.file_name()));
    found
}

fn hpc_sdk() -> Vec<PathBuf> {
    let releases = below(PathBuf::from(format!("/opt/nvidia/hpc_sdk/Linux_{}", env::consts::ARCH)));
    let libraries = releases.into_iter().flat_map(|release| below(release.join("comm_libs")));
    libraries.map(|library| library.join("nvshmem")).filter(|path| path.is_dir()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use launcher::PrivateDir;

    #[test]
    fn packages_of_every_cuda_are_found() {
        let lib = PrivateDir::new("usr-lib").expect("a directory");
        for release in ["12", "13"] {
            let directory = lib.path().join("x86_64-linux-gnu/nvshmem").join(release);
            fs::create_dir_all(directory).expect("a directory");
        }
        let found = by_cuda_release(lib.path());
        let names: Vec<_> = found.iter().filter_map(|path| path.file_name()).collect();
        assert_eq!(names, ["13", "12"]);
        assert!(by_cuda_release(&lib.path().join("none")).is_empty());
    }
}
