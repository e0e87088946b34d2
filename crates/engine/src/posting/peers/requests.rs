//! Messages with numbers on their way out: atomics, signals, and bytes for staged memory.
//!
//! # Why messages cannot deadlock
//! Every message that comes in is taken at once, whatever else is full: carrying it out needs no
//! slot, and what it calls forth (a reply, an acknowledgement) is queued in room that was set
//! aside: a bit per peer for acknowledgements, which are cumulative, and
//! [`FETCHES`](crate::state::messages::reliable_channel::FETCHES) places per peer for replies,
//! since a peer has no more fetches under way. So a peer's messages never wait for ours. Ours wait
//! for (a) the fabric, (b) the peer's window, which its acknowledgements open, and those we ask for
//! as soon as anybody waits.

use crate::atomic::Atomic;
use crate::error::EngineError;
use crate::ids::{Pe, WrId};
use crate::port::{Direction, Port, Tail};
use crate::posting::transmit::dispatch::Behind;
use crate::posting::{Core, Tried};
use crate::request::AtomicRequest;
use crate::state::operation::OpId;
use crate::state::segment::WriteClass;
use crate::state::segment::work::{MessageSlot, Work};
use crate::wire::message::{Body, Message, Spot};
use crate::wire::window::Seq;

impl<P: Port> Core<P> {
    #[inline]
    pub(crate) fn try_message<'b>(
        &mut self,
        request: &AtomicRequest<'_>,
        what: Behind,
        body: impl FnOnce(Spot, Atomic) -> Body<'b>,
    ) -> Result<Tried, EngineError> {
        self.try_message_with_tail(request, what, Tail::NONE, body)
    }

    /// The same, of a message that ends with bytes elsewhere in memory.
    #[inline]
    pub(crate) fn try_message_with_tail<'b>(
        &mut self,
        request: &AtomicRequest<'_>,
        what: Behind,
        tail: Tail,
        body: impl FnOnce(Spot, Atomic) -> Body<'b>,
    ) -> Result<Tried, EngineError> {
        self.connection_to(request.pe)?;
        let atomic = request.atomic;
        let width = atomic.width.bytes();
        let (remote, offset) = request.word()?;
        let at = Spot { slot: remote.slot(), offset };

        let fetch = request.result.filter(|_| atomic.op.fetches());
        let Some(connection) = self.peers.connections.find_mut(request.pe) else {
            return Ok(Tried::NoRoom);
        };
        let path = connection.next;
        let channel = connection.channel();
        let Some(place) = channel.fetch_place().or_else(|| fetch.is_none().then_some(0)) else {
            return Ok(Tried::NoRoom);
        };
        if !channel.is_within_quota(&self.peers.messages) {
            return Ok(Tried::NoRoom);
        }
        let Some(wr_id) = self.transmit.take() else { return Ok(Tried::NoRoom) };
        let Some(slot) = self.peers.messages.take(wr_id.0) else {
            self.transmit.give_unused(wr_id);
            return Ok(Tried::NoRoom);
        };
        channel.unsent += 1;
        let segment = self.transmit.segment_mut(wr_id);
        segment.pe = request.pe;
        segment.direction = Direction::Write;
        segment.born = self.failures.stamp();
        segment.class = WriteClass::Word;
        segment.rail = path.rail;
        // Numbers are given when the message leaves: one that waits must not hold up the window.
        let body = match fetch {
            None => body(at, atomic),
            Some(_) => Body::Fetch { at, atomic, request_id: segment.request_id(wr_id), place },
        };
        let is_put = matches!(body, Body::PutSignal { .. } | Body::PutSignalHead { .. });
        // One that waits for puts is none until it waits no longer.
        if is_put && what != Behind::All {
            segment.class = WriteClass::EvenPut;
        }
        let (message, len) = (MessageSlot::of(slot), width);
        segment.set_work(match (body, fetch) {
            (Body::CountedSignal { tag, .. }, _) => Work::CountedSignal { slot: message, len, tag },
            (_, Some(result)) => Work::Fetch { slot: message, len, place, result },
            (_, None) => Work::Message { slot: message, len },
        });
        let message = Message { from: self.peers.me, seq: Seq(0), ack: Seq(0), behind: 0, body };
        message.encode(self.peers.messages.packet_mut(slot));
        self.peers.messages.set_tail(slot, tail);
        if fetch.is_some() {
            channel.turn_fetch(place);
        }
        self.transmit.rotate(connection);

        self.set_out_behind(wr_id, what);
        self.peers.check(request.pe)?;
        Ok(Tried::Submitted)
    }

    #[cold]
    pub(crate) fn try_plain_message(
        &mut self,
        pe: Pe,
        op: OpId,
        len: usize,
        body: Body<'_>,
    ) -> Result<bool, EngineError> {
        let Some(wr_id) = self.take_plain_message(pe, op, len, body)? else { return Ok(false) };
        self.set_out(wr_id);
        self.peers.check(pe)?;
        Ok(true)
    }

    pub(super) fn take_plain_message(
        &mut self,
        pe: Pe,
        op: OpId,
        len: usize,
        body: Body<'_>,
    ) -> Result<Option<WrId>, EngineError> {
        let connection = self.connection_to(pe)?;
        connection.channel();
        let rail = connection.next.rail;
        if !self.peers.is_within_message_quota(pe) {
            return Ok(None);
        }
        let Some(wr_id) = self.transmit.take() else { return Ok(None) };
        let Some(slot) = self.peers.messages.take(wr_id.0) else {
            self.transmit.give_unused(wr_id);
            return Ok(None);
        };
        self.peers.count_unsent(pe);
        self.peers.encode_into(slot, body);
        let segment = self.transmit.segment_mut(wr_id);
        segment.pe = pe;
        segment.count_for(op.0);
        segment.direction = Direction::Write;
        segment.born = self.failures.stamp();
        segment.set_work(Work::Message { slot: MessageSlot::of(slot), len });
        segment.rail = rail;
        if op != OpId::NONE {
            self.transmit.ops_mut().add(op.0);
        }
        if let Some(connection) = self.peers.connections.find_mut(pe) {
            self.transmit.rotate(connection);
        }
        Ok(Some(wr_id))
    }
}
