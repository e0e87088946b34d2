//! Starts the jobs of a comparison and collects what they report.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use nvshmem_sim::{BoxError, JobReport, JobSettings};

use crate::area::AREA_BYTES;
use crate::case::Case;
use crate::compare;
use crate::control::CONTROL_BYTES;
use crate::options::Options;
use crate::provider::Provider;
use crate::rounds::Rounds;

/// What a job may take beyond its rounds.
pub(crate) const ALLOWANCE: Duration = Duration::from_secs(180);

/// A round with what surrounds it, generously: 16 MiB windows at a tenth of what sockets do.
const PER_PAIR: Duration = Duration::from_secs(1);

/// A directory of our own, removed at the end.
pub(crate) struct WorkDir(PathBuf);

impl WorkDir {
    pub(crate) fn create() -> io::Result<Self> {
        let name = format!("nvshmem-bench-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path)?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// A page for [`crate::control::Control`], all zero.
    pub(crate) fn control(&self) -> io::Result<PathBuf> {
        let path = self.0.join("control");
        fs::write(&path, vec![0; CONTROL_BYTES as usize])?;
        Ok(path)
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        // What stays is only untidy.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs a job to its end, which must be a good one.
pub(crate) fn run(
    job: JobSettings,
    control: &Path,
    allowed: Duration,
) -> Result<JobReport, BoxError> {
    let report = job
        .param("control", control.display())
        .deadline(allowed)
        .step_deadline(allowed)
        .run()?
        .check()?;
    Ok(report)
}

/// What the jobs of one provider have measured.
pub(crate) struct Compared {
    /// What raw libfabric has opened.
    pub(crate) opened: String,
    /// The rounds of each case, job by job.
    pub(crate) cases: Vec<(Case, Vec<Rounds>)>,
}

/// The plugin beside raw libfabric on one provider.
///
/// # Errors
/// Wrong bytes, errors of either side, a job that did not end.
pub(crate) fn compare(provider: Provider, options: &Options) -> Result<Compared, BoxError> {
    let mut cases: Vec<(Case, Vec<Rounds>)> = Case::all().map(|case| (case, Vec::new())).collect();
    let mut opened = String::new();
    for _ in 0..options.jobs {
        opened = compare_once(provider, options, &mut cases)?;
    }
    Ok(Compared { opened, cases })
}

fn compare_once(
    provider: Provider,
    options: &Options,
    cases: &mut [(Case, Vec<Rounds>)],
) -> Result<String, BoxError> {
    let dir = WorkDir::create()?;
    // One chunk, so that no operation is cut.
    let heap = (2 * AREA_BYTES).next_power_of_two();
    let job = provider.job_of_rounds(compare::SCENARIO, options, 2, 1).heap(heap, heap);
    let allowed = ALLOWANCE + PER_PAIR * options.rounds * Case::all().count() as u32;
    let report = run(job, &dir.control()?, allowed)?;
    let first = &report.pes[0];
    for (case, jobs) in cases {
        let rounds = first.value(&case.to_string()).and_then(Rounds::decode);
        jobs.push(rounds.ok_or_else(|| format!("no figures for {case}"))?);
    }
    Ok(first.value("raw").unwrap_or_default().to_owned())
}
