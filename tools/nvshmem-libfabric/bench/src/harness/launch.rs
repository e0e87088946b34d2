//! The launcher's side of a suite: starts its jobs and collects the rounds that they report.

use std::fs;
use std::time::Duration;

use nvshmem_sim::{BoxError, JobReport, JobSettings, PrivateDir, Told};

use super::fabric::{Fabric, Provider};
use super::report::Report;
use crate::harness::pace::Effort;
use crate::harness::pace::Rates;
use crate::harness::scenario::ROUND_US;
use crate::harness::suite::Suite;
use crate::pe::CONTROL;
use crate::pe::control::CONTROL_BYTES;
use crate::times::case::{Case, Shape};
use crate::times::load::remarks;
use crate::times::rounds::Rounds;

/// What a job may take beyond its rounds.
pub(crate) const ALLOWANCE: Duration = Duration::from_secs(180);

/// What a round of a side may take with what surrounds it, generously: windows of 64 MiB at a tenth
/// of what sockets do.
const PER_ROUND: Duration = Duration::from_secs(1);

/// Runs a job to its end, which must be a good one, and calls `on_told` with what PE 0 tells.
pub(crate) fn run(
    job: JobSettings,
    dir: &PrivateDir,
    allowed: Duration,
    on_told: &mut dyn FnMut(Told<'_>),
) -> Result<JobReport, BoxError> {
    let mut job = job;
    // Hosts have no file together.
    if job.remote_of_pe.is_empty() {
        let control = dir.path().join("control");
        fs::write(&control, vec![0; CONTROL_BYTES])?;
        job = job.param(CONTROL, control.display());
    }
    let report = job
        .deadline(allowed)
        .step_deadline(allowed)
        .inherits_settings()
        .run_with(&mut |pe, _, told| {
            if pe == 0 {
                on_told(told);
            }
        })?
        .check()?;
    Ok(report)
}

/// The rounds that PE 0 has measured of a case.
pub(crate) fn decoded(report: &JobReport, case: &impl Case) -> Result<Rounds, BoxError> {
    let rounds = report.pes[0].value(&case.to_string());
    let rounds = rounds.ok_or_else(|| format!("no figures for {case}"))?;
    Rounds::decode(rounds).map_err(|e| format!("{case}: {e}").into())
}

/// What one case has measured on one provider, job by job.
pub(crate) type Measured<C> = Vec<(C, Vec<Rounds>)>;

/// Jobs of one kind.
pub(crate) struct Ran<C> {
    /// What the first PE has opened.
    pub(crate) opened: String,
    pub(crate) measured: Measured<C>,
    /// What took the processors beside the last job that had to share them.
    pub(crate) busy: Option<String>,
}

/// Measures a suite on every provider asked for, and keeps its figures. Returns all rounds.
///
/// # Errors
/// Wrong bytes, errors of any side, a job that did not end.
pub(crate) fn measure<S: Suite>(
    mut suite: S,
    fabric: &Fabric,
    rates: &Rates,
    report: &mut Report,
) -> Result<Measured<S::Case>, BoxError> {
    let mut all = Vec::new();
    for provider in rates.providers() {
        for &shape in S::SHAPES {
            let Ran { opened, measured, busy } = loop {
                match jobs(&suite, fabric, rates, provider, shape) {
                    Err(error) if all.is_empty() && suite.retreat(&error) => {}
                    result => break result?,
                }
            };
            println!("\n{}, {shape} ({opened})", provider.full_name());
            busy.iter().for_each(|busy| println!("  WARNING: {}", crate::unfit(busy)));
            for (case, jobs) in &measured {
                report.measured(provider.name(), case, jobs, rates.samples)?;
            }
            all.extend(measured);
        }
    }
    Ok(all)
}

/// All jobs of one kind.
///
/// # Errors
/// As [`measure`].
pub(crate) fn jobs<S: Suite>(
    suite: &S,
    fabric: &Fabric,
    rates: &Rates,
    provider: Provider,
    shape: Shape,
) -> Result<Ran<S::Case>, BoxError> {
    let Effort { jobs, rounds } = rates.effort(S::EFFORT);
    let mut measured: Measured<S::Case> =
        suite.cases(shape).into_iter().map(|case| (case, Vec::new())).collect();
    let sides: usize = measured.iter().map(|(case, _)| case.sides().len()).sum();
    let (mut opened, mut busy) = (String::new(), None);
    for _ in 0..jobs {
        let job = fabric
            .job(S::NAME, provider, shape)?
            .param("rounds", rounds)
            .param(ROUND_US, rates.round().as_micros());
        let allowed = ALLOWANCE + (PER_ROUND + rates.round()) * rounds * sides as u32;
        let report = run(suite.job(job), &PrivateDir::new("nvshmem-bench")?, allowed, &mut |_| {})?;
        for (case, jobs) in &mut measured {
            jobs.push(decoded(&report, case)?);
        }
        opened = report.pes[0].value("opened").unwrap_or_default().to_owned();
        busy = remarks(&report, &vec![None; report.pes.len()])?.or(busy);
    }
    Ok(Ran { opened, measured, busy })
}
