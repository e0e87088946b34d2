//! The suites of jobs: those of two PEs, as tables of cases, and start-up.

use std::time::Instant;

use nvshmem_bench::{ALLOWANCE, Case, Op, Plan, RawOptions, Side, Spread, run};
use nvshmem_sim::{BoxError, Job, JobReport, JobSettings, Layout, Scenario};

use crate::report::Report;
use crate::{Options, Provider};

const TRANSFERS: [(u64, u64); 6] =
    [(8, 64), (64, 64), (4 << 10, 64), (64 << 10, 16), (1 << 20, 4), (16 << 20, 4)];

const SIGNALLED: [(u64, u64); 3] = [(8, 64), (4 << 10, 64), (64 << 10, 16)];

pub(crate) fn puts(options: &Options, report: &mut Report) -> Result<(), BoxError> {
    let sides = vec![Side::Raw, Side::Plugin];
    let case =
        |op| TRANSFERS.map(|(bytes, window)| Case { op, bytes, window, sides: sides.clone() });
    let cases = [case(Op::Put), case(Op::Get)].concat();
    for &provider in &options.only {
        let raw = Some(options.raw(provider, true)?);
        jobs(options, report, &plan(options, &cases, raw, 1), provider, 1, ("", ""))?;
    }
    Ok(())
}

/// Puts with signal, fences and fetching atomics. The reference drives the plugin to order as the
/// shipped transport does: put, quiet for every PE, then the signal as an atomic.
pub(crate) fn signal(options: &Options, report: &mut Report) -> Result<(), BoxError> {
    use Side::{Plugin, Raw, Reference};
    let of = |op, bytes, window, sides: &[Side]| Case { op, bytes, window, sides: sides.to_vec() };
    let rates =
        SIGNALLED.map(|(bytes, window)| of(Op::PutSignal, bytes, window, &[Plugin, Reference]));
    let latency = |(bytes, _)| of(Op::PingPong, bytes, 1, &[Raw, Plugin, Reference]);
    let mut cases = SIGNALLED.map(latency).to_vec();
    cases.push(of(Op::FetchAdd, 8, 1, &[Raw, Plugin]));
    cases.push(of(Op::Fence, 4 << 10, 28, &[Plugin, Reference]));
    for &provider in &options.only {
        let raw = Some(options.raw(provider, false)?);
        jobs(options, report, &plan(options, &cases, raw, 1), provider, 1, ("", ""))?;
        let rates = plan(options, &rates, None, 1);
        jobs(options, report, &rates, provider, 1, ("", "_1_rail"))?;
        jobs(options, report, &rates, provider, 2, ("", ""))?;
    }
    Ok(())
}

pub(crate) fn staged(options: &Options, report: &mut Report) -> Result<(), BoxError> {
    const CASES: [(Op, u64, u64); 7] = [
        (Op::Put, 1 << 20, 32),
        (Op::Put, 4 << 20, 8),
        (Op::Put, 16 << 20, 2),
        (Op::Get, 1 << 20, 32),
        (Op::Get, 256, 1024),
        (Op::Put, 8, 1),
        (Op::PutSignal, 4 << 10, 1),
    ];
    let sides = vec![Side::Host, Side::Plugin];
    let case = |(op, bytes, window)| Case { op, bytes, window, sides: sides.clone() };
    let plan = plan(options, &CASES.map(case), None, 2);
    for &provider in &options.only {
        jobs(options, report, &plan, provider, 1, ("staged_", ""))?;
    }
    Ok(())
}

fn plan(options: &Options, cases: &[Case], raw: Option<RawOptions>, chunks: u64) -> Plan {
    let schedule = Some(options.schedule());
    Plan { cases: cases.to_vec(), schedule, raw, chunks, is_controlled: true }
}

fn jobs(
    options: &Options,
    report: &mut Report,
    plan: &Plan,
    provider: Provider,
    rails: usize,
    (begin, end): (&str, &str),
) -> Result<(), BoxError> {
    let mut all = vec![Vec::new(); plan.cases.len()];
    let (name, full_name, _) = provider.names();
    for _ in 0..options.jobs {
        let (_, rounds) = run(options.job(plan, provider, rails)?, 10 * ALLOWANCE)?;
        all.iter_mut().zip(rounds).for_each(|(jobs, rounds)| jobs.push(rounds));
    }
    println!("\n{full_name}, {rails} rail(s)");
    for (case, jobs) in plan.cases.iter().zip(&all) {
        report.case(case, jobs, (begin, &format!("{name}{end}")))?;
    }
    Ok(())
}

pub(crate) const CONNECT: (&str, Scenario) = ("connect", scenario);

/// Start-up: connecting a job's endpoints, and the first contact of every PE with every other. The
/// processes share this machine's cores, so what counts is how the figures grow with their number.
pub(crate) fn connect(options: &Options, report: &mut Report) -> Result<(), BoxError> {
    for &provider in &options.only {
        for &n_pes in &options.pes {
            let mut ended = Vec::new();
            for _ in 0..options.jobs {
                let job = JobSettings::new(CONNECT.0, n_pes, Layout::V7, &options.plugin_dir);
                let job = options.on(job.heap(2 << 20, 2 << 20), provider, 1)?;
                ended.push(run(job, ALLOWANCE)?.0);
            }
            for what in ["connect", "first_contact"] {
                let slowest = |job: &JobReport| {
                    let of_pes = job.pes.iter().map(|pe| pe.value(what)?.parse::<f64>().ok());
                    of_pes.collect::<Option<Vec<f64>>>()?.into_iter().max_by(f64::total_cmp)
                };
                let seconds: Vec<f64> = ended.iter().filter_map(slowest).collect();
                let seconds = Spread::of(&seconds).ok_or("no PE has told its times")?.median;
                let name = format!("{what}_seconds_{n_pes}_pes_{}", provider.names().0);
                report.push(name, seconds, "s");
            }
        }
    }
    Ok(())
}

fn scenario(job: &mut Job) -> Result<(), BoxError> {
    const WORD: u64 = 8;
    let (me, n_pes) = (job.pe, job.n_pes());
    let host = job.init()?;
    let connected = host.connected_in;
    let (words, from) = (host.alloc(WORD * u64::from(n_pes), WORD)?, host.alloc(WORD, WORD)?);
    host.local(from, WORD)?.store_release(u64::from(me + 1))?;
    host.barrier()?;
    let began = Instant::now();
    for step in 1..n_pes {
        let place = words.plus(WORD * u64::from(me));
        host.proxy.put((me + step) % n_pes, place, from, WORD)?;
    }
    host.proxy.quiet()?;
    let contacted = began.elapsed();
    host.barrier()?;
    for pe in (0..n_pes).filter(|pe| *pe != me) {
        let found = host.local(words.plus(WORD * u64::from(pe)), WORD)?.load_acquire()?;
        if found != u64::from(pe + 1) {
            return Err(format!("PE {pe}'s word is {found}").into());
        }
    }
    host.finalize()?;
    job.report("connect", connected.as_secs_f64())?;
    job.report("first_contact", contacted.as_secs_f64())?;
    Ok(())
}
