//! What the PEs do: PE 0 measures against PE 1, from its proxy thread, as a device would drive it.

use std::time::{Duration, Instant};

use nvshmem_sim::{BoxError, Host, Job, Ops, Pattern, SymAddr};

use super::table::{Row, Test};

/// Most operations under way in the bandwidth and rate tests; fewer for large ones, so that no more
/// than this many bytes are.
const WINDOW: u64 = 64;
const WINDOW_BYTES: u64 = 16 << 20;

/// Bytes of the operations whose rate is counted.
const RATE_SIZES: [u64; 2] = [8, 64];

/// Places in the heap that all rows use.
#[derive(Clone, Copy)]
struct Places {
    source: SymAddr,
    target: SymAddr,
}

/// The scenario of the PEs.
pub(super) fn scenario(job: &mut Job) -> Result<(), BoxError> {
    let time = Duration::from_millis(job.param("milliseconds")?);
    let part = if job.param_or("by_rails", false)? { Part::OfRails } else { Part::All };
    let max: u64 = job.param("max")?;
    let host = job.init()?;
    let places = Places { source: host.alloc(max, 4096)?, target: host.alloc(max, 4096)? };
    host.barrier()?;
    if host.user().pe() == 0 {
        // The first operation on a rail makes the connection; that is not what is measured.
        for _ in 0..WINDOW {
            host.proxy().put(1, places.target, places.source, 8)?;
            host.proxy().get(1, places.target, places.source, 8)?;
        }
        host.proxy().quiet()?;
    }
    let mut verified = 0;
    for test in Test::ALL {
        for size in sizes(test, max, part) {
            verified += row(job, &host, test, size, time, places)?;
        }
    }
    job.report("verified", verified)?;
    host.finalize()?;
    Ok(())
}

/// Which rows are measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    /// All.
    All,
    /// Those that the number of rails matters for.
    OfRails,
}

/// How many rows there will be.
pub(super) fn rows(max: u64, part: Part) -> usize {
    Test::ALL.into_iter().map(|test| sizes(test, max, part).len()).sum()
}

fn sizes(test: Test, max: u64, part: Part) -> Vec<u64> {
    match test {
        Test::PutBandwidth | Test::GetBandwidth if part == Part::OfRails => vec![max],
        Test::PutRate if part == Part::OfRails => vec![RATE_SIZES[0]],
        _ if part == Part::OfRails => Vec::new(),
        Test::PutRate => RATE_SIZES.to_vec(),
        Test::PutLatency | Test::GetLatency => {
            std::iter::successors(Some(8), |size| Some(size * 4))
                .take_while(|s| *s <= max.min(64 << 10))
                .collect()
        }
        _ => std::iter::successors(Some(8), |size| Some(size * 2))
            .take_while(|s| *s <= max)
            .collect(),
    }
}

/// Measures one row and checks what was moved; returns how many bytes were compared.
fn row(
    job: &Job,
    host: &Host<'_>,
    test: Test,
    size: u64,
    time: Duration,
    Places { source, target }: Places,
) -> Result<u64, BoxError> {
    let me = host.user().pe();
    let pattern = Pattern::of(&[test as u64, size]);
    let puts = !matches!(test, Test::GetBandwidth | Test::GetLatency);
    // Data goes from `source` to `target`, whoever starts the transfer.
    let (sender, receiver) = if puts { (0, 1) } else { (1, 0) };
    host.local(target, size)?.set(0)?;
    if me == sender {
        host.local(source, size)?.fill(pattern, 0)?;
    }
    host.barrier()?;
    if me == 0 {
        let (remote, local) = if puts { (target, source) } else { (source, target) };
        let waits = matches!(test, Test::PutLatency | Test::GetLatency);
        let (operations, elapsed) = host.proxy().run(move |ops| {
            if waits {
                one_by_one(ops, puts, remote, local, size, time)
            } else {
                in_windows(ops, puts, remote, local, size, time)
            }
        })??;
        let seconds = elapsed.as_secs_f64();
        let value = match test {
            Test::PutBandwidth | Test::GetBandwidth => (operations * size) as f64 / seconds / 1e9,
            Test::PutLatency | Test::GetLatency => seconds * 1e6 / operations as f64,
            Test::PutRate => operations as f64 / seconds / 1e6,
        };
        job.report("row", Row { test, size, value })?;
    }
    host.barrier()?;
    if me != receiver {
        return Ok(0);
    }
    host.local(target, size)?
        .verify(pattern, 0)
        .map_err(|error| format!("{} of {size} bytes: {error}", test.name()))?;
    Ok(size)
}

type Measured = Result<(u64, Duration), nvshmem_sim::Error>;

/// Windows of operations, each ended by a quiet, for about `time`.
fn in_windows(
    ops: &Ops,
    puts: bool,
    remote: SymAddr,
    local: SymAddr,
    size: u64,
    time: Duration,
) -> Measured {
    let pieces = ops.plan(1, remote, local, size)?;
    let window = (WINDOW_BYTES / size).clamp(1, WINDOW);
    let start = Instant::now();
    let mut operations = 0;
    while start.elapsed() < time {
        for _ in 0..window {
            for piece in &pieces {
                if puts { ops.issue_put(piece)? } else { ops.issue_get(piece)? }
            }
        }
        ops.quiet_pe(1)?;
        operations += window;
    }
    Ok((operations, start.elapsed()))
}

/// One operation and a quiet at a time, for about `time`.
fn one_by_one(
    ops: &Ops,
    puts: bool,
    remote: SymAddr,
    local: SymAddr,
    size: u64,
    time: Duration,
) -> Measured {
    let pieces = ops.plan(1, remote, local, size)?;
    let start = Instant::now();
    let mut operations = 0;
    while start.elapsed() < time {
        for piece in &pieces {
            if puts { ops.issue_put(piece)? } else { ops.issue_get(piece)? }
        }
        ops.quiet_pe(1)?;
        operations += 1;
    }
    Ok((operations, start.elapsed()))
}
