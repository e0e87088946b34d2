//! Messages that no lane has sent.

use engine::wire::cookie::Cookie;
use engine::wire::message::{Frame, Numbers, SealContext};
use engine::wire::seal::Seal;

use crate::job::cookie;
use crate::prelude::*;

/// The number of the message behind so many others of its direction.
pub(crate) fn ahead(count: u64) -> Seq {
    Seq(Seq::FIRST.0 + count)
}

pub(crate) fn sealed(
    (from, to): (u32, u32),
    cookie: Cookie,
    numbers: impl FnOnce(&Seal) -> Numbers,
    body: &Body<'_>,
) -> Vec<u8> {
    let seal = Seal::new(cookie, Pe(from));
    let receiver = seal.receiver(Pe(to));
    let mut frame = Frame::EMPTY;
    let sealing = SealContext { seal: &seal, from: Pe(from), receiver: &receiver };
    match *body {
        // Its payload comes behind the frame.
        Body::PutSignal { addr, atomic, to, payload } if payload.len() > MAX_EAGER => {
            frame.put_signal_long(&sealing, &numbers(&seal), (addr, &atomic), to, payload.len());
            [frame.bytes(), payload].concat()
        }
        _ => {
            frame.encode(&sealing, &numbers(&seal), body);
            frame.bytes().to_vec()
        }
    }
}

/// The same, with this job's, and the mask of a number with this high half.
pub(crate) fn masked(
    (from, to): (u32, u32),
    (seq, ack, mark): (Seq, Seq, u16),
    high: u32,
    body: &Body<'_>,
) -> Vec<u8> {
    let mask = |seal: &Seal| seal.mask(Pe(from), Pe(to), high);
    sealed((from, to), cookie(), |seal| Numbers { seq, ack, mark, mask: mask(seal) }, body)
}

/// A message from one PE to another that acknowledges nothing.
pub(crate) fn message(pes: (u32, u32), seq: Seq, mark: u16, body: &Body<'_>) -> Vec<u8> {
    masked(pes, (seq, Seq::FIRST, mark), seq.high(), body)
}

/// Puts such a message into the target's inbox.
pub(crate) fn forge(job: &Job, pes: (u32, u32), seq: Seq, mark: u16, body: &Body<'_>) {
    job.fabric.forge_message(Pe(pes.1), RailId(0), &message(pes, seq, mark, body));
}

pub(crate) fn atomic(op: AtomicOp, operand: u64) -> Atomic {
    Atomic { op, width: Width::Eight, float: false, operand, compare: 0 }
}
