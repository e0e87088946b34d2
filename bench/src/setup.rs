//! What the scenarios that measure in rounds have in common when they begin.
//!
//! Their parameters: `control`, `provider`, `library`, `source` (may be empty), `rounds`, `round_ms`.

use std::path::PathBuf;
use std::time::Duration;

use nvshmem_sim::{BoxError, Host, Job};

use crate::control::{Command, Control};
use crate::raw::{Opening, Promise, RECORD, Raw};
use crate::rounds::Schedule;

/// How long and how often to measure.
pub(crate) fn schedule(job: &Job) -> Result<Schedule, BoxError> {
    let least = Duration::from_millis(job.param("round_ms")?);
    Ok(Schedule { rounds: job.param("rounds")?, least })
}

/// The page through which PE 0 tells the others what to do.
pub(crate) fn control<C: Command>(job: &Job) -> Result<Control<C>, BoxError> {
    Ok(Control::open(&job.param::<PathBuf>("control")?, job.pe(), job.n_pes())?)
}

/// Opens the raw side on the job's heap, connected: PE 0 with all others, they with PE 0. A window
/// is so many operations to each peer.
///
/// # Safety
/// What is returned is dropped before the heap is given back, in [`Host::finalize`].
pub(crate) unsafe fn open_raw(
    job: &Job,
    host: &Host<'_>,
    promise: Promise,
    window: usize,
) -> Result<Raw, BoxError> {
    let source: String = job.param("source")?;
    let peers: Vec<usize> =
        if job.pe() == 0 { (1..job.n_pes() as usize).collect() } else { vec![0] };
    let mut raw = Raw::open(&Opening {
        library: &job.param::<String>("library")?,
        provider: &job.param::<String>("provider")?,
        source: (!source.is_empty()).then_some(source.as_str()),
        promise,
        window: window * peers.len(),
        peers: peers.len(),
    })?;
    let heap = host.heap()?;
    // SAFETY: the heap is given back in `finalize` or at the end of the process, and the caller
    // drops the raw side before.
    unsafe { raw.register(heap.as_ptr(), heap.len() as usize)? };
    let records = job.bootstrap().allgather(&raw.record()?)?;
    for peer in peers {
        raw.connect(&records[peer * RECORD..(peer + 1) * RECORD])?;
    }
    Ok(raw)
}
