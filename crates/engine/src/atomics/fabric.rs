//! Atomics that the fabric executes at the target, and the lane's books about them.
//!
//! # One applier
//! A word is changed atomically only by one actor, and libfabric counts each domain of the target
//! for one. So all atomics on the memory of a PE, those of its own among them, go to one of its
//! rails, [`TARGET_RAIL`], whatever rail they leave by. Signals are atomics as well. No message
//! changes a word in a job with atomics of the fabric: a lane that gets one fails.
//!
//! # Order
//! An atomic is a write to the connection: a fence holds it, quiet waits for its completion, which
//! means that it was executed and that the word before is here. The signal of a put leaves when its
//! data is delivered: what a provider promises about atomics behind writes is not relied on.
//!
//! # Why it cannot deadlock
//! Atomics are segments like transfers: they wait for room on their rail, which completions make. A
//! completion of one only moves segments between queues, as for transfers.

use crate::error::EngineError;
use crate::ids::WrId;
use crate::port::{Direction, Port};
use crate::posting::transmit::dispatch::Behind;
use crate::posting::{Core, Tried};
pub use crate::rails::paths::{AtomicPath, TARGET_RAIL};
use crate::request::{AtomicRequest, ResultPlace};
use crate::state::fabric_atomics::Next;
use crate::state::segment::{Stage, WriteClass};

/// A word that an atomic has fetched, and where it goes.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub(crate) place: ResultPlace,
    pub(crate) before: u64,
    /// Bytes of the word.
    pub(crate) width: usize,
}

/// Submits an atomic if there is room for it, to leave behind `what`. Never blocks.
pub(crate) fn submit<P: Port>(
    core: &mut Core<P>,
    request: &AtomicRequest<'_>,
    what: Behind,
) -> Result<Tried, EngineError> {
    core.connection_to(request.pe)?;
    let (remote, offset) = request.word()?;
    let Some(atomics) = core.transmit.fabric_atomics() else { return Ok(Tried::NoRoom) };
    let Some(path) = atomics.path(request.pe) else { return Ok(Tried::NoRoom) };
    if !core.is_within_atomic_quota(request.pe, path.rail) {
        return Ok(Tried::NoRoom);
    }
    let key = remote.key(TARGET_RAIL).map_err(|fault| request.refused(fault))?;
    let Some(wr_id) = core.transmit.take() else { return Ok(Tried::NoRoom) };
    let result = request.result.filter(|_| request.atomic.op.fetches());
    let taken = core.transmit.fabric_atomics_mut().and_then(|atomics| {
        atomics.take(request.atomic, (remote.remote_address(offset), key), result)
    });
    let Some(slot) = taken else {
        core.transmit.give_unused(wr_id);
        return Ok(Tried::NoRoom);
    };
    let segment = core.transmit.segment_mut(wr_id);
    segment.pe = request.pe;
    segment.born = core.failures.stamp();
    segment.direction = Direction::Write;
    segment.set_atomic_slot(slot);
    segment.class = WriteClass::Word;
    segment.rail = path.rail;
    segment.transfer.direction = Direction::Write;
    segment.transfer.len = request.atomic.width.bytes();
    core.set_out_behind(wr_id, what);
    core.peers.check(request.pe)?;
    Ok(Tried::Submitted)
}

/// Takes the completion of an atomic, except for the rail's own count. Nothing if it was of none in
/// flight; else what was fetched, if something was. It ends with [`Core::drop_segment`] once that
/// is stored, or goes on by itself.
#[cold]
pub(crate) fn completed<P: Port>(core: &mut Core<P>, wr_id: WrId) -> Option<Outcome> {
    let segment = core.transmit.away(wr_id)?;
    if segment.stage != Stage::AtomicPosted {
        return None;
    }
    let (rail, slot) = (segment.rail, segment.atomic_slot());
    let fetched = core.transmit.port_mut().fetched(wr_id);
    Some(match core.transmit.fabric_atomics_mut()?.completed(slot, fetched) {
        Next::Again => {
            core.transmit.queue(wr_id, rail);
            Outcome::GoesOn
        }
        Next::Ended { before, width, result } => {
            Outcome::Ended(result.map(|place| Fetched { place, before, width }))
        }
    })
}

/// What became of an atomic with a completion.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// It has another operation of the fabric to go.
    GoesOn,
    /// It was executed.
    Ended(Option<Fetched>),
}
