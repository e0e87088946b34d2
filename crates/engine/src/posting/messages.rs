//! Numbered messages: how one leaves, waits for the peer's window, and ends when it is acknowledged.

use log::debug;

use crate::ids::{Pe, RailId, Token};
use crate::port::{Direction, Failure, Packet, PeerAddr, Port, PortError, Posted, Tail};
use crate::posting::Core;
use crate::posting::dispatch::Left;
use crate::posting::failure::CONTROL;
use crate::state::messages::table::MessageTable;
use crate::state::operation::OpId;
use crate::state::segment::{Kind, NIL, Segment, Stage, WriteClass};
use crate::state::stream::Stream;
use crate::wire::message::{Body, Message};
use crate::wire::seal::Seal;
use crate::wire::window::Seq;

impl<P: Port> Core<P> {
    /// Writes a message into a slot, but for its numbers, which it gets when it leaves: one that waits
    /// must not hold up the window.
    pub(crate) fn encode_into(&mut self, slot: u32, body: Body<'_>) {
        let message = Message { from: self.me, seq: Seq(0), ack: Seq(0), behind: 0, body };
        message.encode(self.messages.packet_mut(slot));
    }

    /// Gives a message its number and hands it to the fabric.
    pub(super) fn send_message(&mut self, token: Token, rail: RailId) -> Left {
        let mut rail = rail;
        if self.recovers {
            match self.path_for_message(token, rail) {
                Ok(path) => rail = path,
                Err(left) => return left,
            }
        }
        let segment = &mut self.segments[token.0];
        let pe = segment.pe;
        let (Some(slot), Some(stream)) = (segment.message(), self.streams.find_mut(pe)) else {
            return Left::NoRoom;
        };
        let (holds, mark) = (!stream.held.is_empty(), stream.mark());
        let link = stream.link();
        if !link.has_room() {
            return Left::NoWindow;
        }
        let (seq, ack) = (link.next, link.ack());
        let mark = if segment.behind_sent && link.has_sent_puts() { Some(seq) } else { mark };
        let (packet, tail) = self.messages.parts_mut(slot);
        packet.number(seq, ack);
        packet.set_behind(behind(segment, seq, mark));
        let to = self.paths.get(pe, rail).to;
        let token_of_message = MessageTable::token(slot, seq);
        let to = (pe, to);
        match send_packet(&mut self.port, &self.seal, rail, to, token_of_message, packet, tail) {
            Ok(Posted::Yes) => {
                segment.stage = Stage::Sent;
                segment.born = self.watchdog.stamp();
                link.carried(ack);
                segment.rail = rail;
                segment.request = seq;
                self.messages.sent(link, slot, seq, rail);
                link.unsent -= 1;
                link.take_number();
                if holds {
                    // Writes may be held until this message is acknowledged.
                    link.want_ack();
                }
                self.queue_control(pe);
                self.placed(token, seq);
                Left::Taken
            }
            Ok(Posted::Again) => {
                self.rails[rail.index()].counters.again += 1;
                Left::Again
            }
            Err(error) => Left::Failed(error),
        }
    }

    /// A request has left: its target sees to its order from here on.
    fn placed(&mut self, token: Token, seq: Seq) {
        let segment = &mut self.segments[token.0];
        let Segment { pe, kind, direction, class, .. } = *segment;
        let Some(stream) = self.streams.find_mut(pe) else { return };
        let is_pull = kind == Kind::Staged && direction == Direction::Write;
        let orders = stream.orders();
        if orders && direction == Direction::Write && class != WriteClass::Word {
            segment.class = WriteClass::Word;
            stream.place_put(class);
            let link = stream.link();
            link.last_put = seq;
            link.pulls += u32::from(is_pull);
        }
        if direction == Direction::Read {
            let link = stream.link();
            link.apart = link.apart.wrapping_sub(1);
        }
        let op = OpId(segment.op());
        if orders && self.ops.departs(op) {
            segment.uncount();
            self.op_done(op.0);
        }
        if self.streams.find(pe).is_some_and(Stream::is_waited_for) {
            self.release(pe);
        }
    }

    /// The rail that a message leaves by, in place of one whose path has failed; or what becomes of it.
    fn path_for_message(&mut self, token: Token, rail: RailId) -> Result<RailId, Left> {
        let pe = self.segments[token.0].pe;
        let Some(stream) = self.streams.find(pe) else { return Ok(rail) };
        // Some of it may be the data that the message tells of.
        if stream.lost_writes != 0 {
            return Err(Left::NoWindow);
        }
        // Nor before the keys that the peer is to read with.
        let segment = &self.segments[token.0];
        let is_pull = segment.kind == Kind::Staged && segment.direction == Direction::Write;
        if is_pull && stream.link.as_deref().is_some_and(|link| link.keys_due != 0) {
            return Err(Left::NoWindow);
        }
        if !self.paths.is_out(pe, rail) {
            return if self.rails[rail.index()].is_paused() { Err(Left::NoRoom) } else { Ok(rail) };
        }
        let mut hop = stream.next;
        for _ in 0..self.rails.len() {
            if !self.rails[hop.rail.index()].is_paused() {
                self.segments[token.0].rail = hop.rail;
                return Ok(hop.rail);
            }
            self.paths.advance(&mut hop);
        }
        // What is for others may leave by the rail whose queue it is in.
        Err(Left::Again)
    }

    /// The segment of a message that has left, as the fabric names it when it has failed; none if it was
    /// acknowledged.
    pub(crate) fn sent_as(&self, token: Token) -> Option<Token> {
        let (slot, segment) = self.messages.named_by(token)?;
        let segment = Token(segment);
        let sent = self.segments.away(segment).filter(|segment| segment.stage == Stage::Sent)?;
        (sent.message() == Some(slot)).then_some(segment)
    }

    /// A message has failed that had left.
    pub(crate) fn failed_message(&mut self, rail: RailId, failure: Failure) {
        let Failure { token, error, .. } = failure;
        match token.filter(|token| *token != CONTROL) {
            // A reply or an acknowledgement that is lost belongs to no segment of ours, but to one of the
            // peer's, which would wait for ever.
            None => self.fail_rail(rail, error),
            Some(token) => match self.sent_as(token) {
                Some(segment) => self.fail_segment(segment, error),
                // The peer has it.
                None => debug!(target: "TRANSPORT", "an acknowledged message over {rail}: {error}"),
            },
        }
    }

    /// Whether a peer may have another message's slot.
    pub(crate) fn has_message_share(&self, pe: Pe) -> bool {
        let link = self.streams.find(pe).and_then(|stream| stream.link.as_deref());
        link.is_none_or(|link| link.has_share(&self.messages))
    }

    /// A message to a peer has a slot.
    pub(crate) fn count_unsent(&mut self, pe: Pe) {
        if let Some(stream) = self.streams.find_mut(pe) {
            stream.link().unsent += 1;
        }
    }

    /// Lets a message wait until the peer's window has room again.
    #[cold]
    pub(super) fn wait_for_window(&mut self, token: Token) {
        let pe = self.segments[token.0].pe;
        self.segments[token.0].stage = Stage::Windowed;
        if let Some(stream) = self.streams.find_mut(pe) {
            stream.link().waiting.push(&mut self.segments, token.0);
        }
        self.want_ack(pe);
    }

    /// Moves to the rails' queues what waits for a peer's window, as far as it is open.
    pub(crate) fn open_window(&mut self, pe: Pe) {
        let Some(stream) = self.streams.find_mut(pe) else { return };
        let link = stream.link();
        for _ in 0..link.room().min(link.waiting.len()) {
            let Some(stream) = self.streams.find_mut(pe) else { return };
            let Some(index) = stream.link().waiting.pop(&self.segments) else { return };
            let rail = self.segments[index].rail;
            self.queue(Token(index), rail);
        }
    }

    /// Ends what an acknowledgement covers.
    pub(crate) fn acknowledged(&mut self, pe: Pe, ack: Seq) {
        let Some(stream) = self.streams.find_mut(pe) else { return };
        if stream.link().next.is_before(ack) {
            let why = format!("it acknowledges {}, which was not sent", ack.0);
            return self.bad_message(pe, why);
        }
        let received = &mut stream.link().ack_received;
        if received.is_before(ack) {
            *received = ack;
            self.watchdog.has_moved();
        }
        while let Some(stream) = self.streams.find_mut(pe) {
            // Most are plain: they end here, and what waits for them is looked at once.
            let mut other = None;
            while let Some((slot, segment)) = self.messages.pop_acked(stream.link(), ack) {
                if let Some(class) = self.segments.finish_message(segment) {
                    self.messages.give(slot);
                    stream.end_message(class);
                } else if segment != NIL {
                    other = Some((slot, segment));
                    break;
                } else {
                    // What it was of has ended before, or it is an answer.
                    let link = stream.link();
                    self.messages.give_over(link, slot);
                    link.apart = link.apart.wrapping_add(1);
                }
            }
            if stream.is_waited_for() {
                self.release(pe);
            }
            let Some((slot, segment)) = other else { break };
            self.segments[segment].no_message();
            match self.segments[segment].kind {
                // They are under way still.
                Kind::Fetch => {
                    self.messages.set_aside(slot);
                    self.set_apart(pe);
                }
                Kind::Staged => {
                    self.messages.give_beside(slot);
                    self.set_apart(pe);
                }
                _ => {
                    self.messages.give(slot);
                    self.drop_segment(Token(segment));
                }
            }
        }
        self.open_window(pe);
    }

    /// A message was acknowledged whose operation is under way still.
    fn set_apart(&mut self, pe: Pe) {
        if let Some(link) = self.streams.find_mut(pe).and_then(|stream| stream.link.as_deref_mut())
        {
            link.apart = link.apart.wrapping_add(1);
        }
    }

    /// Somebody waits for what was sent to a peer: it is asked to acknowledge, unless it was before.
    pub(crate) fn want_ack(&mut self, pe: Pe) {
        let link = self.streams.find_mut(pe).and_then(|stream| stream.link.as_deref_mut());
        if let Some(link) = link {
            link.want_ack();
            self.queue_control(pe);
        }
    }

    /// The same, of somebody who asks in each turn: once for each answer.
    pub(crate) fn want_ack_in_turn(&mut self, pe: Pe) {
        let link = self.streams.find_mut(pe).and_then(|stream| stream.link.as_deref_mut());
        if let Some(link) = link {
            link.want_ack_in_turn();
            self.queue_control(pe);
        }
    }

    /// Puts a peer to whom control messages are due into the control queue.
    #[inline]
    pub(crate) fn queue_control(&mut self, pe: Pe) {
        let link = self.streams.find_mut(pe).and_then(|stream| stream.link.as_deref_mut());
        if let Some(link) = link {
            if link.enters_control() {
                self.control.push_back(pe);
            }
        }
    }

    /// Somebody waits for what acknowledgements bring: room, or the end of what was sent. All peers with messages that
    /// nobody has asked about yet are asked, so that who waits for one after the other waits once.
    #[inline]
    pub(crate) fn want_acks(&mut self) {
        while let Some(pe) = self.messages.first_unasked() {
            self.ask_first(pe);
        }
    }

    #[cold]
    fn ask_first(&mut self, pe: Pe) {
        let link = self.streams.find_mut(pe).and_then(|stream| stream.link.as_deref_mut());
        if let Some(link) = link {
            self.messages.pop_unasked(link);
            link.want_ack();
            if link.enters_control() {
                self.control.push_back(pe);
            }
        }
    }
}

/// Hands a message to the fabric. It may be sent again with other numbers, so it stays as it was.
pub(crate) fn send_packet<P: Port>(
    port: &mut P,
    seal: &Seal,
    rail: RailId,
    (pe, to): (Pe, PeerAddr),
    token: Token,
    packet: &mut Packet,
    tail: Tail,
) -> Result<Posted, PortError> {
    let head = seal.close(pe, packet);
    let sent = match tail.len {
        0 => port.send(rail, to, token, packet.bytes()),
        _ => port.send_with_tail(rail, to, token, packet.bytes(), tail),
    };
    head.put_back(packet);
    sent
}

/// What a request that leaves with this number says that it comes behind. More than it has to come behind does no harm.
fn behind(segment: &Segment, seq: Seq, mark: Option<Seq>) -> u16 {
    // Asks are ordered with nothing; where signals are counted, their data has kept the order.
    if segment.direction == Direction::Read || segment.kind == Kind::CountedSignal {
        return 0;
    }
    mark.map_or(0, |mark| u16::try_from(seq.next().after(mark)).unwrap_or(u16::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::Context;
    use crate::state::segment::table::SegmentTable;

    #[test]
    fn a_request_comes_behind_the_requests_before_its_mark() {
        let table = SegmentTable::new(1, |_| Context(0));
        let of = |direction, kind| {
            let mut segment = table[0];
            (segment.direction, segment.kind) = (direction, kind);
            segment
        };
        let write = of(Direction::Write, Kind::Message);
        for (segment, mark, distance) in [
            (write, None, 0),
            (write, Some(Seq(7)), 1),
            (write, Some(Seq(5)), 3),
            (write, Some(Seq(8_u32.wrapping_sub(u16::MAX.into()))), u16::MAX),
            (write, Some(Seq(7_u32.wrapping_sub(1 << 16))), u16::MAX),
            (of(Direction::Read, Kind::Staged), Some(Seq(5)), 0),
            (of(Direction::Write, Kind::CountedSignal), Some(Seq(5)), 0),
        ] {
            assert_eq!(behind(&segment, Seq(7), mark), distance, "{mark:?}");
        }
    }
}
