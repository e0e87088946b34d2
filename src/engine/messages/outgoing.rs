//! The lane's side of messages: atomics, signals and acknowledgements on their way out. What comes in is
//! in [`crate::engine::messages::incoming`].
//!
//! # Why messages cannot deadlock
//! Every message that comes in is taken at once, whatever else is full: carrying it out needs no
//! slot, and what it calls forth (a reply, an acknowledgement) is noted in room that was set aside:
//! a bit per peer for acknowledgements, which are cumulative, and [`FETCHES`](crate::engine::state::link::FETCHES)
//! places per peer for replies, since a peer has no more fetches under way. So a peer's messages
//! never wait for ours. Ours wait for (a) the fabric, (b) the peer's window, which its
//! acknowledgements open, and those we ask for as soon as anybody waits.

use crate::engine::error::EngineError;
use crate::engine::ids::{Pe, RailId, Token};
use crate::engine::lane::submit::refused;
use crate::engine::lane::{Lane, Left, SignalEngine};
use crate::engine::messages::notes::{Note, What};
use crate::engine::port::copies::Reach;
use crate::engine::port::{Desc, Direction, Local, Port, PortError, Posted};
use crate::engine::recovery::health::Health;
use crate::engine::request::{AtomicRequest, PutSignalRequest};
use crate::engine::request::{LocalSide, Request};
use crate::engine::state::batch::Batch;
use crate::engine::state::operation::OpId;
use crate::engine::state::paths::Hop;
use crate::engine::state::regions::Place;
use crate::engine::state::segment::{Kind, NIL, Segment, Stage};
use crate::engine::state::stream::Stream;
use crate::engine::wire::handle::HandleView;
use crate::engine::wire::message::{Body, MAX_EAGER, Message, Packet, Spot, Tag};
use crate::engine::wire::staged::{MAX_PAYLOAD, Staged};
use crate::engine::wire::window::Seq;

/// A put with at least so many bytes goes over all rails, rather than with its signal over one in
/// order.
const STRIPED: usize = 64 << 10;

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
        if request.pe == self.me {
            // Before layout 4 a put with signal comes as put, fence and atomic, and NVSHMEM leaves
            // out the fence for the PE itself.
            self.fence(request.pe)?;
        }
        self.end_burst();
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
        self.end_burst();
        let PutSignalRequest { parts, signal } = request;
        let bytes: usize = parts.iter().map(|part| part.len).sum();
        if bytes == 0 {
            return self.atomic(signal);
        }
        let staged = self.has_staged_part(request)?;
        if self.natives.is_some() && !is_staged_word(signal) {
            return self.put_signal_chained(parts, signal);
        }
        let eager = matches!(self.signals, SignalEngine::Auto | SignalEngine::Eager);
        if eager && bytes <= MAX_EAGER {
            if let [part] = parts {
                return self.put_signal_eager(part, signal);
            }
        }
        if staged {
            return self.put_signal_chained(parts, signal);
        }
        let ordered = match self.signals {
            SignalEngine::Auto => bytes < STRIPED || self.rails.len() == 1,
            SignalEngine::Ordered => true,
            SignalEngine::Counted | SignalEngine::Chained | SignalEngine::Eager => false,
        };
        let counted = matches!(self.signals, SignalEngine::Auto | SignalEngine::Counted);
        let fits = |rail: &crate::engine::state::rail::Rail<P::Short>| {
            rail.orders_messages && parts.iter().all(|part| part.len <= rail.max_segment)
        };
        if ordered && self.rails.iter().all(fits) {
            self.put_signal_ordered(parts, signal)
        } else if counted && self.counted > 0 {
            self.put_signal_counted(request)
        } else {
            self.put_signal_chained(parts, signal)
        }
    }

    /// Whether the signal or some part of the data is staged, here or there.
    fn has_staged_part(&mut self, request: &PutSignalRequest<'_>) -> Result<bool, EngineError> {
        if is_staged_word(&request.signal) {
            return Ok(true);
        }
        for part in request.parts {
            let remote = HandleView::check(part.remote_handle)
                .map_err(|fault| refused(part, "remote", fault))?;
            if self.is_staged(part, &remote)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Data and signal in one message.
    fn put_signal_eager(
        &mut self,
        part: &Request<'_>,
        signal: &AtomicRequest<'_>,
    ) -> Result<(), EngineError> {
        let mut payload = [0; MAX_EAGER];
        let payload = &mut payload[..part.len];
        let LocalSide::Memory { addr, handle } = part.local else {
            return self.put_signal_chained(&[*part], signal);
        };
        let mut reach = Reach::Direct;
        if self.devices {
            reach = self.local_reach(signal.pe, addr, part.len, handle)?;
        }
        self.load_at(Place { addr, reach }, payload)
            .map_err(|error| local_fault(signal.pe, &error))?;
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
        let bytes = parts.iter().map(|part| part.len).sum();
        let mut path = self.pinned_path(signal.pe, bytes)?;
        let number = self.health.as_deref_mut().map(Health::new_order);
        for part in parts {
            let mut sent = 0;
            let mut idle = 0;
            loop {
                path = self.path_still(signal.pe, path)?;
                self.submit_pinned(part, &path, number, &mut sent)?;
                if sent == part.len {
                    break;
                }
                self.make_room(&mut idle)?;
            }
        }
        let mut idle = 0;
        loop {
            path = self.path_still(signal.pe, path)?;
            self.stream_to(signal.pe)?.next = path;
            if self.try_ordered(signal, number)? {
                return Ok(());
            }
            self.make_room(&mut idle)?;
        }
    }

    /// Submits the signal of a put on a rail that keeps the order, with the put's number, if there is one.
    fn try_ordered(
        &mut self,
        signal: &AtomicRequest<'_>,
        number: Option<u32>,
    ) -> Result<bool, EngineError> {
        if let Some(health) = self.health.as_deref_mut() {
            health.next_signal = number;
        }
        let submitted = self.try_atomic(signal);
        if let Some(health) = self.health.as_deref_mut() {
            health.next_signal = None;
            if !matches!(submitted, Ok(false)) {
                health.ordering = None;
            }
        }
        submitted
    }

    /// The path, as it is now; another, if it has failed. What was sent over it before then leaves it as
    /// well, and messages wait for that.
    fn path_still(&mut self, pe: Pe, path: Hop) -> Result<Hop, EngineError> {
        let next = self.stream_to(pe)?.next;
        let Some(health) = self.health.as_deref() else { return Ok(path) };
        let out = health.is_out(pe, path.rail);
        Ok(if out { next } else { self.paths.get(pe, path.rail) })
    }

    /// Data on all rails; the signal is sent when its own data, and nothing else, is delivered.
    pub(in crate::engine) fn put_signal_chained(
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
        while !self.try_chained(signal, op)? {
            self.make_room(&mut idle)?;
        }
        Ok(())
    }

    /// Submits an atomic if there is room for it. Never blocks.
    #[inline]
    fn try_atomic(&mut self, request: &AtomicRequest<'_>) -> Result<bool, EngineError> {
        self.try_chained(request, NIL_OP)
    }

    /// As [`Lane::try_atomic`], chained to an operation if one is given.
    #[inline]
    fn try_chained(&mut self, request: &AtomicRequest<'_>, op: OpId) -> Result<bool, EngineError> {
        if self.natives.is_some() && !is_staged_word(request) {
            return self.try_native(request, op);
        }
        self.try_message(request, op, |at, atomic| Body::Atomic { at, atomic })
    }

    /// Submits a message about a word if there is room for it, chained to an operation if one is
    /// given. Never blocks.
    #[inline]
    pub(in crate::engine) fn try_message<'b>(
        &mut self,
        request: &AtomicRequest<'_>,
        chained_to: OpId,
        body: impl FnOnce(Spot, crate::engine::atomic::Atomic) -> Body<'b>,
    ) -> Result<bool, EngineError> {
        self.stream_to(request.pe)?;
        let atomic = request.atomic;
        let width = atomic.width.bytes();
        let (remote, offset) = request.word()?;
        let at = Spot { slot: remote.slot(), offset };

        let fetch = request.result.filter(|_| atomic.op.fetches());
        let Some(stream) = self.streams.find_mut(request.pe) else { return Ok(false) };
        let path = stream.next;
        let link = stream.link();
        let Some(place) = link.fetch_place().or_else(|| fetch.is_none().then_some(0)) else {
            return Ok(false);
        };
        let Some(token) = self.segments.take() else { return Ok(false) };
        let Some(slot) = self.messages.take(token.0) else {
            self.segments.give_unused(token);
            return Ok(false);
        };
        let segment = &mut self.segments[token.0];
        segment.transfer.local =
            Local::Memory { addr: fetch.map_or(0, |place| place.addr), desc: Desc(0) };
        let flag = fetch.and_then(|place| place.flag);
        segment.transfer.remote = flag.unwrap_or(0);
        segment.transfer.key = u64::from(flag.is_some());
        segment.transfer.direction = Direction::Write;
        segment.transfer.len = width;
        segment.pe = request.pe;
        segment.direction = Direction::Write;
        segment.born = self.watchdog.stamp();
        segment.message = slot;
        segment.kind = if fetch.is_some() { Kind::Fetch } else { Kind::Message };
        segment.rail = path.rail;
        // Numbers are given when the message leaves: one that waits must not hold up the window.
        let body = match fetch {
            None => body(at, atomic),
            Some(_) => {
                segment.data = place.into();
                Body::Fetch { at, atomic, ticket: segment.new_ticket(token), place }
            }
        };
        if let Body::CountedSignal { tag, .. } = body {
            segment.kind = Kind::CountedSignal;
            segment.data = tag.0.into();
        } else if let Some(number) = self.health.as_deref().and_then(|health| health.next_signal) {
            segment.kind = Kind::OrderedSignal;
            segment.data = number;
        }
        let message = Message { from: self.me, seq: Seq(0), ack: Seq(0), body };
        message.encode(self.messages.packet_mut(slot));
        if fetch.is_some() {
            link.turn_fetch(place);
        }
        stream.rotate(&self.paths);

        if chained_to != NIL_OP {
            segment.stage = Stage::Chained;
            if self.ops.chain(chained_to, token.0) {
                self.unchain(token);
            }
        } else {
            self.set_out(token);
        }
        self.check_stream(request.pe)?;
        Ok(true)
    }

    /// Submits a message of a put if there is room for it, counted by an operation if one is given.
    /// Never blocks.
    #[cold]
    pub(in crate::engine) fn try_plain_message(
        &mut self,
        pe: Pe,
        op: OpId,
        len: usize,
        body: Body<'_>,
    ) -> Result<bool, EngineError> {
        let stream = self.stream_to(pe)?;
        stream.link();
        let rail = stream.next.rail;
        let Some(token) = self.segments.take() else { return Ok(false) };
        let Some(slot) = self.messages.take(token.0) else {
            self.segments.give_unused(token);
            return Ok(false);
        };
        self.encode_into(slot, body);
        let segment = &mut self.segments[token.0];
        segment.pe = pe;
        segment.count_for(op.0);
        segment.direction = Direction::Write;
        segment.born = self.watchdog.stamp();
        segment.message = slot;
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

    /// Writes a message into a slot, but for its numbers, which it gets when it leaves: one that waits
    /// must not hold up the window.
    pub(in crate::engine) fn encode_into(&mut self, slot: u32, body: Body<'_>) {
        let message = Message { from: self.me, seq: Seq(0), ack: Seq(0), body };
        message.encode(self.messages.packet_mut(slot));
    }

    /// Gives a message its number and hands it to the fabric.
    pub(in crate::engine) fn send_message(&mut self, token: Token, rail: RailId) -> Left {
        let mut rail = rail;
        if self.health.is_some() {
            match self.path_for_message(token, rail) {
                Ok(path) => rail = path,
                Err(left) => return left,
            }
        }
        let segment = &mut self.segments[token.0];
        let (slot, pe) = (segment.message, segment.pe);
        let Some(stream) = self.streams.find_mut(pe) else { return Left::NoRoom };
        let closed = stream.is_closed();
        let link = stream.link();
        if !link.has_room(&self.messages) {
            return Left::NoWindow;
        }
        let (seq, ack) = (link.next, link.ack());
        let packet = self.messages.packet_mut(slot);
        packet.number(seq, ack);
        let to = self.paths.get(pe, rail).to;
        match self.port.send(rail, to, token, packet.bytes()) {
            Ok(Posted::Yes) => {
                segment.stage = Stage::Sent;
                segment.born = self.watchdog.stamp();
                link.carried(ack);
                segment.rail = rail;
                self.messages.sent(link, slot, seq, rail);
                link.take_number();
                if closed {
                    // Writes are held until this message is acknowledged.
                    link.want_ack();
                }
                self.note_control(pe);
                Left::Taken
            }
            Ok(Posted::Again) => {
                self.rails[rail.index()].counters.again += 1;
                Left::NoRoom
            }
            Err(error) => Left::Failed(error),
        }
    }

    /// The rail that a message leaves by, in place of one whose path has failed; or what becomes of it.
    fn path_for_message(&mut self, token: Token, rail: RailId) -> Result<RailId, Left> {
        let pe = self.segments[token.0].pe;
        let Some(health) = self.health.as_deref() else { return Ok(rail) };
        // Some of it may be the data that the message tells of.
        if health.find(pe).is_some_and(|peer| peer.limbo_writes != 0) {
            return Err(Left::NoWindow);
        }
        let out = health.is_out(pe, rail);
        let next = self.streams.find(pe).map_or(rail, |stream| stream.next.rail);
        let rail = if out { next } else { rail };
        self.segments[token.0].rail = rail;
        if self.rails[rail.index()].is_paused() { Err(Left::NoRoom) } else { Ok(rail) }
    }

    /// Lets a message wait until the peer's window has room again.
    #[cold]
    pub(in crate::engine) fn wait_for_window(&mut self, token: Token) {
        let pe = self.segments[token.0].pe;
        self.segments[token.0].stage = Stage::Windowed;
        if let Some(stream) = self.streams.find_mut(pe) {
            stream.link().waiting.push(&mut self.segments, token.0);
        }
        self.want_ack(pe);
    }

    /// The message of a segment that ends.
    pub(in crate::engine) fn leave_message(&mut self, token: Token) {
        let Segment { message, pe, kind, stage, data, .. } = self.segments[token.0];
        if kind == Kind::Staged {
            return self.leave_piece(token);
        }
        if kind == Kind::Native {
            if let Some(natives) = self.natives.as_deref_mut() {
                natives.give(message);
            }
            return;
        }
        if let (Kind::Fetch | Kind::CountedSignal, Some(stream)) = (kind, self.streams.find_mut(pe))
        {
            let link = stream.link();
            match (kind, link.tags.as_deref_mut()) {
                (Kind::Fetch, _) => link.turn_fetch(data as u8),
                // Acknowledged, or the stream has failed and sends nothing more.
                (_, Some(tags)) => tags.give(Tag(data as u16)),
                (_, None) => {}
            }
        }
        if message == NIL {
            return;
        }
        if stage == Stage::Sent {
            // The message itself waits for its acknowledgement.
            self.messages.forget_segment(message);
        } else {
            self.messages.give(message);
        }
    }

    /// Somebody waits for what was sent to a peer: it is asked to acknowledge, unless it was before.
    pub fn want_ack(&mut self, pe: Pe) {
        let link = self.streams.find_mut(pe).and_then(|stream| stream.link.as_deref_mut());
        if let Some(link) = link {
            link.want_ack();
            self.note_control(pe);
        }
    }

    /// Puts a peer to whom control messages are due into the control queue.
    #[inline]
    pub(in crate::engine) fn note_control(&mut self, pe: Pe) {
        let link = self.streams.find_mut(pe).and_then(|stream| stream.link.as_deref_mut());
        if let Some(link) = link {
            if link.enters_control() {
                self.control.push_back(pe);
            }
        }
    }

    /// A submitter has no room: turns the loop once.
    #[cold]
    pub(in crate::engine) fn make_room(&mut self, idle: &mut u32) -> Result<(), EngineError> {
        self.want_acks();
        // What the turn begins for others does not belong to the submitter's batch.
        let submitted = self.segments.batches.enter(Batch::NONE);
        self.wait_turn(idle);
        self.segments.batches.enter(submitted);
        self.room_or_failure()
    }

    /// Somebody waits for what only acknowledgements of any peer may bring: room, or the end of a batch.
    #[cold]
    pub fn want_acks(&mut self) {
        let Self { streams, control, .. } = self;
        for stream in streams.iter_mut() {
            let Some(link) = stream.link.as_deref_mut() else { continue };
            link.want_ack();
            if link.enters_control() {
                control.push_back(stream.pe);
            }
        }
    }

    pub(in crate::engine) fn stream_to(&mut self, pe: Pe) -> Result<&mut Stream, EngineError> {
        self.check_pe(pe)?;
        let n_pes = self.streams.n_pes();
        let stream =
            self.streams.open(pe, &self.paths).ok_or(EngineError::NoSuchPe { pe, n_pes })?;
        stream.check()?;
        Ok(stream)
    }

    /// Sends the replies and the control messages that are due, as far as there is room.
    #[cold]
    pub(in crate::engine) fn send_control(&mut self) -> bool {
        let mut moved = false;
        let Some(mut packet) = self.packet.take() else { return false };
        while let Some(note) = self.notes.pop_front() {
            if !self.send_note(&note, &mut packet) {
                self.notes.push_front(note);
                break;
            }
            moved = true;
        }
        while let Some(pe) = self.control.front().copied() {
            let Some(stream) = self.streams.find_mut(pe) else {
                self.control.pop_front();
                continue;
            };
            let link = stream.link();
            let (seq, body) = if link.request_due {
                (link.requested(), Body::AckRequest)
            } else {
                (Seq(0), Body::Ack)
            };
            let due = link.request_due || link.ack_due;
            if due && !self.send_unnumbered(pe, seq, body, &mut packet) {
                // Its path may be one that fails; what is for others need not wait for that.
                self.control.rotate_left(1);
                break;
            }
            if let Some(stream) = self.streams.find_mut(pe) {
                let link = stream.link();
                link.request_due = false;
                link.in_control = false;
            }
            self.control.pop_front();
            moved = true;
        }
        self.packet = Some(packet);
        moved
    }

    /// Sends a note. Whether it has left, or never will.
    fn send_note(&mut self, note: &Note, packet: &mut Packet) -> bool {
        let mut bytes = [0; MAX_PAYLOAD];
        let mut refused = String::new();
        let staged = match note.what {
            What::Word { ticket, value } => {
                return self.send_unnumbered(
                    note.pe,
                    Seq(0),
                    Body::Reply { ticket, value },
                    packet,
                );
            }
            What::Pulled { ticket } => Staged::Pulled { ticket },
            What::Exposed { ticket, from } => Staged::Exposed { ticket, from },
            What::Release { ticket } => Staged::Release { ticket },
            What::Refused { ticket, ref why } => Staged::Refused { ticket, why },
            What::Keys { ref view, first } => Staged::Keys(view.keys_from(first, &mut bytes)),
            What::Loaded { ticket, from, len } => {
                let payload = &mut bytes[..len];
                match self.load_at(from, payload) {
                    Ok(()) => Staged::Loaded { ticket, payload },
                    Err(error) => {
                        refused.push_str(&error.to_string());
                        Staged::Refused { ticket, why: &refused }
                    }
                }
            }
        };
        self.send_unnumbered(note.pe, Seq(0), Body::Staged(staged), packet)
    }

    /// Sends a message that is not acknowledged itself. Whether it has left, or never will.
    fn send_unnumbered(&mut self, pe: Pe, seq: Seq, body: Body<'_>, packet: &mut Packet) -> bool {
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
        let ack = stream.link().ack();
        Message { from: self.me, seq, ack, body }.encode(packet);
        match self.port.send(path.rail, path.to, CONTROL, packet.bytes()) {
            Ok(Posted::Yes) => {
                stream.link().carried(ack);
                if self.health.is_some() {
                    // The next one goes another way: this one may not work.
                    stream.rotate(&self.paths);
                }
                true
            }
            Ok(Posted::Again) => {
                if self.health.is_some() {
                    stream.rotate(&self.paths);
                }
                self.rails[path.rail.index()].counters.again += 1;
                false
            }
            // Acknowledgements and replies are asked for again.
            Err(error) if self.suspect(pe, path.rail, &error.to_string(), true) => true,
            Err(error) => {
                let failed = local_fault(pe, &error);
                self.fail_stream(pe, failed);
                true
            }
        }
    }
}

/// Whether a word is in staged memory, by its handle.
fn is_staged_word(request: &AtomicRequest<'_>) -> bool {
    HandleView::check(request.remote_handle).is_ok_and(|remote| remote.is_staged())
}

#[cold]
pub(in crate::engine) fn local_fault(pe: Pe, error: &PortError) -> EngineError {
    EngineError::BadMessage { pe, why: error.to_string() }
}

/// No operation to be chained to.
const NIL_OP: OpId = OpId::NONE;

/// The token of messages that belong to no segment.
pub(in crate::engine) const CONTROL: Token = Token(u32::MAX);
