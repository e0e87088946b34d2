//! The lane's side of messages: atomics and signals out, and what peers ask for in.
//!
//! # Why messages cannot deadlock
//! Every message that comes in is taken at once, whatever else is full: carrying it out needs no
//! slot, and what it calls forth (a reply, an acknowledgement) is noted in room that was set aside:
//! a bit per peer for acknowledgements, which are cumulative, and [`FETCHES`](super::link::FETCHES)
//! places per peer for replies, since a peer has no more fetches under way. So a peer's messages
//! never wait for ours. Ours wait for (a) the fabric, (b) the peer's window, which its
//! acknowledgements open, and those we ask for as soon as anybody waits.

use super::error::EngineError;
use super::handle::{HandleError, HandleView};
use super::ids::{Pe, RailId, Token};
use super::lane::{Lane, Left, LocalSide, Request, SignalEngine};
use super::link::FETCHES;
use super::message::{AtomicRequest, PutSignalRequest};
use super::operation::OpId;
use super::port::{Desc, Direction, Local, Port, PortError, Posted, Transfer};
use super::segment::{Kind, NIL, Stage};
use super::window::{Arrival, Seq};
use super::wire::{Body, MAX_EAGER, Message, Packet, Spot, Ticket};

/// A put with at least so many bytes goes over all rails and is followed by its signal when it is
/// delivered, rather than over one rail in order.
const STRIPED: usize = 64 << 10;

/// The answer to a fetch, until it has been sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingReply {
    stream: u32,
    ticket: Ticket,
    value: u64,
}

impl<P: Port> Lane<P> {
    /// Starts an atomic operation. [`Lane::quiet`] waits for its end; a fetched word, and its flag
    /// after it, are stored as soon as they arrive.
    ///
    /// It is carried out by the peer's proxy thread, exactly once, in order behind a fence.
    ///
    /// # Errors
    /// Bad arguments, a peer that has failed before, or a fabric that takes nothing more.
    #[inline]
    pub fn atomic(&mut self, request: &AtomicRequest<'_>) -> Result<(), EngineError> {
        let mut idle = 0;
        while !self.try_atomic(request)? {
            self.make_room(&mut idle)?;
        }
        Ok(())
    }

    /// Starts a put whose signal becomes visible after its data. No other operation is waited for,
    /// and none waits for this one.
    ///
    /// # Errors
    /// As [`Lane::atomic`].
    pub fn put_signal(&mut self, request: &PutSignalRequest<'_>) -> Result<(), EngineError> {
        let PutSignalRequest { parts, signal } = request;
        let bytes: usize = parts.iter().map(|part| part.len).sum();
        if bytes == 0 {
            return self.atomic(signal);
        }
        let eager = matches!(self.signals, SignalEngine::Auto | SignalEngine::Eager);
        if eager && bytes <= MAX_EAGER {
            if let [part] = parts {
                return self.put_signal_eager(part, signal);
            }
        }
        let ordered = match self.signals {
            SignalEngine::Auto => bytes < STRIPED || self.rails.len() == 1,
            SignalEngine::Ordered => true,
            SignalEngine::Chained | SignalEngine::Eager => false,
        };
        let fits = |rail: &super::rail::Rail| {
            rail.orders_messages && parts.iter().all(|part| part.len <= rail.max_segment)
        };
        if ordered && self.rails.iter().all(fits) {
            self.put_signal_ordered(parts, signal)
        } else {
            self.put_signal_chained(parts, signal)
        }
    }

    /// Data and signal in one message.
    fn put_signal_eager(
        &mut self,
        part: &Request<'_>,
        signal: &AtomicRequest<'_>,
    ) -> Result<(), EngineError> {
        let mut payload = [0; MAX_EAGER];
        let payload = &mut payload[..part.len];
        let LocalSide::Memory { addr, .. } = part.local else {
            return self.put_signal_chained(&[*part], signal);
        };
        self.port.load(addr, payload).map_err(|error| self.local_fault(signal.pe, error))?;
        let remote = HandleView::check(part.remote_handle)?;
        let offset = remote.locate(part.remote_addr, part.len as u64)?;
        let to = Spot { slot: remote.slot(), offset };
        let mut idle = 0;
        while !self.try_message(signal, NIL_OP, |at, seq_less| Body::PutSignal {
            at,
            atomic: seq_less,
            to,
            payload,
        })? {
            self.make_room(&mut idle)?;
        }
        Ok(())
    }

    /// Data, then signal, on one rail that keeps their order.
    fn put_signal_ordered(
        &mut self,
        parts: &[Request<'_>],
        signal: &AtomicRequest<'_>,
    ) -> Result<(), EngineError> {
        let stream = self.stream_to(signal.pe)?;
        let rail = self.streams[stream].next_rail;
        for part in parts {
            let mut sent = 0;
            let mut idle = 0;
            loop {
                self.streams[stream].next_rail = rail;
                self.submit(part, &mut sent, OpId::NONE)?;
                if sent == part.len {
                    break;
                }
                self.make_room(&mut idle)?;
            }
        }
        let mut idle = 0;
        loop {
            self.streams[stream].next_rail = rail;
            if self.try_atomic(signal)? {
                return Ok(());
            }
            self.make_room(&mut idle)?;
        }
    }

    /// Data on all rails; the signal is sent when its own data, and nothing else, is delivered.
    fn put_signal_chained(
        &mut self,
        parts: &[Request<'_>],
        signal: &AtomicRequest<'_>,
    ) -> Result<(), EngineError> {
        let op = self.begin_op();
        let mut idle = 0;
        for part in parts {
            let mut sent = 0;
            loop {
                self.submit(part, &mut sent, op)?;
                if sent == part.len {
                    break;
                }
                self.make_room(&mut idle)?;
            }
        }
        let plain = |at, atomic| Body::Atomic { at, atomic };
        while !self.try_message(signal, op, plain)? {
            self.make_room(&mut idle)?;
        }
        Ok(())
    }

    /// Submits an atomic if there is room for it. Never blocks.
    #[inline]
    fn try_atomic(&mut self, request: &AtomicRequest<'_>) -> Result<bool, EngineError> {
        self.try_message(request, NIL_OP, |at, atomic| Body::Atomic { at, atomic })
    }

    /// Submits a message about a word if there is room for it, chained to an operation if one is
    /// given. Never blocks.
    #[inline]
    fn try_message<'b>(
        &mut self,
        request: &AtomicRequest<'_>,
        chained_to: OpId,
        body: impl FnOnce(Spot, super::atomic::Atomic) -> Body<'b>,
    ) -> Result<bool, EngineError> {
        let stream_index = self.stream_to(request.pe)?;
        let atomic = request.atomic;
        let width = atomic.width.bytes();
        let refused = |fault: HandleError| EngineError::Refused {
            what: "atomic",
            pe: request.pe,
            side: "remote",
            addr: request.remote_addr,
            len: width,
            fault,
        };
        let remote = HandleView::check(request.remote_handle).map_err(refused)?;
        let offset = remote.locate(request.remote_addr, width as u64).map_err(refused)?;
        if request.remote_addr % width as u64 != 0 {
            let addr = request.remote_addr;
            return Err(refused(HandleError::Misaligned { addr, width }));
        }
        if remote.rails() == 0 {
            return Err(refused(HandleError::NoKey { rail: RailId(0), rails: 0 }));
        }
        let at = Spot { slot: remote.slot(), offset };

        let fetch = request.result.filter(|_| atomic.op.fetches());
        let stream = &mut self.streams[stream_index];
        let issued = stream.issued;
        let rail = RailId(stream.next_rail);
        let link = stream.link();
        if fetch.is_some() && link.fetches >= FETCHES {
            return Ok(false);
        }
        let Some(token) = self.segments.take() else { return Ok(false) };
        let Some(slot) = self.messages.take(token.0) else {
            self.segments.give_unused(token);
            return Ok(false);
        };
        // Numbers are given when the message leaves: one that waits must not hold up the window.
        let body = match fetch {
            None => body(at, atomic),
            Some(_) => Body::Fetch { at, atomic, ticket: ticket(token, issued) },
        };
        let message = Message { from: self.me, seq: Seq(0), ack: Seq(0), body };
        message.encode(self.messages.packet_mut(slot));
        if fetch.is_some() {
            link.fetches += 1;
        }
        stream.issued = issued + 1;
        stream.next_rail =
            if rail.index() + 1 == self.rails.len() { 0 } else { stream.next_rail + 1 };

        let segment = &mut self.segments[token.0];
        segment.transfer = Transfer {
            direction: Direction::Write,
            local: Local::Memory { addr: fetch.map_or(0, |place| place.addr), desc: Desc(0) },
            len: width,
            remote: fetch.map_or(0, |place| place.flag),
            key: 0,
        };
        segment.to = self.paths.get(request.pe, rail).to;
        segment.seq = issued;
        segment.stream = stream_index;
        segment.op = OpId::NONE.0;
        segment.message = slot;
        segment.rail = rail;
        segment.kind = if fetch.is_some() { Kind::Fetch } else { Kind::Message };
        segment.stage = Stage::Ready;
        stream.order_mut(Direction::Write).append(&mut self.segments, token.0);

        if chained_to != NIL_OP {
            self.segments[token.0].stage = Stage::Chained;
            if self.ops.chain(chained_to, token.0) {
                self.unchain(token);
            }
        } else if self.streams[stream_index].fence == 0
            || !self.hold_behind_fence(token, stream_index)
        {
            self.dispatch(token, rail);
        }
        self.streams[stream_index].check()?;
        Ok(true)
    }

    /// Sends a new message, or puts it where it waits.
    pub(super) fn dispatch_message(&mut self, token: Token, rail: RailId) {
        match self.send_message(token, rail) {
            Left::Taken => {}
            Left::NoWindow => self.hold_for_window(token),
            Left::Failed(error) => self.fail_segment(token, error),
            Left::NoRoom | Left::Dropped => self.queue(token, rail),
        }
    }

    /// Gives a message its number and hands it to the fabric.
    pub(super) fn send_message(&mut self, token: Token, rail: RailId) -> Left {
        let segment = &mut self.segments[token.0];
        let slot = segment.message;
        let link = self.streams[segment.stream].link();
        if !link.has_room(&self.messages) {
            return Left::NoWindow;
        }
        let (seq, ack) = (link.next, link.ack());
        let packet = self.messages.packet_mut(slot);
        packet.number(seq, ack);
        match self.port.send(rail, segment.to, token, packet.bytes()) {
            Ok(Posted::Yes) => {
                segment.stage = Stage::Sent;
                link.carried(ack);
                self.messages.sent(link, slot, seq);
                link.take_number();
                let stream = segment.stream;
                self.note_control(stream);
                Left::Taken
            }
            Ok(Posted::Again) => {
                self.rails[rail.index()].counters.again += 1;
                Left::NoRoom
            }
            Err(error) => Left::Failed(error),
        }
    }

    /// Holds a message until the peer's window has room again.
    #[cold]
    pub(super) fn hold_for_window(&mut self, token: Token) {
        let segment = &mut self.segments[token.0];
        segment.stage = Stage::Held;
        segment.after = 0;
        let stream = segment.stream;
        self.streams[stream].held.push(&mut self.segments, token.0);
        self.want_ack(stream);
    }

    /// The message side of a segment that ends.
    pub(super) fn retire_message(&mut self, token: Token) {
        let segment = &self.segments[token.0];
        let (slot, stream) = (segment.message, segment.stream);
        if segment.kind == Kind::Fetch {
            self.streams[stream].link().fetches -= 1;
        }
        if slot == NIL {
            return;
        }
        if self.segments[token.0].stage == Stage::Sent {
            // The message itself waits for its acknowledgement.
            self.messages.forget_segment(slot);
        } else {
            self.messages.give(slot);
        }
    }

    /// Somebody waits for what was sent to a peer.
    #[inline]
    pub(super) fn want_ack_of(&mut self, pe: Pe) {
        if let Some(index) = self.streams.index_of(pe) {
            self.want_ack(index);
        }
    }

    /// Somebody waits for what was sent on a stream.
    pub(super) fn want_ack(&mut self, stream: u32) {
        if let Some(link) = &mut self.streams[stream].link {
            link.want_ack();
            self.note_control(stream);
        }
    }

    /// Puts a stream with control messages due into the control queue.
    #[inline]
    fn note_control(&mut self, stream: u32) {
        if let Some(link) = &mut self.streams[stream].link {
            if (link.request_due || link.ack_due) && !link.in_control {
                link.in_control = true;
                self.control.push_back(stream);
            }
        }
    }

    /// A submitter has no room: turns the loop once.
    #[cold]
    fn make_room(&mut self, idle: &mut u32) -> Result<(), EngineError> {
        // The room may be taken by messages that only an acknowledgement frees.
        for stream in 0..self.streams.len() as u32 {
            self.want_ack(stream);
        }
        self.wait_turn(idle);
        self.room_or_failure()
    }

    fn stream_to(&mut self, pe: Pe) -> Result<u32, EngineError> {
        let n_pes = self.streams.n_pes();
        let stream = self.streams.open(pe).ok_or(EngineError::NoSuchPe { pe, n_pes })?;
        self.streams[stream].check()?;
        Ok(stream)
    }

    /// Sends the replies and the control messages that are due, as far as there is room.
    #[cold]
    pub(super) fn send_control(&mut self) -> bool {
        let mut moved = false;
        let Some(mut packet) = self.packet.take() else { return false };
        while let Some(reply) = self.replies.front().copied() {
            let body = Body::Reply { ticket: reply.ticket, value: reply.value };
            if !self.send_unnumbered(reply.stream, Seq(0), body, &mut packet) {
                break;
            }
            self.replies.pop_front();
            moved = true;
        }
        while let Some(stream) = self.control.front().copied() {
            let link = self.streams[stream].link();
            let (seq, body) = if link.request_due {
                (link.requested(), Body::AckRequest)
            } else {
                (Seq(0), Body::Ack)
            };
            let due = link.request_due || link.ack_due;
            if due && !self.send_unnumbered(stream, seq, body, &mut packet) {
                break;
            }
            let link = self.streams[stream].link();
            link.request_due = false;
            link.in_control = false;
            self.control.pop_front();
            moved = true;
        }
        self.packet = Some(packet);
        moved
    }

    /// Sends a message that is not acknowledged itself. Whether it has left, or never will.
    fn send_unnumbered(
        &mut self,
        stream_index: u32,
        seq: Seq,
        body: Body<'_>,
        packet: &mut Packet,
    ) -> bool {
        let stream = &mut self.streams[stream_index];
        if stream.error.is_some() {
            return true;
        }
        let (pe, rail) = (stream.pe, RailId(stream.next_rail));
        let ack = stream.link().ack();
        Message { from: self.me, seq, ack, body }.encode(packet);
        let to = self.paths.get(pe, rail).to;
        match self.port.send(rail, to, CONTROL, packet.bytes()) {
            Ok(Posted::Yes) => {
                self.streams[stream_index].link().carried(ack);
                true
            }
            Ok(Posted::Again) => {
                self.rails[rail.index()].counters.again += 1;
                false
            }
            Err(error) => {
                let failed = self.local_fault(pe, error);
                self.fail_stream(stream_index, failed);
                true
            }
        }
    }

    /// Takes the messages that a rail's poll has found.
    #[inline]
    pub(super) fn receive(&mut self, rail: RailId) -> bool {
        let Some(mut packet) = self.packet.take() else { return false };
        let mut busy = false;
        while self.port.receive(rail, &mut packet) {
            busy = true;
            match Message::decode(packet.bytes()) {
                Ok(message) => self.handle(&message),
                Err(error) => {
                    let rail_name = self.port.rail_name(rail).to_owned();
                    let error =
                        PortError { call: "reading a message", code: 0, text: error.to_string() };
                    self.fail_lane(EngineError::Rail { rail, rail_name, error });
                }
            }
        }
        self.packet = Some(packet);
        busy
    }

    /// Carries out a message. Nothing is sent from here: what it calls forth is noted.
    fn handle(&mut self, message: &Message<'_>) {
        let pe = message.from;
        let Some(stream) = self.streams.open(pe) else {
            let why = format!("it is no PE of this job of {}", self.streams.n_pes());
            return self.fail_lane(EngineError::BadMessage { pe, why });
        };
        self.acknowledged(stream, message.ack);
        match message.body {
            Body::Ack => return,
            Body::Reply { ticket, value } => return self.replied(stream, ticket, value),
            Body::AckRequest => self.streams[stream].link().asked(message.seq),
            Body::Atomic { .. } | Body::Fetch { .. } | Body::PutSignal { .. } => {
                match self.streams[stream].link().received.arrive(message.seq) {
                    Arrival::New => {
                        if let Err(why) = self.carry_out(stream, &message.body) {
                            self.fail_lane(EngineError::BadMessage { pe, why });
                        }
                    }
                    Arrival::Duplicate => {}
                    Arrival::Beyond => {
                        let why = format!("its number {} is out of the window", message.seq.0);
                        self.fail_lane(EngineError::BadMessage { pe, why });
                    }
                }
                self.streams[stream].link().check_wanted();
            }
        }
        self.note_control(stream);
    }

    /// Applies a request to this process' memory.
    fn carry_out(&mut self, stream: u32, body: &Body<'_>) -> Result<(), String> {
        let (at, atomic) = match *body {
            Body::PutSignal { at, atomic, to, payload } => {
                let addr = self.regions.locate(to, payload.len()).map_err(|e| e.to_string())?;
                self.port.store(addr, payload).map_err(|e| e.to_string())?;
                (at, atomic)
            }
            Body::Atomic { at, atomic } | Body::Fetch { at, atomic, .. } => (at, atomic),
            Body::Ack | Body::AckRequest | Body::Reply { .. } => return Ok(()),
        };
        let width = atomic.width.bytes();
        let addr = self.regions.locate(at, width).map_err(|e| e.to_string())?;
        if addr % width != 0 {
            return Err(format!("a word of {width} bytes at {addr:#x} is not aligned"));
        }
        let value = self.port.apply(addr, &atomic).map_err(|e| e.to_string())?;
        if let Body::Fetch { ticket, .. } = *body {
            self.replies.push_back(PendingReply { stream, ticket, value });
        }
        Ok(())
    }

    /// Ends what an acknowledgement covers.
    fn acknowledged(&mut self, stream_index: u32, ack: Seq) {
        let stream = &mut self.streams[stream_index];
        let link = stream.link();
        if link.next.is_before(ack) {
            let (pe, why) = (stream.pe, format!("it acknowledges {}, which was not sent", ack.0));
            return self.fail_lane(EngineError::BadMessage { pe, why });
        }
        let mut moved = false;
        while let Some((slot, segment)) =
            self.messages.pop_acked(self.streams[stream_index].link(), ack)
        {
            moved = true;
            self.messages.give(slot);
            if segment == NIL {
                continue;
            }
            self.segments[segment].message = NIL;
            if self.segments[segment].kind != Kind::Fetch {
                self.retire(Token(segment));
            }
        }
        if moved && !self.streams[stream_index].held.is_empty() {
            self.release_held(stream_index);
        }
    }

    /// Stores a fetched word, then its flag.
    fn replied(&mut self, stream: u32, answered: Ticket, value: u64) {
        let token = Token(answered.0 & TOKEN_BITS);
        let Some(segment) = self.segments.in_flight(token).copied() else { return };
        let same = segment.kind == Kind::Fetch
            && segment.stream == stream
            && ticket(token, segment.seq) == answered;
        // A second reply to the same request finds another segment there, or none.
        if !same {
            return;
        }
        if let Local::Memory { addr, .. } = segment.transfer.local {
            let stored = self
                .port
                .store(addr, &value.to_le_bytes())
                .and_then(|()| self.port.store_flag(addr + 8, segment.transfer.remote));
            if let Err(error) = stored {
                let failed = self.local_fault(self.streams[stream].pe, error);
                self.fail_lane(failed);
            }
        }
        self.retire(token);
        if !self.streams[stream].held.is_empty() {
            self.release_held(stream);
        }
    }

    #[cold]
    fn local_fault(&self, pe: Pe, error: PortError) -> EngineError {
        EngineError::BadMessage { pe, why: error.to_string() }
    }
}

/// No operation to be chained to.
const NIL_OP: OpId = OpId::NONE;

/// The token of messages that belong to no segment.
const CONTROL: Token = Token(u32::MAX);

/// The part of a ticket that is the segment's token.
const TOKEN_BITS: u32 = 0x00ff_ffff;

/// The ticket of a fetch: its segment, and some bits of its number, so that a late reply to an
/// earlier user of the segment is noticed.
#[inline]
fn ticket(token: Token, seq: u64) -> Ticket {
    Ticket(token.0 & TOKEN_BITS | (seq as u32) << 24)
}
