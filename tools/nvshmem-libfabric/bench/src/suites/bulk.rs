//! Bytes in bulk over tcp: rails moved by threads of their own, beside all rails by the proxy
//! thread, and what that does to short operations.
//!
//! Each way is a job of its own; they run by turns. Over loopback no wire is a limit, so what
//! counts is how many cores move bytes: two PEs with four threads each want 16 cores.

use std::time::Duration;

use nvshmem_sim::{BoxError, JobSettings};

use crate::by_size::{BySize, Row, Test};
use crate::harness::fabric::{Fabric, Provider};
use crate::harness::report::Report;
use crate::times::case::Shape;
use crate::times::stats::median;

/// Bytes of long operations, one at a time.
const LONG: u64 = 16 << 20;

/// Bytes of short ones.
const SHORT: u64 = 8;

/// What is measured.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// The providers
    #[arg(long, value_enum, value_delimiter = ',', default_value = "tcp,rxm")]
    only: Vec<Provider>,
    /// Jobs of each kind; a figure is the median of their ratios
    #[arg(long, default_value_t = 3)]
    jobs: u32,
    /// Milliseconds for each row of a job
    #[arg(long, default_value_t = 300)]
    row_ms: u64,
}

/// Rails, and connections for bulk of each.
type Way = (usize, u8);

const ONE: Way = (1, 0);
const ONE_WITH_ONE: Way = (1, 1);
const ONE_WITH_FOUR: Way = (1, 4);
const FOUR: Way = (4, 0);
const FOUR_WITH_ONE: Way = (4, 1);

const WAYS: [Way; 5] = [ONE, ONE_WITH_ONE, ONE_WITH_FOUR, FOUR, FOUR_WITH_ONE];

/// Figures: what of, in which way over which. Those of times are better below one.
const FIGURES: [(&str, Test, Way, Way); 11] = [
    ("put_16MiB_4_rails_over_1", Test::PutBandwidth, FOUR_WITH_ONE, ONE),
    ("get_16MiB_4_rails_over_1", Test::GetBandwidth, FOUR_WITH_ONE, ONE),
    ("put_16MiB_4_rails_by_the_proxy_thread_over_1", Test::PutBandwidth, FOUR, ONE),
    ("put_16MiB_4_connections_over_1_rail", Test::PutBandwidth, ONE_WITH_FOUR, ONE),
    ("get_16MiB_4_connections_over_1_rail", Test::GetBandwidth, ONE_WITH_FOUR, ONE),
    ("put_16MiB_1_connection_over_1_rail", Test::PutBandwidth, ONE_WITH_ONE, ONE),
    ("put_8B_latency_4_connections_over_1_rail", Test::PutLatency, ONE_WITH_FOUR, ONE),
    ("put_8B_rate_4_connections_over_1_rail", Test::PutRate, ONE_WITH_FOUR, ONE),
    ("put_8B_latency_4_rails_with_threads_over_without", Test::PutLatency, FOUR_WITH_ONE, FOUR),
    ("get_8B_latency_4_rails_with_threads_over_without", Test::GetLatency, FOUR_WITH_ONE, FOUR),
    ("put_8B_rate_4_rails_with_threads_over_without", Test::PutRate, FOUR_WITH_ONE, FOUR),
];

/// Runs the jobs and keeps their figures.
///
/// # Errors
/// Wrong bytes, or a job that failed.
pub(crate) fn measure(
    Options { only, jobs, row_ms }: &Options,
    fabric: &Fabric,
    report: &mut Report,
) -> Result<(), BoxError> {
    let time = Duration::from_millis(*row_ms);
    for &provider in only {
        let mut rounds: Vec<Vec<Vec<Row>>> = Vec::new();
        for _ in 0..*jobs {
            rounds.push(
                WAYS.iter()
                    .map(|way| rows(*way, provider, fabric, time))
                    .collect::<Result<_, _>>()?,
            );
        }
        println!("{}: median of {jobs} jobs", provider.full_name());
        for (at, (rails, bulk)) in WAYS.iter().enumerate() {
            println!("  {rails} rail(s), {bulk} connection(s) for bulk each");
            for (test, unit) in [
                (Test::PutBandwidth, "GB/s"),
                (Test::GetBandwidth, "GB/s"),
                (Test::PutLatency, "us"),
                (Test::GetLatency, "us"),
                (Test::PutRate, "million/s"),
            ] {
                let all: Result<Vec<f64>, _> =
                    rounds.iter().map(|ways| value(&ways[at], test)).collect();
                let shown = median(&all?).ok_or("no jobs were asked for")?;
                println!("    {:<16} {:>8} B {shown:10.3} {unit}", test.name(), bytes(test));
            }
        }
        for (name, test, of, over) in FIGURES {
            let ratio = |ways: &Vec<Vec<Row>>| {
                let of_way = |way: Way| {
                    let at = WAYS.iter().position(|other| *other == way);
                    value(&ways[at.ok_or("an unknown way")?], test)
                };
                Ok::<f64, BoxError>(of_way(of)? / of_way(over)?)
            };
            let ratios: Result<Vec<f64>, BoxError> = rounds.iter().map(ratio).collect();
            let ratio = median(&ratios?).ok_or("no jobs were asked for")?;
            report.push(format!("bulk_{name}_{}", provider.name()), ratio, "ratio");
        }
    }
    Ok(())
}

/// The bytes of a test's operations.
fn bytes(test: Test) -> u64 {
    match test {
        Test::PutBandwidth | Test::GetBandwidth => LONG,
        _ => SHORT,
    }
}

fn value(rows: &[Row], test: Test) -> Result<f64, BoxError> {
    let found = rows.iter().find(|row| row.test == test && row.size == bytes(test));
    Ok(found.ok_or_else(|| format!("no {test} of {} bytes", bytes(test)))?.value)
}

/// Long operations and short ones, in a job each.
fn rows(
    (rails, bulk): Way,
    provider: Provider,
    fabric: &Fabric,
    time: Duration,
) -> Result<Vec<Row>, BoxError> {
    let job = fabric.job("", provider, Shape { peers: 1, rails })?;
    let job = job.debug("bulk_connections", bulk);
    let made = |measured: JobSettings| {
        job.env.iter().fold(measured, |measured, (name, value)| measured.env(name, value))
    };
    let mut rows = Vec::new();
    for by_size in [BySize { most: LONG, of_rails: true }, BySize { most: SHORT, of_rails: false }]
    {
        let measured = by_size.run(job.layout, &job.plugin_dir, time, None, &made, &mut || {})?;
        rows.extend(measured.rows);
    }
    Ok(rows)
}
