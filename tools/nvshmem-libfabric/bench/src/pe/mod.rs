//! The PEs of a job, each in a process of its own: PE 0 issues and times, its peers serve it.
//!
//! All of it happens on the proxy threads, each of which stays on a core of its own where there are
//! enough: where the scheduler puts them is worth more than a factor of two, and is none of our
//! business. What a job's parameters are is in [`crate::harness::launch`].

pub(crate) mod control;
mod cores;
pub(crate) mod exchange;
pub(crate) mod party;
pub(crate) mod patience;
mod peer;
mod relay;
pub(crate) mod slots;
pub(crate) mod source;
pub(crate) mod window;

use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use nvshmem_sim::{BoxError, Host, Job};

use crate::raw::{Opening, Promise, RECORD, Raw};
use crate::times::load::{LOAD, Load};
use control::{Command, Control};
use party::{Party, RawSide};
use source::Source;

/// What a PE has when its part begins.
pub(crate) struct Opened<S> {
    pub(crate) raw: RawSide,
    pub(crate) state: S,
    /// What was opened, for people.
    pub(crate) description: String,
}

/// The parameter with the file that all PEs map for their control; none where they are on several
/// hosts.
pub(crate) const CONTROL: &str = "control";

/// What the proxy thread of PE 0 tells its main thread.
pub(crate) enum Heard {
    /// A value for the launcher.
    Value(String, String),
    /// There is a command on the page, to be passed on.
    Asked,
}

/// One PE: PE 0 acts and ends the others, which serve until then.
pub(crate) fn part<S: Send + 'static>(
    job: &Job,
    open: impl FnOnce(&Host<'_>) -> Result<Opened<S>, BoxError>,
    act: impl FnOnce(&mut Source<'_, S>) -> Result<(), String> + Send + 'static,
) -> Result<(), BoxError> {
    let (me, n_pes) = (job.pe() as usize, job.n_pes() as usize);
    let control = match job.params().contains_key(CONTROL) {
        true => Control::open(&job.param::<PathBuf>(CONTROL)?, job.pe(), job.n_pes())?,
        false => Control::alone(job.pe(), job.n_pes())?,
    };
    let pause = Duration::from_millis(job.param("pause_ms")?);
    let binds = job.param_or("binds", true)?;
    let host = job.init()?;
    let Opened { raw, state, description } = open(&host)?;
    job.report("opened", description)?;
    // All have posted their receive buffers before the first message.
    host.barrier()?;
    let (told, heard) = mpsc::channel();
    let relayed = (!job.params().contains_key(CONTROL)).then(|| control.again());
    let control = if relayed.is_some() { control.with_bell(told.clone()) } else { control };
    let before = Load::now();
    let running = host.proxy().start_run(move |ops| -> Result<(), String> {
        if binds {
            cores::bind(me, n_pes).map_err(|e| e.to_string())?;
        }
        let party = Party::new(ops, raw);
        if me > 0 {
            return peer::serve(party, control);
        }
        let mut source = Source::new(party, control, state, pause, told);
        act(&mut source)?;
        source.control.ask(Command::Stop)
    })?;
    // Until the part is over, however it ends, and nobody has the other end of it.
    match relayed {
        Some(page) => relay::serve(job, page, &heard)?,
        None => {
            for heard in heard {
                if let Heard::Value(name, value) = heard {
                    job.report(&name, value)?;
                }
            }
        }
    }
    running.wait()??;
    if let Some((before, now)) = before.zip(Load::now()) {
        job.report(LOAD, serde_json::to_string(&now.since(before))?)?;
    }
    host.finalize()?;
    Ok(())
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
