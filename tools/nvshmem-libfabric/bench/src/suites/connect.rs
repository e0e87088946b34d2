//! Start-up: what connecting a job's endpoints takes, and the first contact of every PE with every
//! other.
//!
//! The processes of a job share this machine's cores, so what counts is how the figures grow with
//! the number of PEs.

use std::time::{Duration, Instant};

use nvshmem_sim::{BoxError, Job};

use crate::harness::fabric::{Fabric, Provider};
use crate::harness::launch::{ALLOWANCE, run};
use crate::harness::report::Report;
use crate::times::case::Shape;
use crate::times::stats::median;
use nvshmem_sim::PrivateDir;

/// Name of the jobs' scenario.
pub(crate) const NAME: &str = "bench-connect";

/// What a PE says to each of the others at first contact.
const WORD: u64 = 8;

/// Bytes of the heap, in one chunk: places for the words of so many PEs.
const HEAP: u64 = 2 << 20;

/// What is measured.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// The numbers of PEs
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "2,8,16")]
    pes: Vec<u32>,
    /// The providers
    #[arg(long, value_enum, value_delimiter = ',', default_value = "tcp,shm")]
    only: Vec<Provider>,
    /// Jobs of each kind; the figure is their median
    #[arg(long, default_value_t = 3)]
    jobs: u32,
}

/// Starts the jobs and keeps their figures.
///
/// # Errors
/// A job that failed.
pub(crate) fn measure(
    Options { pes, only, jobs }: &Options,
    fabric: &Fabric,
    report: &mut Report,
) -> Result<(), BoxError> {
    println!("seconds, the slowest PE of a job; median of {jobs} jobs");
    for &provider in only {
        for &n_pes in pes {
            let (mut connected, mut contacted) = (Vec::new(), Vec::new());
            for _ in 0..*jobs {
                let shape = Shape { peers: n_pes.saturating_sub(1), rails: 1 };
                let job = fabric.job(NAME, provider, shape)?.heap(HEAP, HEAP);
                let ended = run(job, &PrivateDir::new("nvshmem-bench")?, ALLOWANCE, &mut |_| {})?;
                let slowest = |name: &str| {
                    let of_pes = ended.pes.iter().map(|pe| pe.value(name)?.parse::<f64>().ok());
                    let of_pes: Option<Vec<f64>> = of_pes.collect();
                    let slowest = of_pes.and_then(|all| all.into_iter().max_by(f64::total_cmp));
                    slowest.ok_or_else(|| format!("a PE has not said its {name}"))
                };
                connected.push(slowest("connected")?);
                contacted.push(slowest("contacted")?);
            }
            let name = provider.name();
            let figures = [("connect", connected), ("first_contact", contacted)];
            for (what, seconds) in figures {
                let seconds = median(&seconds).ok_or("no jobs were asked for")?;
                println!("  {what:<14} {n_pes:>4} PEs, {name}: {seconds:.3}");
                report.push(format!("{what}_seconds_{n_pes}_pes_{name}"), seconds, "s");
            }
        }
    }
    Ok(())
}

/// One PE: connects, then puts a word to every other PE.
pub(crate) fn scenario(job: &mut Job) -> Result<(), BoxError> {
    let (me, n_pes) = (job.pe(), job.n_pes());
    let host = job.init()?;
    let connected: Duration = host.connected_in();
    let words = host.alloc(WORD * u64::from(n_pes), WORD)?;
    let from = host.alloc(WORD, WORD)?;
    host.local(from, WORD)?.store_release(u64::from(me + 1))?;
    host.barrier()?;
    let began = Instant::now();
    let place = words.plus(WORD * u64::from(me));
    for step in 1..n_pes {
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
    job.report("connected", connected.as_secs_f64())?;
    job.report("contacted", contacted.as_secs_f64())?;
    Ok(())
}
