//! Start-up: connecting a job's endpoints, and the first contact of every PE with every other. The
//! processes share this machine's cores, so what counts is how the figures grow with their number.

use std::time::Instant;

use nvshmem_bench::{ALLOWANCE, Spread, run};
use nvshmem_sim::{BoxError, Job, JobReport, JobSettings, Layout, Scenario};

use crate::Options;
use crate::report::Report;

pub(crate) const SCENARIO: (&str, Scenario) = ("connect", scenario);

const HEAP: u64 = 2 << 20;

pub(crate) fn measure(options: &Options, report: &mut Report) -> Result<(), BoxError> {
    for &provider in &options.only {
        for &n_pes in &options.pes {
            let mut ended = Vec::new();
            for _ in 0..options.jobs {
                let job = JobSettings::new(SCENARIO.0, n_pes, Layout::V7, &options.plugin_dir);
                let job = options.on(job.heap(HEAP, HEAP), provider, 1)?;
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
                println!("  {name:<40}{seconds:.3}");
                report.push(name, seconds, "s");
            }
        }
    }
    Ok(())
}

fn scenario(job: &mut Job) -> Result<(), BoxError> {
    const WORD: u64 = 8;
    let (me, n_pes) = (job.pe(), job.n_pes());
    let host = job.init()?;
    let connected = host.connected_in();
    let (words, from) = (host.alloc(WORD * u64::from(n_pes), WORD)?, host.alloc(WORD, WORD)?);
    host.local(from, WORD)?.store_release(u64::from(me + 1))?;
    host.barrier()?;
    let began = Instant::now();
    for step in 1..n_pes {
        let place = words.plus(WORD * u64::from(me));
        host.proxy().put((me + step) % n_pes, place, from, WORD)?;
    }
    host.proxy().quiet()?;
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
