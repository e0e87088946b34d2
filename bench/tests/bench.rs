//! The bench itself, with very short rounds: it runs, it gives every figure, and it fails when
//! something is wrong. How fast anything is, nothing here looks at.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};

use libtest_mimic::{Arguments, Failed, Trial};
use test_support::built::plugin_dir;
use test_support::needs::{self, libfabric2};

fn main() -> ExitCode {
    let trials = vec![
        trial("signals_over_rxm", signals_over_rxm),
        trial("signals_over_shm", signals_over_shm),
        needs::trial("signals_over_native_tcp", libfabric2(), |library| {
            signals_over_native_tcp(library);
            Ok(())
        }),
        trial("puts_and_gets_over_shm", puts_and_gets_over_shm),
        trial("a_job_that_cannot_start_is_a_failure", a_job_that_cannot_start_is_a_failure),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn trial(name: &str, run: fn()) -> Trial {
    Trial::test(name, move || -> Result<(), Failed> {
        run();
        Ok(())
    })
}

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nvshmem-bench"))
        .args(arguments)
        .output()
        .unwrap_or_else(|e| panic!("the bench did not start: {e}"))
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
fn short_run(provider: &str, more: &[&str]) -> BTreeSet<String> {
    let dir = plugin_dir().to_string_lossy().into_owned();
    let mut arguments = vec!["--plugin-dir", &dir, "--only", provider];
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

fn signals_over_rxm() {
    assert_signal_figures("rxm", &short_run("rxm", &["--signals"]));
}

fn signals_over_shm() {
    assert_signal_figures("shm", &short_run("shm", &["--signals"]));
}

fn signals_over_native_tcp(library: PathBuf) {
    let library = library.to_string_lossy();
    let found = short_run("tcp", &["--signals", "--libfabric2", &library]);
    assert_signal_figures("tcp", &found);
}

fn puts_and_gets_over_shm() {
    let found = short_run("shm", &[]);
    for name in ["put_8B_rate_over_raw_shm", "get_16MiB_over_raw_shm"] {
        assert!(found.contains(name), "{name} is not among {found:?}");
    }
}

fn a_job_that_cannot_start_is_a_failure() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("no-plugin-is-here");
    let dir = dir.to_string_lossy().into_owned();
    let output = bench(&["--plugin-dir", &dir, "--only", "shm", "--signals"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(!String::from_utf8_lossy(&output.stdout).contains("MEASURE"));
    assert!(String::from_utf8_lossy(&output.stderr).contains("nvshmem_transport_libfabric"));
}
