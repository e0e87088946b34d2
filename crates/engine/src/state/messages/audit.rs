//! The audit of messages: channels and the table, beside one another and beside the segments. See
//! [`Lane::audit`](crate::lane::Lane::audit).

use std::iter;

use crate::ids::Pe;
use crate::state::audit::{OfAll, OfPeer};
use crate::state::discrepancy::{Discrepancy, same};
use crate::state::messages::reliable_channel::{ReliableChannel, UNLISTED};
use crate::state::messages::table::MessageTable;
use crate::state::segment::table::SegmentTable;
use crate::state::segment::{NIL, Stage};
use crate::wire::window::Seq;

impl ReliableChannel {
    pub(crate) fn audit(
        &self,
        segments: &SegmentTable,
        found: &OfPeer,
        has_failed: bool,
    ) -> Result<(), Discrepancy> {
        let windowed = self.waiting.audit(segments, Stage::Windowed)?;
        same("messages that wait for the window", windowed, found.windowed)?;
        same("fetches", self.fetches(), found.fetches)?;
        if let Some(tags) = self.tags.as_deref().filter(|tags| !tags.is_retired()) {
            let used = found.tags | tags.open_slot();
            same("tags that are free and in use", 0, tags.free() & used)?;
            same("signals of the tag that is open", 0, tags.open_slot() & found.tags)?;
        }
        if let Some(counts) = self.counts.as_deref() {
            counts.audit()?;
        }
        if has_failed {
            return Ok(());
        }
        same("messages that have not left", self.unsent, found.unsent)?;
        same("writes that have left as messages", self.placed(), found.placed)?;
        same("pulls", self.pulls, found.pulls)
    }
}

impl MessageTable {
    pub(crate) fn audit<'a>(
        &self,
        channels: &[&'a ReliableChannel],
        channel_of: impl Fn(Pe) -> Option<&'a ReliableChannel>,
        found: &OfAll,
        unsent: u32,
    ) -> Result<(), Discrepancy> {
        same("messages with a slot", self.segments(), found.messages)?;
        same("free slots of messages", self.left as usize, self.list(self.free).count())?;
        let free = self.list(self.free_answer).count();
        same("free slots of answers", self.answers_left as usize, free)?;
        let aside = self.list(self.aside).count() as u32;
        same("slots set aside", aside, found.acknowledged)?;
        let mut used = aside + unsent;
        for channel in channels {
            used += self.audit_channel(channel).map_err(|differs| differs.of(channel.pe))?;
        }
        let free = self.left + self.answers_left;
        same("slots of messages in use", self.slots.len() as u32 - free, used)?;
        let next = |pe: &Pe| channel_of(*pe).map(|channel| Pe(channel.next_unasked));
        let listed = iter::successors(self.first_unasked(), next);
        let listed = listed.take_while(|pe| pe.0 != NIL).take(1 + channels.len()).count();
        let unasked = channels.iter().filter(|channel| channel.next_unasked != UNLISTED).count();
        same("peers with messages that nobody has asked about", listed, unasked)
    }

    fn audit_channel(&self, channel: &ReliableChannel) -> Result<u32, Discrepancy> {
        let answers = channel.unacked().filter(|index| self.is_answer(*index)).count();
        same("answers not acknowledged", channel.answers as usize, answers)?;
        for (at, index) in channel.unacked().enumerate() {
            let seq = Seq(channel.ack_received.0.wrapping_add(at as u32));
            same("the number of a message", self.slots[index as usize].seq, seq)?;
        }
        Ok(channel.unacknowledged())
    }
}
