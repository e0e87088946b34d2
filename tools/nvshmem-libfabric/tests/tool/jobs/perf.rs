//! `perf`: rows for people and for programs, of a plugin whose every byte is checked.

use std::process::Command;

use libtest_mimic::{Failed, Trial};

use crate::bed::{expect, good, plugins, tool, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("perf::table", table), trial("perf::failed_job_is_one_line", failed)]
}

const TESTS: &str = "put_bw get_bw put_latency get_latency put_signal_latency put_message_rate \
                     put_signal_message_rate";

fn perf() -> Command {
    let mut command = tool(&["perf", "--provider", "shm", "--milliseconds", "1", "--max", "64"]);
    command.arg("--plugin-dir").arg(plugins());
    command
}

fn table() -> Result<(), Failed> {
    let text = good(&mut perf())?;
    expect(text.contains("two PEs on one host, memory of the host;"), || text.clone())?;
    expect(text.contains(" 0 wrong."), || text.clone())?;
    for test in TESTS.split(' ') {
        let (_, rows) = text.split_once(&format!("\n#{test}\n")).ok_or("a table is missing")?;
        let row = rows.lines().find(|line| line.starts_with("8 ")).ok_or("no row of 8 bytes")?;
        let words: Vec<&str> = row.split_whitespace().collect();
        let (low, high) = words[3].split_once("..").ok_or("no spread")?;
        let (low, high, median): (f64, f64, f64) = (low.parse()?, high.parse()?, words[2].parse()?);
        expect(0.0 < low && low <= median && median <= high, || row.to_owned())?;
    }
    Ok(())
}

fn failed() -> Result<(), Failed> {
    let output = perf().env("NVSHMEM_LIBFABRIC_DEVICES", "mlx5_77").output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let told = said.contains("mlx5_77") && !said.contains("returned");
    expect(told && output.status.code() == Some(1), || format!("{output:?}"))
}
