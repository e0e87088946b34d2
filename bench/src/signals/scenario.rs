//! A job that measures: every PE's part.

use nvshmem_sim::{BoxError, Job};

use super::case::{Case, Shape};
use super::party::{MAIL_BYTES, Party};
use super::peer::Peer;
use super::places::Places;
use super::source::Source;
use crate::raw::{Messages, Promise};
use crate::rounds::Rounds;
use crate::{cores, serve, setup};

/// Name of the scenario.
pub(crate) const SCENARIO: &str = "signals";

/// One PE. Parameters: `rails`, and those of [`setup`].
pub(crate) fn scenario(job: &mut Job) -> Result<(), BoxError> {
    let (schedule, control) = (setup::schedule(job)?, setup::control(job)?);
    let (me, n_pes) = (job.pe() as usize, job.n_pes() as usize);
    let shape = Shape { peers: job.n_pes() - 1, rails: job.param("rails")? };
    let host = job.init()?;
    let places = Places::alloc(&host)?;
    // One message to each peer, and one from it.
    // SAFETY: it lives in the closures below, which have ended before `finalize`.
    let raw = unsafe { setup::open_raw(job, &host, Promise::Default, 2)? };
    job.report("raw", raw.describe())?;
    // SAFETY: the slots are in the heap, and nothing else is put there.
    let messages = unsafe { Messages::new(raw, places.mail.0, MAIL_BYTES)? };
    // All have posted their receive buffers before the first message.
    host.barrier()?;

    if me == 0 {
        let rounds = host.proxy().run(move |ops| -> Result<Vec<(Case, Rounds)>, String> {
            cores::bind(me, n_pes).map_err(|e| e.to_string())?;
            let mut source = Source::new(Party::new(ops, Some(messages), places), control);
            let rounds = shape
                .cases()
                .into_iter()
                .map(|case| source.measure(case, schedule).map(|rounds| (case, rounds)));
            let rounds = rounds.collect::<Result<_, String>>()?;
            source.stop()?;
            Ok(rounds)
        })??;
        for (case, rounds) in rounds {
            job.report(&case.to_string(), rounds.encode())?;
        }
    } else {
        host.proxy().run(move |ops| {
            cores::bind(me, n_pes).map_err(|e| e.to_string())?;
            serve::serve(&mut Peer::new(Party::new(ops, Some(messages), places)), control)
        })??;
    }
    host.finalize()?;
    Ok(())
}
