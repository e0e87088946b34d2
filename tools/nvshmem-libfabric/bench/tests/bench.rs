//! The bench itself, with very short rounds: it runs, it gives every figure, and it fails when
//! something is wrong. How fast anything is, nothing here looks at.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};

use libtest_mimic::{Arguments, Failed, Trial};
use test_support::built::{fake_cuda_dir, plugin_dir};
use test_support::needs::{self, libfabric2};

fn main() -> ExitCode {
    let trials = vec![
        trial("puts_over_rxm", puts_over_rxm),
        trial("signals_over_shm", signals_over_shm),
        needs::trial("signals_over_native_tcp", libfabric2(), |library| {
            signals_over_native_tcp(library);
            Ok(())
        }),
        trial("staged_memory_over_shm", staged_memory_over_shm),
        trial("the_channel_over_shm", the_channel_over_shm),
        trial("connecting_over_shm", connecting_over_shm),
        trial("threads_for_bulk_over_rxm", threads_for_bulk_over_rxm),
        trial("a_job_that_cannot_start_is_a_failure", a_job_that_cannot_start_is_a_failure),
        trial("an_efa_lab_that_is_not_there_is_refused", an_efa_lab_that_is_not_there_is_refused),
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

/// Names of the figures of a run that is as short as it can be, each with a value that a
/// measurement can have.
fn short_run(suite: &str, more: &[&str]) -> BTreeSet<String> {
    let mut arguments = vec![suite, "--jobs", "1", "--rounds", "2", "--round-ms", "1"];
    arguments.extend(more);
    figures(&bench(&arguments))
}

fn figures(output: &Output) -> BTreeSet<String> {
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    let figure = |line: &str| {
        let mut words = line.strip_prefix("MEASURE ")?.split(' ').map(str::to_owned);
        let (name, value) = (words.next()?, words.next()?.parse::<f64>().ok()?);
        assert!(value.is_finite() && value > 0.0, "{line}");
        Some(name)
    };
    text.lines().filter_map(figure).collect()
}

/// The same of a suite that drives the plugin, on one provider.
fn run_on(suite: &str, provider: &str, more: &[&str]) -> BTreeSet<String> {
    let dir = plugin_dir().to_string_lossy().into_owned();
    let mut arguments = vec!["--plugin-dir", &dir, "--only", provider];
    arguments.extend(more);
    short_run(suite, &arguments)
}

#[track_caller]
fn assert_figures(found: &BTreeSet<String>, names: &[&str]) {
    for name in names {
        assert!(found.contains(*name), "{name} is not among {found:?}");
    }
}

fn puts_over_rxm() {
    let names = ["put_8B_rate_over_raw_rxm", "get_16MiB_over_raw_rxm"];
    assert_figures(&run_on("puts", "rxm", &[]), &names);
}

fn signals_over_shm() {
    let names = [
        "put_signal_8B_rate_over_reference_shm",
        "put_signal_4KiB_rate_over_reference_shm_7_peers",
        "put_signal_8B_latency_over_raw_shm",
        "put_signal_64KiB_latency_over_reference_shm_7_peers",
        "fence_signal_cost_over_reference_shm",
        "fetch_add_over_raw_shm",
    ];
    assert_figures(&run_on("signals", "shm", &[]), &names);
}

fn signals_over_native_tcp(library: PathBuf) {
    let found = run_on("signals", "tcp", &["--libfabric2", &library.to_string_lossy()]);
    assert_figures(&found, &["put_signal_8B_latency_over_raw_tcp"]);
}

fn staged_memory_over_shm() {
    let driver = fake_cuda_dir().to_string_lossy().into_owned();
    let cases = "put_1MiB,put_signal_4KiB";
    let found = run_on("staged", "shm", &["--cuda-driver", &driver, "--cases", cases]);
    let names = [
        "staged_put_1MiB_ratio_shm",
        "staged_put_1MiB_ratio",
        "staged_put_1MiB_over_copy_shm",
        "staged_put_signal_4KiB_latency_shm",
        "driver_copy_in",
    ];
    assert_figures(&found, &names);
}

fn the_channel_over_shm() {
    assert_figures(&short_run("channel", &[]), &["channel_rate_over_direct_shm"]);
}

fn connecting_over_shm() {
    let dir = plugin_dir().to_string_lossy().into_owned();
    let output =
        bench(&["connect", "--plugin-dir", &dir, "--only", "shm", "--pes", "3", "--jobs", "1"]);
    let names = ["connect_seconds_3_pes_shm", "first_contact_seconds_3_pes_shm"];
    assert_figures(&figures(&output), &names);
}

fn threads_for_bulk_over_rxm() {
    let dir = plugin_dir().to_string_lossy().into_owned();
    let shortest = ["--jobs", "1", "--row-ms", "1"];
    let output = bench(&[&["bulk", "--plugin-dir", &dir, "--only", "rxm"], &shortest[..]].concat());
    let names = [
        "bulk_put_16MiB_4_rails_over_1_rxm",
        "bulk_get_16MiB_4_connections_over_1_rail_rxm",
        "bulk_put_8B_latency_4_rails_with_threads_over_without_rxm",
    ];
    assert_figures(&figures(&output), &names);
}

fn a_job_that_cannot_start_is_a_failure() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("no-plugin-is-here");
    let dir = dir.to_string_lossy().into_owned();
    let output = bench(&["signals", "--plugin-dir", &dir, "--only", "shm"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(!String::from_utf8_lossy(&output.stdout).contains("MEASURE"));
    assert!(String::from_utf8_lossy(&output.stderr).contains("nvshmem_transport_libfabric"));
}

fn an_efa_lab_that_is_not_there_is_refused() {
    let here = env!("CARGO_MANIFEST_DIR");
    let file = format!("{here}/Cargo.toml");
    let cases: [(&[&str], &str); 3] = [
        (
            &["--efa-lab", "/nowhere", "--libfabric2", &file],
            "`make bench-efa` makes such a directory",
        ),
        (&["--efa-lab", here, "--libfabric2", &file], "there is no libibverbs.so.1 in it"),
        (&["--efa-lab", here, "--libfabric2", "/nowhere"], "there is no "),
    ];
    for (arguments, said) in cases {
        let all = [&["instructions", "puts"], arguments].concat();
        let output = bench(&all);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{arguments:?}: {text}");
        assert!(text.contains(said) && output.stdout.is_empty(), "{arguments:?}: {text}");
    }
    // With a directory that has the names, it is the library that is looked at.
    let dir = std::env::temp_dir().join(format!("nvshmem-bench-efa-{}", std::process::id()));
    std::fs::create_dir(&dir).expect("a directory");
    for name in ["libibverbs.so.1", "libefa.so.1"] {
        std::fs::write(dir.join(name), "").expect("a file");
    }
    let output = bench(&[
        "instructions",
        "puts",
        "--efa-lab",
        &dir.to_string_lossy(),
        "--libfabric2",
        "/nowhere",
    ]);
    let alone = bench(&["instructions", "puts", "--efa-lab", &dir.to_string_lossy()]);
    std::fs::remove_dir_all(&dir).expect("removed");
    let text = String::from_utf8_lossy(&alone.stderr);
    assert!(!alone.status.success() && text.contains("--libfabric2 <FILE>"), "{text}");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && text.contains("`scripts/libfabric2.sh` fetches one"),
        "{text}"
    );
}
