//! `perf`: rows for people and for programs, of a plugin whose every byte is checked.

use std::process::{Child, Command};
use std::thread;

use libtest_mimic::{Failed, Trial};

use test_support::built;

use crate::bed::{Scratch, bad, expect, good, json, plugins, tool, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("perf::rows_of_every_test", rows),
        trial("perf::memory_of_gpus", gpus),
        trial("perf::a_busy_machine_is_told", busy),
        trial("perf::bench_beside_raw_libfabric", bench),
        trial("perf::bad_input", bad_input),
    ]
}

const TESTS: [&str; 5] = ["put_bw", "get_bw", "put_latency", "get_latency", "put_message_rate"];

fn rows() -> Result<(), Failed> {
    let perf = |more: &[&str]| {
        let mut command =
            tool(&["perf", "--provider", "shm", "--milliseconds", "1", "--max", "64"]);
        command.args(more).arg("--plugin-dir").arg(plugins());
        command
    };
    let text = good(&mut perf(&[]))?;
    for test in TESTS {
        let (table, line) = (format!("#{test}\n"), format!("&&&& PERF {test}___host___size__8___"));
        expect(text.contains(&table) && text.contains(&line), || {
            format!("{test} is not in\n{text}")
        })?;
    }
    expect(text.contains(" 0 wrong."), || text.clone())?;
    let headline = text.lines().next().unwrap_or_default();
    let all = ["put ", " GB/sec (", ", get ", " us (", " million puts a second"];
    expect(all.iter().all(|part| headline.contains(part)), || text.clone())?;
    // Puts of 8 bytes, which are measured once: GB/s, and millions of them a second.
    let agree = |bandwidth: f64, rate: f64| {
        let half_a_digit = 0.5e-6 * (1e3 / 8.0 + 1.0);
        expect((bandwidth * 1e3 / 8.0 - rate).abs() <= half_a_digit * 1.01, || {
            format!("{bandwidth} GB/s of 8 bytes, {rate} million/s")
        })
    };
    let line = |metric: &str| {
        let mut lines = text.lines().filter_map(|line| line.split_once(metric));
        let value = lines.next().and_then(|(_, rest)| rest.trim().split(' ').next());
        value.and_then(|value| value.parse().ok()).ok_or_else(|| format!("no {metric} in\n{text}"))
    };
    agree(
        line("put_bw___host___size__8___BW")?,
        line("put_message_rate___host___size__8___rate")?,
    )?;
    let row = |test: &str| {
        let table = text.split_once(&format!("#{test}\n")).map_or("", |(_, table)| table);
        let row = table.lines().find(|line| line.starts_with("8 "));
        let value = row.and_then(|row| row.split_whitespace().nth(2));
        value.and_then(|value| value.parse().ok()).ok_or_else(|| format!("no {test} in\n{text}"))
    };
    agree(row("put_bw")?, row("put_message_rate")?)?;
    // The median lies between what it is the median of.
    for line in text.lines().filter(|line| line.contains("..") && line.contains(" host ")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (low, high) = words[3].split_once("..").ok_or("no spread")?;
        let (low, high, median): (f64, f64, f64) = (low.parse()?, high.parse()?, words[2].parse()?);
        expect(low <= median && median <= high, || line.to_owned())?;
    }
    let figures = json(&mut perf(&["--json", "--layout", "3a"]))?;
    let figures = figures.as_array().cloned().unwrap_or_default();
    for test in TESTS {
        let mut of = figures.iter().filter(|figure| figure["test"] == test);
        let positive = of.all(|figure| figure["value"].as_f64().is_some_and(|value| value > 0.0));
        let some = figures.iter().any(|figure| figure["test"] == test);
        expect(some && positive, || format!("{test}: {figures:#?}"))?;
    }
    let figure = |test: &str| {
        let figure = figures.iter().find(|figure| figure["test"] == test && figure["bytes"] == 8);
        figure.and_then(|figure| figure["value"].as_f64()).ok_or_else(|| format!("no {test}"))
    };
    agree(figure("put_bw")?, figure("put_message_rate")?)
}

/// A stand-in's, whose driver says that PEs were on it.
fn gpus() -> Result<(), Failed> {
    let mut command = tool(&["perf", "--provider", "shm", "--milliseconds", "1", "--max", "64"]);
    command.args(["--memory", "gpu", "--plugin-dir"]).arg(plugins());
    let text = good(command.env("LD_LIBRARY_PATH", built::fake_cuda_dir()))?;
    let on = text.contains("two PEs on one host, memory of GPUs;");
    expect(on && text.contains(" 0 wrong.") && text.contains("\n#get_latency\n"), || text.clone())
}

/// Programs that take all they get of the processors, until they are dropped.
struct Hogs(Vec<Child>);

impl Hogs {
    fn new() -> Result<Self, Failed> {
        let processors = thread::available_parallelism()?.get();
        let mut hogs = Self(Vec::new());
        for _ in 0..processors {
            hogs.0.push(Command::new("sh").args(["-c", "while :; do :; done"]).spawn()?);
        }
        Ok(hogs)
    }
}

impl Drop for Hogs {
    fn drop(&mut self) {
        for hog in &mut self.0 {
            // One that has ended is no worse.
            let _ = hog.kill().and_then(|()| hog.wait());
        }
    }
}

fn busy() -> Result<(), Failed> {
    let _hogs = Hogs::new()?;
    let mut command = tool(&["perf", "--provider", "shm", "--milliseconds", "1", "--max", "8"]);
    let text = good(command.arg("--plugin-dir").arg(plugins()))?;
    let second = text.lines().nth(1).unwrap_or_default();
    let told = second.contains("other programs took ") && second.contains(" processors");
    expect(second.starts_with("warning  ") && told, || text.clone())
}

fn bench() -> Result<(), Failed> {
    let bench = |more: &[&str]| {
        let mut command = tool(&["bench", "puts", "--only", "shm", "--jobs", "1", "--rounds", "2"]);
        command.args(["--round-ms", "1"]).args(more).arg("--plugin-dir").arg(plugins());
        command
    };
    let text = good(&mut bench(&[]))?;
    expect(text.contains("\nMEASURE put_8B_rate_over_raw_shm "), || text.clone())?;
    // What is broken is told.
    let output = bench(&["--env", "NVSHMEM_LIBFABRIC_DEBUG=progress=never"]).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    expect(output.status.code() == Some(1) && !said.is_empty(), || format!("{output:?}"))
}

fn bad_input() -> Result<(), Failed> {
    bad(&mut tool(&["perf", "--max", "1"]), 2)?;
    let said = bad(&mut tool(&["perf", "--layout", "8"]), 2)?;
    expect(said.contains("are known"), || said.clone())?;
    let scratch = Scratch::new();
    bad(tool(&["perf", "--plugin-dir"]).arg(&scratch.0), 2)?;
    let perf = || {
        let mut command = tool(&["perf", "--milliseconds", "1", "--max", "64", "--plugin-dir"]);
        command.arg(plugins()).env("NVSHMEM_LIBFABRIC_DEVICES", "mlx5_77");
        command
    };
    let said = bad(&mut perf(), 2)?;
    expect(said.contains("mlx5_77"), || said.clone())?;
    let output = perf().args(["--provider", "shm"]).output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let told = said.contains("mlx5_77") && !said.contains("returned");
    expect(told && output.status.code() == Some(1), || format!("{output:?}"))
}
