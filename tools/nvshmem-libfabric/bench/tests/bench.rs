//! Every suite with very short rounds: it runs and gives its figures, and it fails when something
//! is wrong. How fast anything is, nothing here looks at.

use std::path::Path;
use std::process::{Command, ExitCode};

use libtest_mimic::{Arguments, Failed, Trial};
use test_support::built::{fake_cuda_dir, plugin_dir};

fn main() -> ExitCode {
    let trials = vec![
        trial("puts", "rxm", &["put_8B_rate_over_raw_rxm", "get_16MiB_over_raw_rxm"]),
        trial(
            "signal",
            "shm",
            &[
                "put_signal_8B_latency_over_raw_shm",
                "put_signal_64KiB_latency_over_reference_shm",
                "put_signal_8B_rate_over_reference_shm",
                "put_signal_4KiB_rate_over_reference_shm_1_rail",
                "fence_signal_cost_over_reference_shm",
                "fetch_add_over_raw_shm",
            ],
        ),
        trial(
            "staged",
            "shm",
            &["staged_put_1MiB_over_host_shm", "staged_put_signal_4KiB_latency_over_host_shm"],
        ),
        trial("channel", "shm", &["channel_rate_over_direct_shm"]),
        trial("connect", "shm", &["connect_seconds_3_pes_shm", "first_contact_seconds_3_pes_shm"]),
        Trial::test("failed_job", failed_job),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn bench(suite: &str, provider: &str, plugins: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvshmem-bench"));
    command.args([suite, "--only", provider, "--jobs", "1", "--rounds", "2", "--round-ms", "1"]);
    command.args(["--pes", "3"]).arg("--plugin-dir").arg(plugins);
    command.arg("--cuda-driver").arg(fake_cuda_dir());
    command
}

fn trial(suite: &'static str, provider: &'static str, names: &'static [&str]) -> Trial {
    Trial::test(suite, move || {
        let output = bench(suite, provider, &plugin_dir()).output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let value = |name: &str| {
            let begin = format!("MEASURE {name} ");
            let rest = text.lines().find_map(|line| line.strip_prefix(&begin))?;
            rest.split(' ').next()?.parse::<f64>().ok()
        };
        let missing = names.iter().find(|name| !value(name).is_some_and(|value| value > 0.0));
        match missing {
            None if output.status.success() => Ok(()),
            _ => Err(format!("{missing:?} in {output:?}").into()),
        }
    })
}

fn failed_job() -> Result<(), Failed> {
    let output = bench("puts", "shm", Path::new("/nowhere")).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    let told = said.contains("nvshmem_transport_libfabric") && output.status.code() == Some(1);
    let measured = String::from_utf8_lossy(&output.stdout).contains("MEASURE");
    if told && !measured { Ok(()) } else { Err(format!("{output:?}").into()) }
}
