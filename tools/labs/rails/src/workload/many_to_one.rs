//! Every PE but the first puts to the first, all at once.

use std::time::Instant;

use nvshmem_sim::{BoxError, Error, Job, Pattern};

use super::tally::{BYTES, SECONDS, Tally};

#[derive(Clone, Copy, Debug)]
pub(super) struct Puts {
    pub(super) bytes: u64,
    pub(super) second: u64,
    pub(super) window: u64,
    pub(super) windows: u64,
}

pub(super) fn run(job: &Job, puts: Puts) -> Result<(), BoxError> {
    let Puts { bytes, second, window, windows } = puts;
    let (me, n) = (job.pe(), job.n_pes());
    let host = job.init()?;
    let slot = bytes + second;
    // The same places in every PE's heap; those of PE 0 are written to.
    let source = host.alloc(slot * window, 4096)?;
    let inbox = host.alloc(slot * window * u64::from(n), 4096)?;
    let inbox_of = |pe: u32| inbox.plus(u64::from(pe) * slot * window);
    let pattern = |pe: u32| Pattern::of(&[u64::from(pe), bytes, second]);
    host.local(source, slot * window)?.fill(pattern(me), 0)?;
    host.barrier()?;

    if me != 0 {
        let mine = inbox_of(me);
        let seconds = host.proxy().run(move |ops| -> Result<f64, Error> {
            let start = Instant::now();
            for _ in 0..windows {
                for at in 0..window {
                    let (from, to) = (source.plus(at * slot), mine.plus(at * slot));
                    ops.put_nbi(0, to, from, bytes)?;
                    if second > 0 {
                        ops.put_nbi(0, to.plus(bytes), from.plus(bytes), second)?;
                    }
                }
                ops.quiet()?;
            }
            Ok(start.elapsed().as_secs_f64())
        })??;
        job.report(BYTES, slot * window * windows)?;
        job.report(SECONDS, seconds)?;
    }
    host.barrier()?;

    let mut tally = Tally::default();
    if me == 0 {
        for pe in 1..n {
            let part = host.local(inbox_of(pe), slot * window)?;
            tally.take(|| format!("puts of PE {pe}"), part.verify(pattern(pe), 0))?;
        }
    }
    tally.report(job)?;
    host.finalize()?;
    Ok(())
}
