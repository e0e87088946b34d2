//! Numbered messages: how one leaves, waits for the peer's window, and ends when it is
//! acknowledged.

use log::debug;

use crate::ids::{Pe, RailId, WrId};
use crate::port::{Direction, Failure, Packet, PeerAddr, Port, PortError, Posted, Tail};
use crate::posting::Core;
use crate::posting::failures::CONTROL;
use crate::posting::peers::Peers;
use crate::posting::transmit::dispatch::Left;
use crate::state::connection::Connection;
use crate::state::messages::table::MessageTable;
use crate::state::operation::OpId;
use crate::state::segment::work::Work;
use crate::state::segment::{NIL, Segment, Stage, WriteClass};
use crate::wire::message::{Body, Message};
use crate::wire::seal::Seal;
use crate::wire::window::Seq;

impl Peers {
    pub(crate) fn count_unsent(&mut self, pe: Pe) {
        if let Some(connection) = self.connections.find_mut(pe) {
            connection.channel().unsent += 1;
        }
    }

    pub(crate) fn is_within_message_quota(&self, pe: Pe) -> bool {
        let channel = self.channel(pe);
        channel.is_none_or(|channel| channel.is_within_quota(&self.messages))
    }

    fn set_apart(&mut self, pe: Pe) {
        if let Some(channel) = self.connections.channel_mut(pe) {
            channel.apart = channel.apart.wrapping_add(1);
        }
    }

    /// Somebody waits for what was sent to a peer: it is asked to acknowledge, unless it was
    /// before.
    pub(crate) fn want_ack(&mut self, pe: Pe) {
        let channel = self.connections.channel_mut(pe);
        if let Some(channel) = channel {
            channel.want_ack();
            self.queue_control(pe);
        }
    }

    pub(crate) fn want_ack_in_turn(&mut self, pe: Pe) {
        let channel = self.connections.channel_mut(pe);
        if let Some(channel) = channel {
            channel.want_ack_in_turn();
            self.queue_control(pe);
        }
    }

    /// Asks all peers once more that have not failed for the acknowledgements that they were asked
    /// for; calls a function with their connections.
    pub(in crate::posting) fn ask_all_again(&mut self, mut each: impl FnMut(&mut Connection)) {
        let Self { connections, control, .. } = self;
        connections.for_each(|connection| {
            let asks = connection.channel.as_deref_mut().filter(|_| connection.error.is_none());
            let Some(channel) = asks else { return };
            channel.ask_again();
            if channel.enters_control() {
                control.push_back(connection.pe);
            }
            each(connection);
        });
    }

    #[inline]
    pub(crate) fn queue_control(&mut self, pe: Pe) {
        let channel = self.connections.channel_mut(pe);
        if let Some(channel) = channel {
            if channel.enters_control() {
                self.control.push_back(pe);
            }
        }
    }

    /// Somebody waits for what acknowledgements bring: room, or the end of what was sent. All peers
    /// with messages that nobody has asked about yet are asked, so that who waits for one after the
    /// other waits once.
    #[inline]
    pub(crate) fn want_acks(&mut self) {
        while let Some(pe) = self.messages.first_unasked() {
            self.ask_first(pe);
        }
    }

    #[cold]
    fn ask_first(&mut self, pe: Pe) {
        let channel = self.connections.channel_mut(pe);
        if let Some(channel) = channel {
            self.messages.pop_unasked(channel);
            channel.want_ack();
            if channel.enters_control() {
                self.control.push_back(pe);
            }
        }
    }

    /// Writes a message into a slot, but for its numbers, which it gets when it leaves: one that
    /// waits must not hold up the window.
    pub(crate) fn encode_into(&mut self, slot: u32, body: Body<'_>) {
        let message = Message { from: self.me, seq: Seq(0), ack: Seq(0), behind: 0, body };
        message.encode(self.messages.packet_mut(slot));
    }
}

impl<P: Port> Core<P> {
    /// Gives a message its number and hands it to the fabric.
    pub(in crate::posting) fn send_message(&mut self, wr_id: WrId, rail: RailId) -> Left {
        let mut rail = rail;
        if self.failures.recovers() {
            match self.path_for_message(wr_id, rail) {
                Ok(path) => rail = path,
                Err(left) => return left,
            }
        }
        let segment = self.transmit.segment(wr_id);
        let pe = segment.pe;
        if let Some(slot) = segment.message() {
            self.peers.end_run(slot);
        }
        let (Some(slot), Some(connection)) =
            (segment.message(), self.peers.connections.find_mut(pe))
        else {
            return Left::NoRoom;
        };
        let (holds, mark) = (!connection.held.is_empty(), connection.mark());
        let channel = connection.channel();
        if !channel.has_room() {
            return Left::NoWindow;
        }
        let (seq, ack) = (channel.next, channel.ack());
        let mark = if segment.behind_sent && channel.has_sent_puts() { Some(seq) } else { mark };
        let (packet, tail) = self.peers.messages.parts_mut(slot);
        packet.number(seq, ack);
        packet.set_behind(behind(segment, seq, mark));
        let to = self.transmit.path(pe, rail).to;
        let wr_id_of_message = MessageTable::wr_id(slot, seq);
        let to = (pe, to);
        let (port, seal) = (self.transmit.port_mut(), &self.peers.seal);
        match send_packet(port, seal, rail, to, wr_id_of_message, packet, tail) {
            Ok(Posted::Yes) => {
                let segment = self.transmit.segment_mut(wr_id);
                segment.stage = Stage::Sent;
                segment.born = self.failures.stamp();
                channel.carried(ack);
                segment.rail = rail;
                segment.request = seq;
                self.peers.messages.sent(channel, slot, seq, rail);
                channel.unsent -= 1;
                channel.take_number();
                if holds {
                    // Writes may be held until this message is acknowledged.
                    channel.want_ack();
                }
                self.peers.queue_control(pe);
                self.placed(wr_id, seq);
                Left::Taken
            }
            Ok(Posted::Again) => {
                self.transmit.count_again(rail);
                Left::Again
            }
            Err(error) => Left::Failed(error),
        }
    }

    fn placed(&mut self, wr_id: WrId, seq: Seq) {
        let segment = self.transmit.segment_mut(wr_id);
        let Segment { pe, direction, class, .. } = *segment;
        let is_pull = is_pull(segment);
        let Some(connection) = self.peers.connections.find_mut(pe) else { return };
        if direction == Direction::Write && class != WriteClass::Word {
            segment.class = WriteClass::Word;
            connection.place_put(class);
            let channel = connection.channel();
            channel.last_put = seq;
            channel.pulls += u32::from(is_pull);
        }
        if direction == Direction::Read {
            let channel = connection.channel();
            channel.apart = channel.apart.wrapping_sub(1);
        }
        let op = OpId(segment.op());
        if self.transmit.ops().departs(op) {
            self.transmit.segment_mut(wr_id).uncount();
            self.op_done(op.0);
        }
        if self.peers.find(pe).is_some_and(Connection::is_waited_for) {
            self.release(pe);
        }
    }

    /// A segment has left, and is in no queue any more. If it is a message, and nothing waits for
    /// more than its end, that stands for itself from here on.
    #[inline]
    pub(in crate::posting) fn has_left(&mut self, wr_id: WrId) {
        let segment = self.transmit.segment(wr_id);
        let Work::Message { slot, .. } = segment.work() else { return };
        if let Some(slot) = slot.get().filter(|_| segment.op() == NIL) {
            self.peers.messages.take_segment(slot, segment);
            self.transmit.free(wr_id);
        }
    }

    /// Gives a segment to a message that stands for itself: something is to become of it other than
    /// its end. None if it does not.
    #[cold]
    pub(in crate::posting) fn give_segment(&mut self, slot: u32) -> Option<WrId> {
        let segment = self.peers.messages.would_be(slot)?;
        let wr_id = self.transmit.take_as(segment);
        debug_assert!(wr_id.is_some(), "messages have segments set aside");
        self.peers.messages.give_segment(slot, wr_id?.0);
        wr_id
    }

    pub(crate) fn without_segment(&self) -> impl Iterator<Item = Segment> + '_ {
        self.peers.without_segment()
    }

    pub(crate) fn give_segments(&mut self, pe: Pe) {
        let unacked: Option<Vec<u32>> =
            self.peers.channel(pe).map(|channel| channel.unacked().collect());
        for slot in unacked.unwrap_or_default() {
            self.give_segment(slot);
        }
    }

    fn path_for_message(&mut self, wr_id: WrId, rail: RailId) -> Result<RailId, Left> {
        let pe = self.transmit.segment(wr_id).pe;
        let Some(connection) = self.peers.find(pe) else { return Ok(rail) };
        // Some of it may be the data that the message tells of.
        if connection.lost_writes != 0 {
            return Err(Left::NoWindow);
        }
        // Nor before the keys that the peer is to read with.
        let segment = self.transmit.segment(wr_id);
        if is_pull(segment)
            && connection.channel.as_deref().is_some_and(|channel| channel.keys_due != 0)
        {
            return Err(Left::NoWindow);
        }
        if !self.transmit.is_out(pe, rail) {
            return if self.transmit.rail(rail).is_paused() { Err(Left::NoRoom) } else { Ok(rail) };
        }
        let mut hop = connection.next;
        for _ in 0..self.transmit.rails().len() {
            if !self.transmit.rail(hop.rail).is_paused() {
                self.transmit.segment_mut(wr_id).rail = hop.rail;
                return Ok(hop.rail);
            }
            hop = self.transmit.path_after(hop);
        }
        // What is for others may leave by the rail whose queue it is in.
        Err(Left::Again)
    }

    /// Sends the oldest message to a peer again that has to be, as it was. None if there is none;
    /// the rail that has failed, if one has.
    pub(crate) fn resend_first(&mut self, pe: Pe) -> Option<Result<Posted, (RailId, PortError)>> {
        let Peers { connections, messages, seal, .. } = &mut self.peers;
        let connection = connections.find_mut(pe)?;
        let channel = connection.channel.as_deref_mut()?;
        let ack = channel.ack();
        let (index, seq, rail) = messages.first_lost(channel)?;
        let mut path = self.transmit.path(pe, rail);
        if self.transmit.is_out(pe, rail) {
            path = connection.next;
            self.transmit.rotate(connection);
        }
        let rail = path.rail;
        if self.transmit.rail(rail).is_paused() {
            return Some(Ok(Posted::Again));
        }
        let (packet, tail) = messages.parts_mut(index);
        packet.number(seq, ack);
        let port = self.transmit.port_mut();
        let sent = send_packet(port, seal, rail, (pe, path.to), CONTROL, packet, tail);
        if let Ok(Posted::Yes) = sent {
            self.transmit.count_resent(rail);
            messages.found(index, rail);
        }
        Some(sent.map_err(|error| (rail, error)))
    }

    pub(crate) fn sent_as(&self, wr_id: WrId) -> Option<WrId> {
        let (slot, segment) = self.peers.messages.named_by(wr_id)?;
        let segment = WrId(segment);
        let sent = self.transmit.away(segment).filter(|segment| segment.stage == Stage::Sent)?;
        (sent.message() == Some(slot)).then_some(segment)
    }

    /// Whom a message is for that has left, and its rail, as [`Core::sent_as`] is asked. None of an
    /// answer, or of what has told of an operation that is over.
    pub(crate) fn sent_to(&self, wr_id: WrId) -> Option<(Pe, RailId)> {
        let (slot, _) = self.peers.messages.named_by(wr_id)?;
        let sent = || self.sent_as(wr_id).map(|wr_id| *self.transmit.segment(wr_id));
        let segment = self.peers.messages.would_be(slot).or_else(sent)?;
        Some((segment.pe, segment.rail))
    }

    fn segment_of_sent(&mut self, wr_id: WrId) -> Option<WrId> {
        let (slot, _) = self.peers.messages.named_by(wr_id)?;
        self.give_segment(slot).or_else(|| self.sent_as(wr_id))
    }

    pub(crate) fn failed_message(&mut self, rail: RailId, failure: Failure) {
        let Failure { wr_id, error, .. } = failure;
        match wr_id.filter(|wr_id| *wr_id != CONTROL) {
            // A reply or an acknowledgement that is lost belongs to no segment of ours, but to one
            // of the peer's, which would wait for ever.
            None => self.fail_rail(rail, error),
            Some(wr_id) => match self.segment_of_sent(wr_id) {
                Some(segment) => self.fail_segment(segment, error),
                // The peer has it.
                None => debug!(target: "TRANSPORT", "an acknowledged message over {rail}: {error}"),
            },
        }
    }

    /// Lets a message wait until the peer's window has room again.
    #[cold]
    pub(in crate::posting) fn wait_for_window(&mut self, wr_id: WrId) {
        let pe = self.transmit.segment(wr_id).pe;
        self.transmit.segment_mut(wr_id).stage = Stage::Windowed;
        if let Some(connection) = self.peers.connections.find_mut(pe) {
            self.transmit.enqueue(&mut connection.channel().waiting, wr_id);
        }
        self.peers.want_ack(pe);
    }

    pub(crate) fn open_window(&mut self, pe: Pe) {
        let Some(connection) = self.peers.connections.find_mut(pe) else { return };
        let channel = connection.channel();
        for _ in 0..channel.room().min(channel.waiting.len()) {
            let Some(connection) = self.peers.connections.find_mut(pe) else { return };
            let Some(wr_id) = self.transmit.dequeue(&mut connection.channel().waiting) else {
                return;
            };
            let rail = self.transmit.segment(wr_id).rail;
            self.transmit.queue(wr_id, rail);
        }
    }

    pub(crate) fn acknowledged(&mut self, pe: Pe, ack: Seq) {
        let Some(connection) = self.peers.connections.find_mut(pe) else { return };
        if connection.channel().next.is_before(ack) {
            let why = format!("it acknowledges {}, which was not sent", ack.0);
            return self.bad_message(pe, why);
        }
        if connection.channel().ack_received.is_before(ack) {
            self.failures.has_moved();
        }
        while let Some(connection) = self.peers.connections.find_mut(pe) {
            // Most stand for themselves: they end here, and what waits for them is looked at once.
            let other = loop {
                let (messages, batches) = (&mut self.peers.messages, self.transmit.batches_mut());
                let channel = connection.channel();
                let ended = messages.end_acked(channel, ack, batches);
                let acked = messages.pop_acked(channel, ack);
                if let Some((slot, NIL)) = acked {
                    // What it was of has ended before, or it is an answer.
                    messages.give_over(channel, slot);
                    channel.apart = channel.apart.wrapping_add(1);
                }
                connection.end_messages(ended);
                if !matches!(acked, Some((_, NIL))) {
                    break acked;
                }
            };
            if connection.is_waited_for() {
                self.release(pe);
            }
            let Some((slot, segment)) = other else { break };
            let acked = self.transmit.segment_mut(WrId(segment));
            acked.take_message();
            match acked.work() {
                // They are under way still.
                Work::Fetch { .. } => {
                    self.peers.messages.set_aside(slot);
                    self.peers.set_apart(pe);
                }
                Work::Fragment { .. } => {
                    self.peers.messages.give_beside(slot);
                    self.peers.set_apart(pe);
                }
                _ => {
                    self.peers.messages.give(slot);
                    self.drop_segment(WrId(segment));
                }
            }
        }
        if let Some(connection) = self.peers.connections.find_mut(pe) {
            connection.channel().keep_last_put();
        }
        self.open_window(pe);
    }
}

pub(crate) fn send_packet<P: Port>(
    port: &mut P,
    seal: &Seal,
    rail: RailId,
    (pe, to): (Pe, PeerAddr),
    wr_id: WrId,
    packet: &mut Packet,
    tail: Tail,
) -> Result<Posted, PortError> {
    let head = seal.close(pe, packet);
    let sent = match tail.len {
        0 => port.send(rail, to, wr_id, packet.bytes()),
        _ => port.send_with_tail(rail, to, wr_id, packet.bytes(), tail),
    };
    head.put_back(packet);
    sent
}

/// Whether it asks its peer to read bytes of a put.
fn is_pull(segment: &Segment) -> bool {
    segment.direction == Direction::Write && matches!(segment.work(), Work::Fragment { .. })
}

fn behind(segment: &Segment, seq: Seq, mark: Option<Seq>) -> u16 {
    // Asks are ordered with nothing; where signals are counted, their data has kept the order, but
    // for that of signals.
    let is_counted = matches!(segment.work(), Work::CountedSignal { .. }) && !segment.behind_sent;
    if segment.direction == Direction::Read || is_counted {
        return 0;
    }
    mark.map_or(0, |mark| u16::try_from(seq.next().after(mark)).unwrap_or(u16::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::Context;
    use crate::state::segment::table::SegmentTable;
    use crate::state::segment::work::MessageSlot;
    use crate::wire::message::Tag;

    #[test]
    fn a_request_comes_behind_the_requests_before_its_mark() {
        let table = SegmentTable::new(1, |_| Context(0));
        let of = |direction, work| {
            let mut segment = table[0];
            segment.direction = direction;
            segment.set_work(work);
            segment
        };
        let (slot, len) = (MessageSlot::of(0), 8);
        let write = of(Direction::Write, Work::Message { slot, len });
        let read = of(Direction::Read, Work::fragment(Some(0), Direction::Read, len));
        let counted = of(Direction::Write, Work::CountedSignal { slot, len, tag: Tag(1) });
        for (segment, mark, distance) in [
            (write, None, 0),
            (write, Some(Seq(7)), 1),
            (write, Some(Seq(5)), 3),
            (write, Some(Seq(8_u32.wrapping_sub(u16::MAX.into()))), u16::MAX),
            (write, Some(Seq(7_u32.wrapping_sub(1 << 16))), u16::MAX),
            (read, Some(Seq(5)), 0),
            (counted, Some(Seq(5)), 0),
        ] {
            assert_eq!(behind(&segment, Seq(7), mark), distance, "{mark:?}");
        }
    }
}
