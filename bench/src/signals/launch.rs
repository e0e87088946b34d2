//! Starts the jobs, and makes figures of what they report.

use std::time::Duration;

use nvshmem_sim::BoxError;

use super::case::{Case, Shape};
use super::count::{self, LENGTHS, SECTIONS};
use super::places::HEAP_BYTES;
use super::scenario;
use crate::instructions::{COUNTED, Counted, Sections};
use crate::launch::{ALLOWANCE, WorkDir, run};
use crate::options::Options;
use crate::provider::Provider;
use crate::report::{Report, print_samples};
use crate::rounds::Rounds;
use crate::stats::{Spread, median};

/// What a round of a side may take with what surrounds it, generously.
const PER_ROUND: Duration = Duration::from_secs(1);

/// Measures everything on one provider.
///
/// # Errors
/// Wrong bytes, errors of any side, a job that did not end.
pub(crate) fn compare(
    provider: Provider,
    options: &Options,
    report: &mut Report,
) -> Result<(), BoxError> {
    for shape in Shape::ALL {
        let mut cases: Vec<(Case, Vec<Rounds>)> =
            shape.cases().into_iter().map(|case| (case, Vec::new())).collect();
        let mut opened = String::new();
        for _ in 0..options.jobs {
            opened = compare_once(provider, options, shape, &mut cases)?;
        }
        let Shape { peers, rails } = shape;
        println!("\n{}, {peers} peer(s), {rails} rail(s) ({opened})", provider.full_name());
        for (case, jobs) in &cases {
            show(provider, *case, jobs, report)?;
            if options.samples {
                let sides: Vec<&str> = case.sides().iter().map(|side| side.name()).collect();
                print_samples(&case.to_string(), &sides, jobs);
            }
        }
    }
    Ok(())
}

/// One job. Returns what raw libfabric has opened.
fn compare_once(
    provider: Provider,
    options: &Options,
    shape: Shape,
    cases: &mut [(Case, Vec<Rounds>)],
) -> Result<String, BoxError> {
    let dir = WorkDir::create()?;
    let job = provider
        .job_of_rounds(scenario::SCENARIO, options, shape.peers + 1, shape.rails)
        .heap(HEAP_BYTES, HEAP_BYTES)
        .param("rails", shape.rails);
    let sides: usize = cases.iter().map(|(case, _)| case.sides().len()).sum();
    let allowed = ALLOWANCE + (PER_ROUND + options.round) * options.rounds * sides as u32;
    let report = run(job, &dir.control()?, allowed)?;
    let first = &report.pes[0];
    for (case, jobs) in cases {
        let rounds = first.value(&case.to_string()).and_then(Rounds::decode);
        jobs.push(rounds.ok_or_else(|| format!("no figures for {case}"))?);
    }
    Ok(first.value("raw").unwrap_or_default().to_owned())
}

/// Prints the rows of a case, and keeps its figures.
fn show(
    provider: Provider,
    case: Case,
    jobs: &[Rounds],
    report: &mut Report,
) -> Result<(), BoxError> {
    let place = |of| case.sides().iter().position(|side| *side == of).unwrap_or(usize::MAX);
    let mut times = Vec::new();
    for (at, side) in case.sides().iter().enumerate() {
        let seconds: Vec<f64> = jobs.iter().flat_map(|rounds| rounds.seconds(at)).collect();
        let seconds = median(&seconds).ok_or_else(|| format!("{case}: no rounds"))?;
        times.push(format!("{} {}", side.name(), case.show(seconds)));
    }
    println!("  {case}: {}", times.join(", "));
    for measure in case.measures(provider.name()) {
        let (of, over) = (place(measure.of), place(measure.over));
        let ratios = |rounds: &Rounds| match measure.whole {
            true => rounds.whole().ratios(of, over),
            false => rounds.ratios(of, over),
        };
        let ratios: Vec<f64> = jobs.iter().flat_map(ratios).collect();
        let spread = Spread::of(&ratios).ok_or_else(|| format!("{case}: no rounds"))?;
        println!("    {:<58}{spread}", measure.name);
        report.push(measure.name, spread.median, "ratio");
    }
    Ok(())
}

/// Counts the instructions of a put with signal, on both of its ends.
///
/// # Errors
/// No valgrind, a job that failed, files that are not understood.
pub(crate) fn count(options: &Options, report: &mut Report) -> Result<(), BoxError> {
    let dir = WorkDir::create()?;
    let mut job = COUNTED.job(count::SCENARIO, options, 2, 1).heap(HEAP_BYTES, HEAP_BYTES);
    let ends = ["sender", "receiver"];
    let sections = (0..)
        .zip(ends)
        .map(|(pe, end)| Sections::of(&mut job, pe, &format!("put_signal.{end}"), &dir, options))
        .collect::<Result<Vec<_>, BoxError>>()?;
    run(job, &dir.control()?, ALLOWANCE)?;

    println!("\ninstructions per 8-byte put_signal, 1 rail");
    println!("{:<52}{:>10}{:>14}", "", "plugin", "libfabric");
    let mut total = 0.0;
    let mut counted: Vec<(&str, Counted)> = Vec::new();
    for (end, sections) in ends.into_iter().zip(&sections) {
        let cost = sections.counted(SECTIONS, LENGTHS).map_err(|e| format!("{end}: {e}"))?;
        println!("{end:<52}{:>10.1}{:>14.1}", cost.ours, cost.libfabric);
        report.push(format!("put_signal_{end}_instructions"), cost.ours, "instructions");
        total += cost.ours;
        counted.push((end, cost));
    }
    report.push(String::from("put_signal_instructions"), total, "instructions");
    for (end, counted) in &counted {
        println!("\n8-byte put_signal, {end}: where its instructions are");
        crate::report::breakdown(counted, options.profile);
    }
    Ok(())
}
