//! Messages with numbers on their way out: atomics, signals, and bytes for staged memory.
//!
//! # Why messages cannot deadlock
//! Every message that comes in is taken at once, whatever else is full: carrying it out needs no
//! slot, and what it calls forth (a reply, an acknowledgement) is queued in room that was set aside:
//! a bit per peer for acknowledgements, which are cumulative, and [`FETCHES`](crate::state::messages::link::FETCHES)
//! places per peer for replies, since a peer has no more fetches under way. So a peer's messages
//! never wait for ours. Ours wait for (a) the fabric, (b) the peer's window, which its
//! acknowledgements open, and those we ask for as soon as anybody waits.

use crate::atomic::Atomic;
use crate::error::EngineError;
use crate::ids::Pe;
use crate::port::{Direction, Port, Tail};
use crate::posting::dispatch::Behind;
use crate::posting::{Core, Tried};
use crate::request::AtomicRequest;
use crate::state::operation::OpId;
use crate::state::segment::{Kind, WriteClass};
use crate::wire::message::{Body, Message, Spot};
use crate::wire::window::Seq;

impl<P: Port> Core<P> {
    /// Submits a message about a word if there is room for it, to leave behind `what`. Never blocks.
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
        self.stream_to(request.pe)?;
        let atomic = request.atomic;
        let width = atomic.width.bytes();
        let (remote, offset) = request.word()?;
        let at = Spot { slot: remote.slot(), offset };

        let fetch = request.result.filter(|_| atomic.op.fetches());
        let Some(stream) = self.streams.find_mut(request.pe) else { return Ok(Tried::NoRoom) };
        let path = stream.next;
        let link = stream.link();
        let Some(place) = link.fetch_place().or_else(|| fetch.is_none().then_some(0)) else {
            return Ok(Tried::NoRoom);
        };
        if !link.has_share(&self.messages) {
            return Ok(Tried::NoRoom);
        }
        let Some(token) = self.segments.take() else { return Ok(Tried::NoRoom) };
        let Some(slot) = self.messages.take(token.0) else {
            self.segments.give_unused(token);
            return Ok(Tried::NoRoom);
        };
        link.unsent += 1;
        let segment = &mut self.segments[token.0];
        segment.set_fetch(fetch, place);
        segment.transfer.direction = Direction::Write;
        segment.transfer.len = width;
        segment.pe = request.pe;
        segment.direction = Direction::Write;
        segment.born = self.watchdog.stamp();
        segment.set_message(slot);
        segment.class = WriteClass::Word;
        segment.rail = path.rail;
        // Numbers are given when the message leaves: one that waits must not hold up the window.
        let body = match fetch {
            None => body(at, atomic),
            Some(_) => Body::Fetch { at, atomic, ticket: segment.ticket(token), place },
        };
        if let Body::PutSignal { .. } | Body::PutSignalHead { .. } = body {
            segment.class = WriteClass::EvenPut;
        }
        if let Body::CountedSignal { tag, .. } = body {
            segment.set_counted_signal(tag);
        }
        let message = Message { from: self.me, seq: Seq(0), ack: Seq(0), behind: 0, body };
        message.encode(self.messages.packet_mut(slot));
        self.messages.set_tail(slot, tail);
        if fetch.is_some() {
            link.turn_fetch(place);
        }
        stream.rotate(&self.paths);

        self.set_out_behind(token, what);
        self.check_stream(request.pe)?;
        Ok(Tried::Submitted)
    }

    /// Submits a message of a put if there is room for it, counted by an operation if one is given.
    /// Never blocks.
    #[cold]
    pub(crate) fn try_plain_message(
        &mut self,
        pe: Pe,
        op: OpId,
        len: usize,
        body: Body<'_>,
    ) -> Result<bool, EngineError> {
        let stream = self.stream_to(pe)?;
        stream.link();
        let rail = stream.next.rail;
        if !self.has_message_share(pe) {
            return Ok(false);
        }
        let Some(token) = self.segments.take() else { return Ok(false) };
        let Some(slot) = self.messages.take(token.0) else {
            self.segments.give_unused(token);
            return Ok(false);
        };
        self.count_unsent(pe);
        self.encode_into(slot, body);
        let segment = &mut self.segments[token.0];
        segment.pe = pe;
        segment.count_for(op.0);
        segment.direction = Direction::Write;
        segment.born = self.watchdog.stamp();
        segment.set_message(slot);
        segment.kind = Kind::Message;
        segment.rail = rail;
        segment.transfer.direction = Direction::Write;
        segment.transfer.len = len;
        if op != OpId::NONE {
            self.ops.add(op.0);
        }
        if let Some(stream) = self.streams.find_mut(pe) {
            stream.rotate(&self.paths);
        }
        self.set_out(token);
        self.check_stream(pe)?;
        Ok(true)
    }
}
