//! The bench itself, with very short rounds: it runs, it gives every figure, and it fails when
//! something is wrong. How fast anything is, nothing here looks at.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nvshmem-bench"))
        .args(arguments)
        .output()
        .unwrap_or_else(|e| panic!("the bench did not start: {e}"))
}

/// Where the installed plugin is; `make test` says it.
fn plugin_dir() -> Option<String> {
    let dir = std::env::var("NVSHMEM_TEST_PLUGIN_DIR").ok();
    if dir.is_none() {
        eprintln!("skipped: NVSHMEM_TEST_PLUGIN_DIR does not say where the plugin is installed");
    }
    dir
}

/// Names of the figures of a short run, each with a value that a measurement can have.
fn figures(arguments: &[&str]) -> BTreeSet<String> {
    let output = bench(arguments);
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {text}{errors}");
    let figure = |line: &str| {
        let mut words = line.strip_prefix("MEASURE ")?.split(' ').map(str::to_owned);
        let (name, value) = (words.next()?, words.next()?.parse::<f64>().ok()?);
        assert!(value.is_finite() && value > 0.0, "{line}");
        Some(name)
    };
    text.lines().filter_map(figure).collect()
}

/// A run on one provider, as short as it can be.
fn short_run<'a>(dir: &'a str, provider: &'a str, more: &[&'a str]) -> BTreeSet<String> {
    let mut arguments = vec!["--plugin-dir", dir, "--only", provider];
    arguments.extend(["--jobs", "1", "--rounds", "2", "--round-ms", "1"]);
    arguments.extend(more);
    figures(&arguments)
}

#[track_caller]
fn assert_signal_figures(provider: &str, found: &BTreeSet<String>) {
    for name in [
        format!("put_signal_8B_rate_over_reference_{provider}"),
        format!("put_signal_4KiB_rate_over_reference_{provider}_7_peers"),
        format!("put_signal_8B_latency_over_raw_{provider}"),
        format!("put_signal_64KiB_latency_over_reference_{provider}_7_peers"),
        format!("fence_signal_cost_over_reference_{provider}"),
        format!("fetch_add_over_raw_{provider}"),
    ] {
        assert!(found.contains(&name), "{name} is not among {found:?}");
    }
}

#[test]
fn signals_over_rxm() {
    let Some(dir) = plugin_dir() else { return };
    assert_signal_figures("rxm", &short_run(&dir, "rxm", &["--signals"]));
}

#[test]
fn signals_over_shm() {
    let Some(dir) = plugin_dir() else { return };
    assert_signal_figures("shm", &short_run(&dir, "shm", &["--signals"]));
}

#[test]
fn signals_over_native_tcp() {
    let Some(dir) = plugin_dir() else { return };
    let library = std::env::var("NVSHMEM_TEST_LIBFABRIC2").unwrap_or_default();
    if library.is_empty() {
        eprintln!("skipped: NVSHMEM_TEST_LIBFABRIC2 names no libfabric 2.x");
        return;
    }
    let found = short_run(&dir, "tcp", &["--signals", "--libfabric2", &library]);
    assert_signal_figures("tcp", &found);
}

#[test]
fn puts_and_gets_over_shm() {
    let Some(dir) = plugin_dir() else { return };
    let found = short_run(&dir, "shm", &[]);
    for name in ["put_8B_rate_over_raw_shm", "get_16MiB_over_raw_shm"] {
        assert!(found.contains(name), "{name} is not among {found:?}");
    }
}

#[test]
fn a_job_that_cannot_start_is_a_failure() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("no-plugin-is-here");
    let dir = dir.to_string_lossy().into_owned();
    let output = bench(&["--plugin-dir", &dir, "--only", "shm", "--signals"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(!String::from_utf8_lossy(&output.stdout).contains("MEASURE"));
    assert!(String::from_utf8_lossy(&output.stderr).contains("nvshmem_transport_libfabric"));
}
