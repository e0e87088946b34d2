//! The simulator against the test plugin: every layout, both kinds of threads at once, and every
//! way in which a job can fail.

mod device;
mod failures;
mod traffic;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use libtest_mimic::{Arguments, Trial};
use nvshmem_sim::{JobSettings, Layout, Scenario, pe_entry};

const SCENARIOS: &[(&str, Scenario)] = &[
    ("traffic", traffic::traffic),
    ("collectives", traffic::collectives),
    ("cycle", failures::cycle),
    ("exits", failures::exits),
    ("panics", failures::panics),
    ("dies", failures::dies),
    ("hangs", failures::hangs),
    ("disagrees", failures::disagrees),
    ("leaves", failures::leaves),
    ("proxy-error", failures::proxy_error),
    ("shared-memory", failures::shared_memory),
    ("device", device::scenario),
    ("device-touched", device::touched),
    ("device-broken", device::broken),
];

fn main() {
    pe_entry(SCENARIOS);
    let mut trials = Vec::new();
    for layout in Layout::ALL {
        for n_pes in [2, 4] {
            trials.push(Trial::test(format!("traffic::layout_{layout}::{n_pes}_pes"), move || {
                traffic::run(job("traffic", n_pes, layout))
            }));
        }
        trials.push(Trial::test(format!("traffic::layout_{layout}::one_pe"), move || {
            traffic::run(job("traffic", 1, layout))
        }));
    }
    traffic::add_trials(&mut trials);
    failures::add_trials(&mut trials);
    device::add_trials(&mut trials);
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

/// Settings with which nothing can take long.
fn job(scenario: &str, n_pes: u32, layout: Layout) -> JobSettings {
    JobSettings::new(scenario, n_pes, layout, plugin_dir())
        .heap(2 << 20, 128 << 10)
        .deadline(Duration::from_secs(60))
        .step_deadline(Duration::from_secs(30))
}

/// A directory with the test plugin under each name that a host opens.
fn plugin_dir() -> PathBuf {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let test = std::env::current_exe().expect("this test has a path");
        let built = test.parent().expect("it is in a directory");
        // The same for every run of this build, so that nothing piles up.
        let dir = built.join("nvshmem-sim-test-plugin");
        fs::create_dir_all(&dir).expect("a directory for the plugin");
        let library = built.join("libnvshmem_sim_test_plugin.so");
        assert!(library.exists(), "{} is not built", library.display());
        for layout in Layout::ALL {
            link(&library, &dir.join(layout.soname()));
        }
        dir
    })
    .clone()
}

/// A directory with the stand-in for CUDA's driver under the name of that.
fn cuda_dir() -> PathBuf {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let test = std::env::current_exe().expect("this test has a path");
        let built = test.parent().expect("it is in a directory");
        let dir = built.join("nvshmem-sim-fake-cuda");
        fs::create_dir_all(&dir).expect("a directory for the driver");
        let library = built.join("libfake_cuda.so");
        assert!(library.exists(), "{} is not built", library.display());
        link(&library, &dir.join("libcuda.so.1"));
        dir
    })
    .clone()
}

fn link(library: &Path, name: &Path) {
    if fs::read_link(name).is_ok_and(|target| target == library) {
        return;
    }
    // A link to another build's library is replaced.
    let _ = fs::remove_file(name);
    symlink(library, name).expect("a link to the plugin");
}
