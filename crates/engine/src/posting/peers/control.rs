//! Messages without numbers on their way out: acknowledgements, what asks for them, and answers.

use crate::error::EngineError;
use crate::ids::Pe;
use crate::port::packet::LongPacket;
use crate::port::{Port, Posted};
use crate::posting::Core;
use crate::posting::failures::Event;
use crate::posting::failures::{CONTROL, local_fault};
use crate::posting::peers::Peers;
use crate::posting::transmit::REFUSALS;
use crate::state::messages::reliable_channel::{FETCHES, ReliableChannel};
use crate::state::messages::unnumbered::{NO_TICKET, Owed, Unnumbered};
use crate::wire::message::{Body, Message};
use crate::wire::staged::{MAX_PAYLOAD, Staged};
use crate::wire::window::{Seq, WINDOW};

/// Most messages without a number that are due to a peer. One that keeps the rules has no more
/// coming to it: answers to its fetches (16) and to its requests about staged memory (64), refusals
/// of what its window has (512), and, for as many requests of this PE's, their releases and the
/// keys of a region.
const DUE: u32 = 1024;

const _: () = assert!(FETCHES + WINDOW + 4 * 64 < DUE);

impl Peers {
    #[inline(always)]
    pub(crate) fn is_control_due(&self) -> bool {
        !self.unnumbered.is_empty() || !self.control.is_empty()
    }

    fn note_owed(&mut self, pe: Pe, more: i32) -> Option<u32> {
        let owed = &mut self.connections.find_mut(pe)?.channel().owed;
        *owed = owed.wrapping_add_signed(more);
        Some(*owed)
    }

    /// What requests of a peer wait for may have been executed, or never will be.
    pub(crate) fn note_due(&mut self, pe: Pe) {
        let channel = self.channel(pe);
        if channel.is_some_and(ReliableChannel::has_order) && !self.due.contains(&pe) {
            self.due.push(pe);
        }
    }
}

impl<P: Port> Core<P> {
    /// Sends the replies and the control messages that are due, as far as there is room. A few that
    /// find none delay no others, of either kind.
    #[cold]
    pub(crate) fn send_control(&mut self, packet: &mut LongPacket) -> bool {
        let mut moved = false;
        let mut refusals = 0;
        for _ in 0..self.peers.unnumbered.len() {
            let Some(due) = self.peers.unnumbered.pop_front() else { break };
            if self.send_due(&due, packet) {
                self.peers.note_owed(due.pe, -1);
                moved = true;
                continue;
            }
            // It may be its peer alone that cannot be reached.
            self.peers.unnumbered.push_back(due);
            refusals += 1;
            if refusals == REFUSALS {
                break;
            }
        }
        let mut refusals = 0;
        for _ in 0..self.peers.control.len() {
            let Some(pe) = self.peers.control.pop_front() else { break };
            let Some(connection) = self.peers.connections.find_mut(pe) else { continue };
            let channel = connection.channel();
            let (seq, body) = if channel.request_due {
                (channel.requested(), Body::AckRequest)
            } else {
                (channel.received.prefix(), Body::Ack)
            };
            let due = channel.request_due || channel.ack_due;
            if due && !self.send_unnumbered(pe, seq, body, packet) {
                self.peers.control.push_back(pe);
                refusals += 1;
                if refusals == REFUSALS {
                    break;
                }
                continue;
            }
            if let Some(connection) = self.peers.connections.find_mut(pe) {
                let channel = connection.channel();
                channel.request_due = false;
                channel.in_control = false;
            }
            moved = true;
        }
        moved
    }

    /// Sends one that is due. Whether it has left, or never will.
    fn send_due(&mut self, due: &Unnumbered, packet: &mut LongPacket) -> bool {
        let is_numbered = self.failures.recovers() && !due.what.is_word();
        if is_numbered && self.peers.waits_for_keys(due) {
            return false;
        }
        let mut bytes = [0; MAX_PAYLOAD];
        let body = match due.what {
            Owed::Word { request_id, value } => Body::Reply { request_id, value },
            Owed::Pulled { request_id } => Body::Staged(Staged::Pulled { request_id }),
            Owed::Exposed { request_id, from } => {
                Body::Staged(Staged::Exposed { request_id, from })
            }
            Owed::Release { request_id } => Body::Staged(Staged::Release { request_id }),
            Owed::Refused { request_id, ref why } => {
                Body::Staged(Staged::Refused { request_id, why })
            }
            Owed::Keys { ref view, first } => {
                Body::Staged(Staged::Keys(view.keys_from(first, &mut bytes)))
            }
            Owed::Loaded { request_id, ref bytes, len } => {
                Body::Staged(Staged::Loaded { request_id, payload: &bytes[..len] })
            }
        };
        if is_numbered {
            let left = self.send_answer(due.pe, body);
            if left && due.what.tells_keys() {
                self.told_keys(due.pe);
            }
            return left;
        }
        self.send_unnumbered(due.pe, due.what.request(), body, packet)
    }

    pub(crate) fn queue_unnumbered(&mut self, pe: Pe, what: Owed) {
        match self.peers.note_owed(pe, 0) {
            // Nothing was ever sent to it, nor came from it.
            None => {}
            Some(DUE..) => self.is_owed_too_much(pe),
            Some(_) => {
                if self.failures.recovers() && what.tells_keys() {
                    self.peers.owe_keys(pe);
                }
                self.peers.note_owed(pe, 1);
                self.peers.unnumbered.push_back(Unnumbered { pe, what });
            }
        }
    }

    #[cold]
    fn is_owed_too_much(&mut self, pe: Pe) {
        if self.peers.check(pe).is_ok() {
            let why = String::from("it asks for more at a time than a PE may");
            self.fail_connection(pe, EngineError::BadMessage { pe, why });
        }
    }

    #[cold]
    pub(crate) fn cannot_execute(&mut self, pe: Pe, seq: Seq, why: String) {
        if let Some(connection) = self.peers.connections.find_mut(pe) {
            connection.channel().refuse(seq);
        }
        self.peers.note_due(pe);
        self.queue_unnumbered(pe, Owed::Refused { request_id: NO_TICKET, why: (*why).into() });
        self.bad_message(pe, why);
    }

    #[cold]
    pub(crate) fn take_turns(&mut self, pe: Pe) {
        if let Some(connection) = self.peers.connections.find_mut(pe) {
            self.transmit.rotate(connection);
        }
    }

    /// Sends a message that is not acknowledged itself. Whether it has left, or never will.
    fn send_unnumbered(
        &mut self,
        pe: Pe,
        seq: Seq,
        body: Body<'_>,
        packet: &mut LongPacket,
    ) -> bool {
        let Some(connection) = self.peers.connections.find_mut(pe) else { return true };
        if connection.error.is_some() {
            return true;
        }
        let Some(path) = self.transmit.running_path(connection) else { return false };
        let ack = connection.channel().ack();
        Message { from: self.peers.me, seq, ack, behind: 0, body }.encode(packet);
        self.peers.seal.close(pe, packet);
        match self.transmit.port_mut().send(path.rail, path.to, CONTROL, packet.bytes()) {
            Ok(Posted::Yes) => {
                connection.channel().carried(ack);
                if self.failures.recovers() {
                    // The next one goes another way: this one may not work.
                    self.transmit.rotate(connection);
                }
                true
            }
            Ok(Posted::Again) => {
                if self.failures.recovers() {
                    self.transmit.rotate(connection);
                }
                self.transmit.count_again(path.rail);
                false
            }
            // Acknowledgements and replies are asked for again.
            Err(error) if self.failures.recovers() => {
                self.failures.raise(Event::PathFailed { pe, rail: path.rail, error });
                true
            }
            Err(error) => {
                let failed = local_fault(pe, &error);
                self.fail_connection(pe, failed);
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::Packet;
    use crate::posting::tests::{Bed, PLAIN, Setup};
    use crate::state::messages::order::{Kept, WaitingRequest};

    #[test]
    fn a_peer_that_is_owed_too_much_is_declared_failed() {
        for (others, owed, good) in
            [(0, DUE, true), (0, DUE + 1, false), (2, DUE, true), (2, DUE + 1, false)]
        {
            let mut bed = Bed::new(PLAIN);
            let core = bed.lane.core_mut();
            for pe in [1, 2].map(Pe) {
                core.connection_to(pe).unwrap();
            }
            (0..others)
                .for_each(|_| core.queue_unnumbered(Pe(2), Owed::Pulled { request_id: NO_TICKET }));
            (0..owed)
                .for_each(|_| core.queue_unnumbered(Pe(1), Owed::Pulled { request_id: NO_TICKET }));
            assert_eq!(core.peers.check(Pe(1)).is_ok(), good, "{others} {owed}");
            assert!(core.peers.check(Pe(2)).is_ok());
            let kept = core.peers.unnumbered.iter().filter(|due| due.pe == Pe(1)).count();
            assert_eq!(kept, DUE as usize);
            bed.lane.audit().unwrap();
        }
    }

    #[test]
    fn however_many_answers_are_due_each_peer_has_its_own() {
        let mut bed = Bed::new(Setup { depth: 64, ..PLAIN });
        bed.fabric.refuse(Pe(2), true);
        for pe in [1, 2, 3].map(Pe) {
            bed.lane.core_mut().connection_to(pe).unwrap();
        }
        let what = || Owed::Pulled { request_id: NO_TICKET };
        let owed = |bed: &Bed| {
            [1, 2, 3].map(|pe| {
                bed.lane.core().peers.find(Pe(pe)).unwrap().channel.as_deref().unwrap().owed
            })
        };
        for number in 1..DUE {
            [1, 2, 3]
                .into_iter()
                .for_each(|pe| bed.lane.core_mut().queue_unnumbered(Pe(pe), what()));
            if number % 100 == 0 {
                assert_eq!(owed(&bed), [number; 3]);
                bed.lane.audit().unwrap();
            }
        }
        for _ in 0..20_000 {
            bed.fabric.pass_time(10_000);
            bed.lane.iterate();
        }
        assert_eq!(owed(&bed), [0, DUE - 1, 0]);
        bed.fabric.refuse(Pe(2), false);
        for _ in 0..20_000 {
            bed.fabric.pass_time(10_000);
            bed.lane.iterate();
        }
        assert_eq!(owed(&bed), [0; 3]);
        bed.lane.audit().unwrap();
    }

    #[test]
    fn a_peer_whose_requests_wait_is_noted() {
        let mut bed = Bed::new(PLAIN);
        let core = bed.lane.core_mut();
        for (pe, orders) in [(1, true), (2, false)] {
            let channel = core.connection_to(Pe(pe)).unwrap().channel();
            if orders {
                let (seq, mark, kept) = (Seq(2), Seq(2), Kept::Short(Packet::EMPTY));
                channel.wait(WaitingRequest { seq, mark, kept }, false);
            }
            (0..2).for_each(|_| core.peers.note_due(Pe(pe)));
        }
        assert_eq!(core.peers.due, [Pe(1)]);
    }

    #[test]
    fn what_is_sent_next_takes_another_path() {
        let mut bed = Bed::new(Setup { rails: 2, ..PLAIN });
        let core = bed.lane.core_mut();
        let before = core.connection_to(Pe(1)).unwrap().next.rail;
        core.take_turns(Pe(1));
        assert_ne!(core.connection_to(Pe(1)).unwrap().next.rail, before);
    }
}
