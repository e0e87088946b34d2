//! Answers about staged memory that have numbers: where rails are monitored. One that went down
//! with its rail is sent again like any message, and taken once; without, who waits for it would
//! wait for ever, or a bounce buffer that it gives back be nobody's.
//!
//! # Why they cannot deadlock
//! An answer takes a number of its peer's window, and a slot of those set aside for answers: a peer
//! may have as many as are left for others. Both come back when the peer acknowledges. So nothing
//! that an acknowledgement waits for may wait for an answer that has not left:
//! - What is not acknowledged when it arrives waits for requests with lower numbers to be executed
//!   ([`crate::state::messages::order`]). Of these, a pull waits for a bounce buffer for bytes on
//!   their way in, and to be read, for which the peer needs the keys.
//! - Such bounce buffers are held by what is being read and copied: by pulls, and by gets that were
//!   told where to read, which may need keys as well.
//! - So a pull leaves, and a get is told, when all keys that are due to the peer have left
//!   ([`Core::owe_keys`]). What has left arrives, be it the second time: to be sent again it needs
//!   no number and no slot.
//!
//! No other answer is waited for by anything that an acknowledgement waits for.

use crate::ids::Pe;
use crate::port::{Port, Posted, Tail};
use crate::posting::Core;
use crate::posting::failures::Event;
use crate::posting::peers::Peers;
use crate::posting::peers::messages::send_packet;
use crate::state::messages::table::MessageTable;
use crate::state::messages::unnumbered::Unnumbered;
use crate::wire::message::{Body, Message};

/// Slots for answers of a lane that monitors its rails.
pub(crate) const ANSWERS: u32 = 1024;

impl Peers {
    #[cold]
    pub(super) fn owe_keys(&mut self, pe: Pe) {
        if let Some(connection) = self.connections.find_mut(pe) {
            connection.channel().keys_due += 1;
        }
    }

    pub(super) fn waits_for_keys(&self, due: &Unnumbered) -> bool {
        let channel = self.channel(due.pe);
        due.what.needs_keys() && channel.is_some_and(|channel| channel.keys_due != 0)
    }
}

impl<P: Port> Core<P> {
    /// Sends an answer, which has a number from here on. Whether it has left, or never will.
    #[cold]
    pub(in crate::posting) fn send_answer(&mut self, pe: Pe, body: Body<'_>) -> bool {
        let Some(connection) = self.peers.connections.find_mut(pe) else { return true };
        if connection.error.is_some() {
            return true;
        }
        let Some(path) = self.transmit.running_path(connection) else { return false };
        let channel = connection.channel();
        let slot = if channel.has_room() { self.peers.messages.take_answer(channel) } else { None };
        let Some(slot) = slot else {
            self.peers.want_ack(pe);
            return false;
        };
        let (seq, ack) = (channel.next, channel.ack());
        let packet = self.peers.messages.packet_mut(slot);
        Message { from: self.peers.me, seq, ack, behind: 0, body }.encode(packet);
        let wr_id = MessageTable::wr_id(slot, seq);
        let (rail, to) = (path.rail, (pe, path.to));
        let sent = send_packet(
            self.transmit.port_mut(),
            &self.peers.seal,
            rail,
            to,
            wr_id,
            packet,
            Tail::NONE,
        );
        // The next one goes another way: this one may not work.
        self.transmit.rotate(connection);
        let channel = connection.channel();
        match sent {
            Ok(Posted::Yes) => {
                channel.carried(ack);
                self.peers.messages.sent(channel, slot, seq, path.rail);
                channel.take_number();
                channel.apart = channel.apart.wrapping_sub(1);
                if !std::mem::replace(&mut channel.is_noted, true) {
                    self.peers.answered.push(pe);
                }
                self.peers.queue_control(pe);
                return true;
            }
            Ok(Posted::Again) => self.transmit.count_again(path.rail),
            Err(error) => self.failures.raise(Event::PathFailed { pe, rail: path.rail, error }),
        }
        if let Some(connection) = self.peers.connections.find_mut(pe) {
            self.peers.messages.give_answer(connection.channel(), slot);
        }
        false
    }

    /// Keys that were due to a peer have left, or never will.
    pub(in crate::posting) fn told_keys(&mut self, pe: Pe) {
        let Some(connection) = self.peers.connections.find_mut(pe) else { return };
        let channel = connection.channel();
        channel.keys_due -= 1;
        if channel.keys_due == 0 {
            self.open_window(pe);
        }
    }
}
