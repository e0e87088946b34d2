//! Answers about staged memory that have numbers: where rails are looked after. One that went down with its rail is sent again
//! like any message, and taken once; without, who waits for it would wait for ever, or a chunk that it gives back be nobody's.
//!
//! # Why they cannot deadlock
//! An answer takes a number of its peer's window, and a slot of those set aside for answers: a peer may have as many as are left for
//! others. Both come back when the peer acknowledges. So nothing that an acknowledgement waits for may wait for an answer that has
//! not left:
//! - What is not acknowledged when it arrives waits for requests with lower numbers to be carried out
//!   ([`crate::state::messages::order`]). Of these, a pull waits for a chunk for bytes on their way in, and to be read, for
//!   which the peer needs the keys.
//! - Such chunks are held by what is being read and copied: by pulls, and by gets that were told where to read, which may
//!   need keys as well.
//! - So a pull leaves, and a get is told, when all keys that are due to the peer have left ([`Core::owe_keys`]). What has left
//!   arrives, be it the second time: to be sent again it needs no number and no slot.
//!
//! No other answer is waited for by anything that an acknowledgement waits for.

use crate::ids::Pe;
use crate::port::{Port, Posted, Tail};
use crate::posting::messages::send_packet;
use crate::posting::{Core, Event};
use crate::state::messages::table::MessageTable;
use crate::state::messages::unnumbered::Unnumbered;
use crate::wire::message::{Body, Message};

/// Slots for answers of a lane that looks after its rails.
pub(crate) const ANSWERS: u32 = 1024;

impl<P: Port> Core<P> {
    /// Sends an answer, which has a number from here on. Whether it has left, or never will.
    #[cold]
    pub(super) fn send_answer(&mut self, pe: Pe, body: Body<'_>) -> bool {
        let Some(stream) = self.streams.find_mut(pe) else { return true };
        if stream.error.is_some() {
            return true;
        }
        if self.rails[stream.next.rail.index()].is_paused() {
            stream.rotate(&self.paths);
            if self.rails[stream.next.rail.index()].is_paused() {
                return false;
            }
        }
        let path = stream.next;
        let link = stream.link();
        let slot = if link.has_room() { self.messages.take_answer(link) } else { None };
        let Some(slot) = slot else {
            self.want_ack(pe);
            return false;
        };
        let (seq, ack) = (link.next, link.ack());
        let packet = self.messages.packet_mut(slot);
        Message { from: self.me, seq, ack, behind: 0, body }.encode(packet);
        let token = MessageTable::token(slot, seq);
        let (rail, to) = (path.rail, (pe, path.to));
        let sent = send_packet(&mut self.port, &self.seal, rail, to, token, packet, Tail::NONE);
        // The next one goes another way: this one may not work.
        stream.rotate(&self.paths);
        let link = stream.link();
        match sent {
            Ok(Posted::Yes) => {
                link.carried(ack);
                self.messages.sent(link, slot, seq, path.rail);
                link.take_number();
                link.apart = link.apart.wrapping_sub(1);
                if !std::mem::replace(&mut link.is_noted, true) {
                    self.answered.push(pe);
                }
                self.queue_control(pe);
                return true;
            }
            Ok(Posted::Again) => self.rails[path.rail.index()].counters.again += 1,
            Err(error) => self.raise(Event::PathFailed { pe, rail: path.rail, error }),
        }
        if let Some(stream) = self.streams.find_mut(pe) {
            self.messages.give_answer(stream.link(), slot);
        }
        false
    }

    /// Keys are due to a peer: nothing leaves that needs them before they have.
    #[cold]
    pub(super) fn owe_keys(&mut self, pe: Pe) {
        if let Some(stream) = self.streams.find_mut(pe) {
            stream.link().keys_due += 1;
        }
    }

    /// Keys that were due to a peer have left, or never will.
    pub(super) fn told_keys(&mut self, pe: Pe) {
        let Some(stream) = self.streams.find_mut(pe) else { return };
        let link = stream.link();
        link.keys_due -= 1;
        if link.keys_due == 0 {
            self.open_window(pe);
        }
    }

    /// Whether an answer waits for keys to leave.
    pub(super) fn waits_for_keys(&self, due: &Unnumbered) -> bool {
        let link = self.streams.find(due.pe).and_then(|stream| stream.link.as_deref());
        due.what.needs_keys() && link.is_some_and(|link| link.keys_due != 0)
    }
}
