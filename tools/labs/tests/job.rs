//! Jobs of the plugin under test, and what is expected of their logs.

use std::time::Duration;

use libtest_mimic::Failed;
use nvshmem_sim::{BoxError, Job, JobReport, JobSettings, Layout, Outcome};
use test_support::built::{directory, plugin_dir};
use test_support::full;

use crate::pairwise::pairwise;

/// Traffic of `nvshmem_sim::traffic`.
pub(crate) const SCENARIOS: [&str; 5] = ["storm", "signals", "atomics", "operations", "order"];

pub(crate) fn job(scenario: &str, n_pes: u32) -> JobSettings {
    JobSettings::new(scenario, n_pes, Layout::V7, plugin_dir())
        .env("NVSHMEM_DEBUG", "INFO")
        // A machine that is busy with other things delays every wait.
        .env("NVSHMEM_LIBFABRIC_WARN_SECONDS", 500)
        .deadline(Duration::from_secs(600))
        .step_deadline(Duration::from_secs(300))
}

pub(crate) fn connect(job: &mut Job) -> Result<(), BoxError> {
    job.init()?.finalize()?;
    Ok(())
}

pub(crate) fn cases<const N: usize>(sizes: [usize; N]) -> impl Iterator<Item = [usize; N]> {
    pairwise(sizes).into_iter().step_by(if full() { 1 } else { 4 })
}

pub(crate) fn cxi_library() -> String {
    directory("cxi-lab-names", &[("libcxi_lab.so", "libcxi_lab.so")])
        .join("libcxi_lab.so")
        .display()
        .to_string()
}

pub(crate) fn efa_names() -> std::path::PathBuf {
    let names = [("libefa_lab.so", "libibverbs.so.1"), ("libefa_lab.so", "libefa.so.1")];
    directory("efa-lab-names", &names)
}

pub(crate) fn cudart_names() -> std::path::PathBuf {
    directory("cudart-lab-names", &[("libcudart_lab.so", "libcudart.so")])
}

pub(crate) fn says(text: &str, part: &str) -> Result<(), Failed> {
    if text.contains(part) { Ok(()) } else { Err(format!("no {part:?} in:\n{text}").into()) }
}

/// Checks that the first warning has all these parts.
pub(crate) fn warns(text: &str, parts: &[&str]) -> Result<(), Failed> {
    let warning = text.lines().find(|line| line.contains(" WARN ")).unwrap_or_default();
    parts.iter().try_for_each(|part| says(warning, part))
}

pub(crate) fn fails(report: &JobReport, pe: u32, words: &str) -> Result<(), Failed> {
    if !matches!(&report.pes[pe as usize].outcome, Outcome::Failed(_)) {
        return Err(format!("PE {pe} {}:\n{report}", &report.pes[pe as usize].outcome).into());
    }
    says(&report.pes[pe as usize].text(), words)
}

const ABOUT_THE_MACHINE: [&str; 4] = [
    "while a call of the program waits until that is idle",
    "is nearer to this PE's GPU",
    "memory of devices cannot be told from host memory",
    "some transfers from device memory call CUDA, and may wait for running kernels",
];

pub(crate) fn run(job: JobSettings) -> Result<JobReport, Failed> {
    let report: JobReport = job.run()?.check()?;
    let about_the_job = |line: &&str| {
        line.contains("WARN") && !ABOUT_THE_MACHINE.iter().any(|it| line.contains(it))
    };
    for pe in &report.pes {
        if let Some(line) = pe.text().lines().find(about_the_job) {
            return Err(format!("PE {} warned: {line}", pe.pe).into());
        }
    }
    Ok(report)
}
