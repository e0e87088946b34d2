//! Messages that come in: what peers ask for is carried out, and what they acknowledge is ended.
//!
//! Nothing is sent from here. What a message calls forth is noted, in room that was set aside for it;
//! [`crate::engine::messages::outgoing`] says why that cannot deadlock.

use crate::engine::error::EngineError;
use crate::engine::ids::{Pe, RailId, Token};
use crate::engine::lane::Lane;
use crate::engine::messages::notes::{NO_TICKET, What};
use crate::engine::port::copies::Reach;
use crate::engine::port::{Incoming, Local, Port, PortError, Transfer};
use crate::engine::request::ResultPlace;
use crate::engine::state::counts::CountedSignal;
use crate::engine::state::segment::{Kind, NIL, named_by};
use crate::engine::wire::message::{Body, Message, Plain, Ticket};
use crate::engine::wire::window::{Arrival, Seq};

impl<P: Port> Lane<P> {
    /// Takes what a rail's poll has found beside completions.
    #[inline(never)]
    pub(in crate::engine) fn receive(&mut self, rail: RailId) -> bool {
        let Some(packet) = self.packet.as_deref_mut() else { return false };
        match self.port.receive(rail, packet) {
            Incoming::Nothing => false,
            first => {
                self.receive_all(rail, first);
                true
            }
        }
    }

    /// Takes the first thing found, and all that is behind it.
    #[inline(never)]
    fn receive_all(&mut self, rail: RailId, first: Incoming) {
        let Some(mut packet) = self.packet.take() else { return };
        // What has arrived was sent after the regions it names were registered.
        self.sync_regions();
        let mut next = first;
        loop {
            match next {
                Incoming::Nothing => break,
                Incoming::Message => self.message(rail, packet.bytes()),
                Incoming::RemoteData(data) => self.landed(data),
            }
            next = self.port.receive(rail, &mut packet);
        }
        self.packet = Some(packet);
    }

    #[inline(always)]
    fn message(&mut self, rail: RailId, bytes: &[u8]) {
        if let Some(plain) = Plain::decode(bytes) {
            if self.handle_at_once(&plain) {
                return;
            }
        }
        self.message_at_length(rail, bytes);
    }

    #[inline(never)]
    pub(in crate::engine) fn message_at_length(&mut self, rail: RailId, bytes: &[u8]) {
        match Message::decode(bytes) {
            Ok(message) => self.handle(&message),
            Err(error) => {
                let rail_name = self.port.rail_name(rail).to_owned();
                let text = error.to_string();
                let error = PortError { call: "reading a message", code: 0, text };
                self.fail_lane(EngineError::Rail { rail, rail_name, error });
            }
        }
    }

    /// As [`Lane::handle`], in few instructions and for what is most common: a request of a known peer
    /// that returns nothing. False, and nothing has happened, for all else and what is wrong.
    #[inline(always)]
    fn handle_at_once(&mut self, message: &Plain<'_>) -> bool {
        let Plain { from: pe, at, atomic, to, payload, .. } = *message;
        let Some(stream) = self.streams.find_mut(pe) else { return false };
        let Some(link) = stream.link.as_deref_mut() else { return false };
        let width = atomic.width.bytes();
        let Some(word) = self.regions.place(at, width) else { return false };
        let mut data = 0;
        if !payload.is_empty() {
            let Some(place) = self.regions.place(to, payload.len()) else { return false };
            data = place;
        }
        // Acknowledgements are for the long way, which takes the request with them, and where the fabric
        // does atomics it refuses it.
        if word % width != 0 || message.ack != link.heard || self.natives.is_some() {
            return false;
        }
        match link.received.arrive(message.seq) {
            Arrival::Beyond => return false,
            // The sender does not know that it is here.
            Arrival::Duplicate => link.ack_due = true,
            Arrival::New => {
                let stored = match payload {
                    [] => Ok(()),
                    _ => self.port.store(data, payload),
                };
                if let Err(error) = stored.and_then(|()| self.port.apply(word, &atomic).map(drop)) {
                    self.cannot_carry_out(pe, message.seq, error.to_string());
                    return true;
                }
            }
        }
        link.check_wanted();
        if link.enters_control() {
            self.control.push_back(pe);
        }
        true
    }

    /// Carries out a message. Nothing is sent from here: what it calls forth is noted.
    #[inline(never)]
    fn handle(&mut self, message: &Message<'_>) {
        let pe = message.from;
        if self.streams.open(pe, &self.paths).is_none() {
            let why = format!("it is no PE of this job of {}", self.streams.n_pes());
            return self.fail_lane(EngineError::BadMessage { pe, why });
        }
        self.acknowledged(pe, message.ack);
        let Some(stream) = self.streams.find_mut(pe) else { return };
        let link = stream.link();
        match message.body {
            Body::Ack => return,
            Body::Reply { ticket, value } => return self.replied(pe, ticket, value),
            Body::AckRequest => {
                link.asked(message.seq);
                if self.health.is_some() {
                    self.take_turns(pe);
                }
            }
            Body::Rails(rails) => return self.heard_of_rails(pe, rails),
            Body::Staged(ref staged) if !staged.is_request() => {
                if let Err(why) = self.told(pe, staged) {
                    self.fail_lane(EngineError::BadMessage { pe, why });
                }
                return;
            }
            Body::Staged(_)
            | Body::Atomic { .. }
            | Body::Fetch { .. }
            | Body::PutSignal { .. }
            | Body::CountedSignal { .. } => {
                let arrival = link.received.arrive(message.seq);
                let counts = self.natives.is_none();
                if let (Arrival::New, true, &Body::CountedSignal { at, atomic, tag, segments }) =
                    (arrival, counts, &message.body)
                {
                    // It has arrived, so it is not taken again; acknowledged it is when applied.
                    let signal = CountedSignal { seq: message.seq, at, atomic };
                    return self.announced(pe, tag, segments, &signal);
                }
                link.check_wanted();
                match arrival {
                    Arrival::New => {
                        if let Err(why) = self.carry_out(pe, &message.body) {
                            self.cannot_carry_out(pe, message.seq, why);
                        }
                    }
                    Arrival::Duplicate => self.arrived_again(pe, &message.body),
                    Arrival::Beyond => {
                        let why = format!("its number {} is out of the window", message.seq.0);
                        self.fail_lane(EngineError::BadMessage { pe, why });
                    }
                }
            }
        }
        self.note_control(pe);
    }

    /// A request is not carried out: it is not acknowledged, and the sender is told.
    #[cold]
    pub(in crate::engine) fn cannot_carry_out(&mut self, pe: Pe, seq: Seq, why: String) {
        if let Some(stream) = self.streams.find_mut(pe) {
            stream.link().refuse(seq);
        }
        self.note(pe, What::Refused { ticket: NO_TICKET, why: (*why).into() });
        self.fail_lane(EngineError::BadMessage { pe, why });
    }

    /// Applies a request to this process' memory.
    pub(in crate::engine) fn carry_out(&mut self, pe: Pe, body: &Body<'_>) -> Result<(), String> {
        let (at, atomic) = match *body {
            Body::Staged(ref staged) => return self.asked_for(pe, staged),
            Body::PutSignal { at, atomic, .. }
            | Body::Atomic { at, atomic }
            | Body::Fetch { at, atomic, .. }
            | Body::CountedSignal { at, atomic, .. } => (at, atomic),
            Body::Ack | Body::AckRequest | Body::Reply { .. } | Body::Rails(_) => return Ok(()),
        };
        let width = atomic.width.bytes();
        let place = self.regions.locate(at, width).map_err(|e| e.to_string())?;
        if self.natives.is_some() && place.reach != Reach::Staged {
            // Applied here, it would not be atomic with those that the fabric carries out.
            return Err(String::from(
                "an atomic as a message, and in this job the fabric does them",
            ));
        }
        if place.addr % width != 0 {
            return Err(format!("a word of {width} bytes at {:#x} is not aligned", place.addr));
        }
        if let Body::PutSignal { to, payload, .. } = *body {
            let data = self.regions.locate(to, payload.len()).map_err(|e| e.to_string())?;
            self.store_at(data, payload).map_err(|e| e.to_string())?;
        }
        let value = self.apply_at(place, &atomic).map_err(|e| e.to_string())?;
        if let Body::Fetch { ticket, place, .. } = *body {
            if let Some(stream) = self.streams.find_mut(pe) {
                let replies = stream.link().replies.get_or_insert_default();
                if let Some(reply) = replies.get_mut(usize::from(place)) {
                    *reply = Some((ticket, value));
                }
            }
            self.note(pe, What::Word { ticket, value });
        }
        Ok(())
    }

    /// A request has arrived again: its sender does not know that it was carried out.
    #[cold]
    fn arrived_again(&mut self, pe: Pe, body: &Body<'_>) {
        let Some(stream) = self.streams.find_mut(pe) else { return };
        let link = stream.link();
        link.ack_due = true;
        if let Body::Fetch { ticket, place, .. } = *body {
            let replies = link.replies.as_deref();
            let reply = replies.and_then(|replies| *replies.get(usize::from(place))?);
            if let Some((_, value)) = reply.filter(|(of, _)| *of == ticket) {
                self.note(pe, What::Word { ticket, value });
            }
        }
    }

    /// Ends what an acknowledgement covers.
    fn acknowledged(&mut self, pe: Pe, ack: Seq) {
        let Some(stream) = self.streams.find_mut(pe) else { return };
        if stream.link().next.is_before(ack) {
            let why = format!("it acknowledges {}, which was not sent", ack.0);
            return self.fail_lane(EngineError::BadMessage { pe, why });
        }
        let heard = &mut stream.link().heard;
        if heard.is_before(ack) {
            *heard = ack;
        }
        while let Some(stream) = self.streams.find_mut(pe) {
            // Most are plain: they end here, and the stream is told of all of them at once.
            let mut plain = 0;
            let mut other = None;
            while let Some((slot, segment)) = self.messages.pop_acked(stream.link(), ack) {
                self.messages.give(slot);
                if self.segments.finish_message(segment) {
                    plain += 1;
                } else if segment != NIL {
                    other = Some(segment);
                    break;
                }
            }
            let opens = stream.end_messages(plain);
            if opens {
                self.open_stream(pe);
            }
            let Some(segment) = other else { break };
            self.segments[segment].message = NIL;
            if !self.segments[segment].kind.awaits_answer() {
                self.drop_segment(Token(segment));
            }
        }
        self.open_window(pe);
    }

    /// Moves to the rails' queues what waits for a peer's window, as far as it is open.
    pub(in crate::engine) fn open_window(&mut self, pe: Pe) {
        let Some(stream) = self.streams.find_mut(pe) else { return };
        let link = stream.link();
        for _ in 0..link.room(&self.messages).min(link.waiting.len()) {
            let Some(stream) = self.streams.find_mut(pe) else { return };
            let Some(index) = stream.link().waiting.pop(&self.segments) else { return };
            let rail = self.segments[index].rail;
            self.queue(Token(index), rail);
        }
    }

    /// Stores a fetched word, then its flag.
    fn replied(&mut self, pe: Pe, answered: Ticket, value: u64) {
        let token = named_by(answered);
        let Some(segment) = self.segments.away(token) else { return };
        // A second reply to the same request finds another segment there, or none.
        if segment.kind != Kind::Fetch || segment.pe != pe || segment.ticket(token) != answered {
            return;
        }
        let Transfer { local, remote, key, len: width, .. } = segment.transfer;
        if let Local::Memory { addr, .. } = local {
            let flag = (key != 0).then_some(remote);
            self.store_result(pe, ResultPlace { addr, flag }, value, width);
        }
        self.drop_segment(token);
    }
}
