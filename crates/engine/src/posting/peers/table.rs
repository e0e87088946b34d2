//! The messages on their way to peers, as others see them: their slots, and what becomes of them.

use crate::ids::{Pe, RailId, WrId};
use crate::port::Tail;
use crate::posting::peers::Peers;
use crate::state::segment::Segment;

impl Peers {
    /// Segments that are messages.
    pub(in crate::posting) fn message_segments(&self) -> u32 {
        self.messages.segments()
    }

    pub(crate) fn without_segment(&self) -> impl Iterator<Item = Segment> + '_ {
        self.messages.all_without()
    }

    pub(crate) fn has_without_segment(&self) -> bool {
        self.messages.has_without()
    }

    pub(crate) fn has_message_room(&self) -> bool {
        self.messages.has_room()
    }

    pub(crate) fn take_beside(&mut self, segment: WrId) -> Option<u32> {
        self.messages.take_beside(segment.0)
    }

    pub(crate) fn give_beside(&mut self, message: u32) {
        self.messages.give_beside(message);
    }

    pub(crate) fn forget_fragment(&mut self, message: u32) {
        self.messages.forget_fragment(message);
    }

    /// A message ends with these bytes.
    pub(crate) fn set_tail(&mut self, message: u32, tail: Tail) {
        self.messages.set_tail(message, tail);
    }

    /// The memory that a message may still be filled from: an address and a length.
    pub(in crate::posting) fn memory_of(&self, message: u32) -> Option<(usize, usize)> {
        self.messages.memory_of(message)
    }

    /// Gives back the slot of a message that has not left.
    pub(in crate::posting) fn give_message(&mut self, message: u32) {
        self.end_run(message);
        self.messages.give(message);
    }

    /// The segment of a message that has left is over; the message waits for its acknowledgement.
    pub(in crate::posting) fn forget_message(&mut self, message: u32) {
        self.messages.forget_segment(message);
    }

    /// A fetch has ended that was acknowledged before.
    pub(in crate::posting) fn restore_message(&mut self) {
        self.messages.restore();
    }

    /// No acknowledgement of a peer is waited for any more.
    pub(in crate::posting) fn forget_messages(&mut self, pe: Pe) {
        if let Some(channel) = self.connections.channel_mut(pe) {
            self.messages.forget_all(channel);
        }
    }

    /// The messages to a peer that `so` says of, by rail, have to be sent again, before any write
    /// that is submitted from here on. Whether there are any.
    pub(crate) fn lose_messages(&mut self, pe: Pe, so: impl FnMut(RailId) -> bool) -> bool {
        let Some(connection) = self.connections.find_mut(pe) else { return false };
        let lost =
            connection.channel.as_deref().map_or(0, |channel| self.messages.lose(channel, so));
        if lost != 0 {
            connection.fence();
        }
        lost != 0
    }

    pub(crate) fn first_missing(&self, pe: Pe) -> Option<RailId> {
        self.messages.first_missing(self.channel(pe)?)
    }

    pub(crate) fn unacknowledged(&self, wr_id: WrId) -> Option<(Pe, RailId)> {
        self.connections.iter().find_map(|connection| {
            let channel = connection.channel.as_deref()?;
            Some((connection.pe, self.messages.has(channel, wr_id)?))
        })
    }
}
