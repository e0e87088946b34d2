//! One PE writes to or reads from one other, in windows that each end with a quiet.

use std::time::Instant;

use nvshmem_abi::c;

use nvshmem_sim::{Amo, BoxError, Error, Job, Ops, Pattern};

use super::tally::{BYTES, SECONDS, Tally};
use crate::experiment::StreamOp;

/// Operations before the timed ones, at least: each rail has made its connection then, and TCP has
/// found its window.
const WARM_UP: u64 = 8;

#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    pub(super) op: StreamOp,
    pub(super) bytes: u64,
    pub(super) window: u64,
    pub(super) windows: u64,
}

pub(super) fn run(job: &Job, stream: Stream) -> Result<(), BoxError> {
    let Stream { op, bytes, window, windows } = stream;
    let (active, passive) = (0, 1);
    let me = job.pe();
    let host = job.init()?;
    let (source, target) = (host.alloc(bytes * window, 4096)?, host.alloc(bytes * window, 4096)?);
    let signals = host.alloc(8 * window, 8)?;
    // Data goes from `source` to `target`, whoever starts the transfer.
    let (sender, receiver) =
        if op == StreamOp::Get { (passive, active) } else { (active, passive) };
    let pattern = Pattern::of(&[bytes, window]);
    if me == sender {
        host.local(source, bytes * window)?.fill(pattern, 0)?;
    }
    host.barrier()?;

    let warm_up = WARM_UP.div_ceil(window);
    if me == active {
        let one_window = move |ops: &Ops| {
            for at in 0..window {
                let (from, to) = (source.plus(at * bytes), target.plus(at * bytes));
                match op {
                    StreamOp::Put => ops.put_nbi(passive, to, from, bytes)?,
                    StreamOp::Get => ops.get_nbi(passive, from, to, bytes)?,
                    StreamOp::PutSignal => {
                        let add = Amo::new(c::NVT_AMO_SIGNAL_ADD, 8, 1);
                        ops.put_signal(passive, to, from, bytes, signals.plus(at * 8), &add)?;
                    }
                }
            }
            ops.quiet()
        };
        let seconds = host.proxy().run(move |ops| -> Result<f64, Error> {
            (0..warm_up).try_for_each(|_| one_window(ops))?;
            let start = Instant::now();
            (0..windows).try_for_each(|_| one_window(ops))?;
            Ok(start.elapsed().as_secs_f64())
        })??;
        job.report(BYTES, bytes * window * windows)?;
        job.report(SECONDS, seconds)?;
    }
    host.barrier()?;

    let mut tally = Tally::default();
    if me == receiver {
        let all = host.local(target, bytes * window)?;
        tally.take(|| format!("{op:?} of {bytes} bytes"), all.verify(pattern, 0))?;
    }
    if me == passive && op == StreamOp::PutSignal {
        for at in 0..window {
            let found = host.local(signals.plus(at * 8), 8)?.load_acquire()?;
            tally.word(|| format!("signal {at}"), found, warm_up + windows);
        }
    }
    tally.report(job)?;
    host.finalize()?;
    Ok(())
}
