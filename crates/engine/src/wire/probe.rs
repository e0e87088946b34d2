//! Messages by which rails prove, before a job starts, that they reach a peer.
//!
//! A probe is an acknowledgement of a number before the first one, which names the sender's rail: a
//! lane that receives a late one takes it for an old acknowledgement.

use crate::ids::{Pe, RailId, WrId};
use crate::wire::encode::{Frame, Numbers, SealContext};
use crate::wire::message::{Body, HEAD, Message, Seq};
use crate::wire::seal::Seal;

/// Work-request id of probes. It names no message of a lane, whose ids have bit 30 clear, so that a
/// probe that fails late harms nobody.
pub const PROBE: WrId = WrId(u32::MAX - 1);

/// Returns the probe from this rail of the seal's PE to a peer.
pub fn probe(seal: &Seal, to: Pe, rail: RailId) -> Frame {
    let (from, seq) = (seal.me(), Seq::FIRST);
    let ack = Seq(Seq::FIRST.0 - 1 - u64::from(rail.0));
    let numbers = Numbers { seq, ack, mark: 0, mask: seal.mask(from, to, seq.high()) };
    let mut frame = Frame::EMPTY;
    let context = SealContext { seal, from, receiver: &seal.receiver(to) };
    frame.encode(&context, &numbers, &Body::Ack(None));
    frame
}

/// Returns the sender of a probe and its rail; None for all other bytes.
pub fn prober(seal: &Seal, bytes: &[u8]) -> Option<(Pe, RailId)> {
    let head = seal.open(bytes).filter(|_| bytes.len() == HEAD)?;
    let word = head.word ^ seal.mask(head.from, seal.me(), Seq::FIRST.high());
    let message = Message::decode(head, word, bytes).ok()?;
    let is_probe = message.body == Body::Ack(None) && head.seq == Seq::FIRST.low();
    let rail = Seq::FIRST.low().wrapping_sub(1).wrapping_sub(head.ack);
    let rail = u8::try_from(rail).ok().filter(|_| is_probe)?;
    Some((head.from, RailId(rail)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::cookie::Cookie;

    #[test]
    fn probes_name_sender_and_rail() {
        let cookie = Cookie::of([*b"0123456789abcdef"]);
        let [mine, theirs, others] = [1, 2, 3].map(|pe| Seal::new(cookie, Pe(pe)));
        for rail in [0, 31].map(RailId) {
            let frame = probe(&mine, Pe(2), rail);
            assert_eq!(prober(&theirs, frame.bytes()), Some((Pe(1), rail)));
            assert_eq!(prober(&others, frame.bytes()), None, "it is for another PE");
            let other_job = Seal::new(Cookie::of([*b"another share..."]), Pe(2));
            assert_eq!(prober(&other_job, frame.bytes()), None);
            let longer = [frame.bytes(), &[0; 16]].concat();
            assert_eq!(prober(&theirs, &longer), None);
        }
        assert_eq!(prober(&theirs, b"short"), None);
    }
}
