//! Starts the jobs, and makes figures of what they report.

use std::time::Duration;

use nvshmem_sim::{BoxError, MemoryKind, UserMapped};

use super::case::{Case, Side};
use super::places::CHUNK_BYTES;
use super::scenario;
use crate::launch::{ALLOWANCE, WorkDir, run};
use crate::options::{Device, Options};
use crate::provider::Provider;
use crate::report::{Report, print_samples};
use crate::rounds::Rounds;
use crate::stats::{Spread, median};

/// What a round of a side may take with what surrounds it, generously.
const PER_ROUND: Duration = Duration::from_secs(1);

/// What a driver answers that has no memory of the host's for its VMM interface.
const NO_HOST_MEMORY: &str = "cuMemCreate: CUDA_ERROR_NOT_SUPPORTED";

/// Rounds of all jobs of a provider, by case.
type Measured = Vec<(Case, Vec<Rounds>)>;

/// Measures everything.
///
/// # Errors
/// Wrong bytes, errors of any side, a job that did not end.
pub(crate) fn measure(
    device: &Device,
    options: &Options,
    report: &mut Report,
) -> Result<(), BoxError> {
    let mut with_host = true;
    let mut least = f64::INFINITY;
    let (mut out, mut inward) = (Vec::new(), Vec::new());
    for &provider in &options.providers {
        let mut cases: Measured = options.cases.iter().map(|case| (*case, Vec::new())).collect();
        let mut name = String::new();
        for _ in 0..options.jobs {
            name = match once(provider, device, options, with_host, &mut cases) {
                Err(error) if with_host && error.to_string().contains(NO_HOST_MEMORY) => {
                    println!(
                        "the device maps no memory of the host: only device memory is measured"
                    );
                    with_host = false;
                    once(provider, device, options, with_host, &mut cases)?
                }
                result => result?,
            };
        }
        println!("\n{}, 2 PEs, {name}", provider.full_name());
        for (case, jobs) in &cases {
            let shown = show(provider, *case, jobs, with_host, report)?;
            if case.has_copies() {
                least = least.min(shown.unwrap_or(f64::NAN));
                let place = |side| place(*case, with_host, side);
                out.extend(jobs.iter().flat_map(|rounds| rounds.seconds(place(Side::CopyOut))));
                inward.extend(jobs.iter().flat_map(|rounds| rounds.seconds(place(Side::CopyIn))));
                over_copy(provider, jobs, place, report)?;
            }
            if options.samples {
                let sides: Vec<&str> = case.sides(with_host).into_iter().map(Side::name).collect();
                print_samples(&case.to_string(), &sides, jobs);
            }
        }
    }
    if out.is_empty() {
        return Ok(());
    }
    if with_host {
        report.push(String::from("staged_put_1MiB_ratio"), least, "ratio");
    }
    for (name, seconds) in [("driver_copy_out", out), ("driver_copy_in", inward)] {
        let seconds = median(&seconds).ok_or("no copies of the driver were measured")?;
        let bytes = Case::ALL[0].bytes as f64;
        report.push(String::from(name), bytes / seconds / 1e9, "GB/s");
    }
    Ok(())
}

/// One job. Returns which device it was.
fn once(
    provider: Provider,
    device: &Device,
    options: &Options,
    with_host: bool,
    cases: &mut Measured,
) -> Result<String, BoxError> {
    let dir = WorkDir::create()?;
    let mut job = provider
        .job_of_rounds(scenario::SCENARIO, options, 2, 1)
        // Also where the fabric would reach it.
        .env("NVSHMEM_LIBFABRIC_GPU_DIRECT", "never")
        .memory(MemoryKind::DeviceVmm)
        .heap(if with_host { 2 * CHUNK_BYTES } else { CHUNK_BYTES }, CHUNK_BYTES)
        .param("host", with_host)
        .param("cases", options.cases.iter().map(Case::to_string).collect::<Vec<_>>().join(","));
    if with_host {
        job = job.user_mapped(UserMapped::HostNuma);
    }
    if let Device::StandIn(directory) = device {
        job = job.cuda_driver(directory);
    }
    let sides: usize = options.cases.iter().map(|case| case.sides(with_host).len()).sum();
    let allowed = ALLOWANCE + (PER_ROUND + options.round) * options.rounds * sides as u32;
    let report = run(job, &dir.control()?, allowed)?;
    let first = &report.pes[0];
    for (case, jobs) in cases {
        let rounds = first.value(&case.to_string()).and_then(Rounds::decode);
        jobs.push(rounds.ok_or_else(|| format!("no figures for {case}"))?);
    }
    Ok(first.value("device").unwrap_or_default().to_owned())
}

/// Where a side is among those of a case.
fn place(case: Case, with_host: bool, of: Side) -> usize {
    case.sides(with_host).iter().position(|side| *side == of).unwrap_or(usize::MAX)
}

/// Prints the rows of a case and keeps its figure. Returns what staging reaches of the rate on host
/// memory, where there is such.
fn show(
    provider: Provider,
    case: Case,
    jobs: &[Rounds],
    with_host: bool,
    report: &mut Report,
) -> Result<Option<f64>, BoxError> {
    let nothing = || format!("{case}: no rounds");
    let mut times = Vec::new();
    for (at, side) in case.sides(with_host).into_iter().enumerate() {
        let seconds: Vec<f64> = jobs.iter().flat_map(|rounds| rounds.seconds(at)).collect();
        let seconds = median(&seconds).ok_or_else(nothing)?;
        times.push(format!("{} {}", side.name(), case.show(seconds)));
        if side == Side::Staged && case.is_latency() {
            report.push(case.measure(provider.name()), seconds * 1e6, "us");
        }
    }
    println!("  {case}: {}", times.join(", "));
    if !with_host {
        return Ok(None);
    }
    // The rate on device memory over that on host memory: the times the other way round.
    let (staged, host) = (place(case, true, Side::Staged), place(case, true, Side::Host));
    let ratios: Vec<f64> = jobs.iter().flat_map(|rounds| rounds.ratios(host, staged)).collect();
    let spread = Spread::of(&ratios).ok_or_else(nothing)?;
    println!("    {:<44}{spread}", "staged/host");
    if !case.is_latency() {
        report.push(case.measure(provider.name()), spread.median, "ratio");
    }
    Ok(Some(spread.median))
}

/// The bandwidth of staged puts over that of the driver's copies, in the direction in which these are
/// slower: every byte is copied both ways.
fn over_copy(
    provider: Provider,
    jobs: &[Rounds],
    place: impl Fn(Side) -> usize,
    report: &mut Report,
) -> Result<(), BoxError> {
    let over = |side, rounds: &Rounds| rounds.ratios(place(side), place(Side::Staged));
    let ratios: Vec<f64> = jobs
        .iter()
        .flat_map(|rounds| {
            Iterator::zip(over(Side::CopyOut, rounds).into_iter(), over(Side::CopyIn, rounds))
                .map(|(out, inward)| out.max(inward))
        })
        .collect();
    let spread = Spread::of(&ratios).ok_or("no copies of the driver were measured")?;
    println!("    {:<44}{spread}", "staged/slower copy");
    report.push(format!("staged_put_1MiB_over_copy_{}", provider.name()), spread.median, "ratio");
    Ok(())
}
