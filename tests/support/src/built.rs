//! Shared libraries that cargo built beside the running test, in directories with the names that
//! their users open.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

/// The directory of the plugin under test, with a name for each major version of NVSHMEM's
/// interface: what `NVSHMEM_TEST_PLUGIN_DIR` says, else the plugin that was built with this test
/// program.
pub fn plugin_dir() -> PathBuf {
    crate::needs::named_by("NVSHMEM_TEST_PLUGIN_DIR").unwrap_or_else(|_| {
        const LAYOUTS: &str = include_str!("../../../crates/nvshmem-abi/layouts.json");
        let names =
            LAYOUTS.split('"').filter(|text| text.starts_with("nvshmem_transport_libfabric.so"));
        let names: BTreeSet<_> =
            names.map(|name| ("libnvshmem_transport_libfabric.so", name)).collect();
        let names = Vec::from_iter(names);
        directory("plugin-under-test", &names)
    })
}

pub fn nccl_plugin() -> PathBuf {
    let (built, name) = ("libnccl_rma_nvshmem_libfabric.so", "libnccl-rma-nvshmem-libfabric.so");
    directory("nccl-plugin-names", &[(built, name)]).join(name)
}

/// A directory for `LD_LIBRARY_PATH` with a CUDA driver and a GDRCopy that need no GPU.
pub fn fake_cuda_dir() -> PathBuf {
    let names = [("libfake_cuda.so", "libcuda.so.1"), ("libfake_cuda.so", "libgdrapi.so.2")];
    directory("fake-cuda-names", &names)
}

/// A directory beside the running program with links to libraries that were built there, each given
/// as (built, name). It is the same for every run of a build, so that nothing piles up.
pub fn directory(name: &str, links: &[(&str, &str)]) -> PathBuf {
    let program = std::env::current_exe().expect("the running program has a path");
    let built = program.parent().expect("a program is in a directory");
    let dir = built.join(name);
    fs::create_dir_all(&dir).expect("a directory for links");
    for (library, name) in links {
        link(&built.join(library), &dir.join(name));
    }
    dir
}

/// Makes the link unless it is there, under a name of its own that is then renamed: tests that run
/// at the same time may do so together.
fn link(library: &Path, name: &Path) {
    assert!(library.exists(), "{} is not built", library.display());
    if fs::read_link(name).is_ok_and(|target| target == library) {
        return;
    }
    static LINKS: AtomicU64 = AtomicU64::new(0);
    let mut fresh = name.as_os_str().to_owned();
    fresh.push(format!(".{}.{}", std::process::id(), LINKS.fetch_add(1, Ordering::Relaxed)));
    symlink(library, &fresh).expect("a link to a built library");
    fs::rename(&fresh, name).expect("the link takes its name");
}

/// Compiles a program or a library in C.
pub fn compile(output: &Path, source: &Path, flags: &[&str]) {
    let mut compiler = Command::new("cc");
    let compiled = compiler.arg("-o").arg(output).arg(source).args(flags).arg("-ldl").output();
    let compiled = compiled.expect("a C compiler");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
}
