//! The NVSHMEMs of this machine: where they are looked for, and what is found.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use crate::child;
use crate::error::ToolError;
use crate::libraries::linker::{LIBRARY_PATH, Linker, program};
use crate::libraries::nvshmem::{HOST_LIBRARY, Nvshmem, in_directory, in_prefix};

const USUAL: [&str; 3] = ["/usr/local/nvshmem", "/opt/nvshmem", "/usr/lib/nvshmem"];

/// Returns the NVSHMEM that was named; or else all that are found, those that programs are likelier
/// to use first.
pub(crate) fn all(named: Option<&Path>, linker: &Linker) -> Result<Vec<Nvshmem>, ToolError> {
    if let Some(named) = named {
        return Ok(vec![Nvshmem::at(named, linker)?]);
    }
    let mut places: Vec<(String, Vec<PathBuf>)> = Vec::new();
    let mut add = |by: &str, libraries| places.push((by.to_owned(), libraries));
    variable("NVSHMEM_HOME").iter().for_each(|home| add("NVSHMEM_HOME", in_prefix(home)));
    linker.library_path.iter().for_each(|at| add(LIBRARY_PATH, in_directory(at)));
    if let Some(packages) = own_packages() {
        let directory = packages.join("nvidia/nvshmem/lib");
        add("the packages beside this program", in_directory(&directory));
    }
    if let Some(python) = program(OsStr::new("python3")) {
        add(&format!("the packages of {}", python.display()), of_python(&python));
    }
    add("the linker's cache", linker.cached(HOST_LIBRARY));
    USUAL.iter().for_each(|at| add("a usual directory", in_prefix(Path::new(at))));
    variable("CONDA_PREFIX").iter().for_each(|at| add("CONDA_PREFIX", in_prefix(at)));
    for directory in by_cuda_release(Path::new("/usr/lib")) {
        add("NVIDIA's packages of the distribution", in_directory(&directory));
    }
    for directory in hpc_sdk() {
        add("NVIDIA's HPC SDK", in_prefix(&directory));
    }

    let mut found: Vec<Nvshmem> = Vec::new();
    let libraries = places.iter().flat_map(|(by, all)| all.iter().map(move |at| (by, at)));
    for (by, library) in libraries {
        let file = |path: &Path| fs::canonicalize(path).ok();
        // Several ways may lead to one file.
        match found.iter_mut().find(|known| file(&known.library) == file(library)) {
            Some(same) if same.found_by.contains(by) => {}
            Some(same) => same.found_by.push(by.clone()),
            None => found.extend(Nvshmem::read(library, by, linker)),
        }
    }
    Ok(found)
}

fn variable(name: &str) -> Option<PathBuf> {
    env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

pub(crate) fn wrong_home() -> Option<String> {
    let home = variable("NVSHMEM_HOME")?;
    let lacks = match home.is_dir() {
        false => String::from("is no directory"),
        true if in_prefix(&home).is_empty() => format!("has no {HOST_LIBRARY}* in lib or lib64"),
        true => return None,
    };
    Some(format!("NVSHMEM_HOME={} {lacks}, so it is not heeded", home.display()))
}

/// Python's packages that this program is among, where pip has installed it: it serves those of its
/// environment, also where that is not the one of the `python3` on `PATH`.
fn own_packages() -> Option<PathBuf> {
    let program = env::current_exe().ok()?;
    let package = program.ancestors().nth(2)?;
    let is_package = package.file_name() == Some(OsStr::new("nvshmem_libfabric"));
    package.parent().filter(|_| is_package).map(Path::to_owned)
}

pub(crate) fn of_python(python: &Path) -> Vec<PathBuf> {
    // The interpreter alone knows where its packages are. Conda has NVSHMEM beside the packages.
    let all = "import sys\nfor p in sys.path + [sys.prefix]: print(p)";
    let said = child::output(python, &["-c", all]).unwrap_or_default();
    let directories = said.lines().filter(|line| line.starts_with('/')).map(Path::new);
    let places = directories.flat_map(|at| ["nvidia/nvshmem/lib", "lib"].map(|lib| at.join(lib)));
    places.flat_map(|at| in_directory(&at)).collect()
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

    #[test]
    fn packages_of_every_cuda_are_found() {
        let lib = test_support::scratch::Scratch::new();
        for release in ["12", "13"] {
            lib.write(&format!("x86_64-linux-gnu/nvshmem/{release}/file"), "");
        }
        let found = by_cuda_release(&lib);
        let names: Vec<_> = found.iter().filter_map(|path| path.file_name()).collect();
        assert_eq!(names, ["13", "12"]);
        assert!(by_cuda_release(&lib.join("none")).is_empty());
    }
}
