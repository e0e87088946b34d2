//! Incoming messages and immediate data: opened, executed or held, and the messages ended that they
//! acknowledge.
//!
//! Nothing is sent from here: replies and acknowledgements have reserved capacity, and leave in
//! the iteration. Messages of the common kinds from a peer without waiting messages, with no new
//! acknowledgement, take a fast path.

use std::fmt;

use crate::channel::{Channel, PendingMessage, PendingOn};
use crate::core::{Core, StagingEvent};
use crate::error::EngineError;
use crate::ids::{Pe, RailId};
use crate::lane::Lane;
use crate::peers::Peers;
use crate::port::copies::{DeferredOrder, Reach};
use crate::port::{Incoming, Port};
use crate::wire::decode::CommonMessage;
use crate::wire::message::{Body, Head, MAX_EAGER, Message, Seq};
use crate::wire::seal::Seal;
use crate::wire::staging::{PullTarget, further_gets};

impl<P: Port> Lane<P> {
    /// Handles what a rail's poll has received. Returns whether there was anything.
    #[inline(never)]
    pub(crate) fn receive(&mut self, rail: RailId) -> bool {
        // Taken out, since handling a message borrows the whole lane.
        let Some(mut packet) = self.packet.take() else { return false };
        let mut busy = false;
        // What the poll has found was sent after the regions that it names were registered.
        self.core.regions.sync();
        loop {
            match self.core.port.receive(rail, &mut packet) {
                Incoming::Nothing => break,
                Incoming::Message => self.take_message(rail, packet.bytes()),
                Incoming::ImmediateData(data) => self.count_segment(rail, data),
                Incoming::Broken { code } => self.core.drop_foreign(rail, &Broken(code)),
            }
            busy = true;
        }
        self.packet = Some(packet);
        if !self.core.executable.is_empty() {
            self.execute_held();
        }
        if busy {
            // Everything sent from here on acknowledges what was executed.
            self.staging.flush_executed(&mut self.core);
        }
        busy
    }

    #[inline(always)]
    fn take_message(&mut self, rail: RailId, bytes: &[u8]) {
        let Some(head) = self.core.seal.open(bytes) else {
            let short = crate::wire::message::WireError::Head(bytes.len());
            return self.core.drop_foreign(rail, &short);
        };
        if !self.try_execute(head, bytes) && !self.try_defer(head, bytes) {
            self.take_any(rail, head, bytes);
        }
    }

    /// Executes a message on the fast path; returns false, with no side effect, if that fails.
    #[inline(always)]
    fn try_execute(&mut self, head: Head, bytes: &[u8]) -> bool {
        let core = &mut self.core;
        let pe = head.from;
        let Core { peers, seal, .. } = core;
        let Some((channel, seq, common)) = open_common(peers, seal, head, bytes) else {
            return false;
        };
        let CommonMessage { mark, addr: word, atomic, to, payload } = common;
        if mark != 0 && self.staging.has_unflushed() {
            return false;
        }
        let width = atomic.width.bytes();
        let Some(word) = core.regions.target(word, width) else { return false };
        if word % width != 0 {
            return false;
        }
        if !payload.is_empty() {
            let Some(data) = core.regions.target(to, payload.len()) else { return false };
            // The general path stores again, and reports the error.
            if core.port.store(data, payload).is_err() {
                return false;
            }
        }
        // An atomic that was tried is not repeated: it may have taken effect.
        if let Err(error) = core.port.apply(word, &atomic) {
            core.refuse(pe, seq, error.to_string());
            return true;
        }
        channel.executed.insert(seq);
        if channel.is_ack_due() {
            core.enter_control(pe);
        }
        true
    }

    /// As [`Self::try_execute`], for a message without payload whose word the CPU does not reach.
    #[inline(never)]
    fn try_defer(&mut self, head: Head, bytes: &[u8]) -> bool {
        let core = &mut self.core;
        if !core.regions.has_devices() {
            return false;
        }
        let pe = head.from;
        let Some((_, seq, common)) = open_common(&mut core.peers, &core.seal, head, bytes) else {
            return false;
        };
        let CommonMessage { mark, addr, atomic, payload, .. } = common;
        let Ok(word) = core.locate_word(addr, &atomic) else { return false };
        if word.reach == Reach::Direct || !payload.is_empty() {
            return false;
        }
        let deferred = self.staging.apply(core, word, &atomic, order_of(mark));
        self.staging.track_unflushed(pe, seq);
        match deferred {
            Ok(()) => core.message_executed(pe, seq),
            Err(error) => core.refuse(pe, seq, error.to_string()),
        }
        true
    }

    #[inline(never)]
    fn take_any(&mut self, rail: RailId, head: Head, bytes: &[u8]) {
        let pe = head.from;
        if !self.has_pe(pe) {
            return self.core.drop_foreign(rail, &"its sender is no PE of the job");
        }
        // A peer's channel is opened only once its message is known to be sealed with the job's
        // key: a stranger must not make memory grow.
        let channel = self.core.peers.of(pe).and_then(|peer| peer.channel.as_deref());
        let first = |of: fn(&Channel) -> Seq| channel.map_or(Seq::FIRST, of);
        let seq = first(|channel| channel.executed.next()).near(head.seq);
        let next = first(|channel| channel.next);
        let acked = first(|channel| channel.acked);
        let is_beyond = channel
            .map_or(seq.0 >= Seq::FIRST.0 + crate::wire::message::WINDOW, |channel| {
                channel.executed.is_beyond(seq)
            });
        let Core { peers, seal, me, .. } = &mut self.core;
        let channel = peers.of_mut(pe).and_then(|peer| peer.channel.as_deref_mut());
        let mask = match channel {
            Some(channel) => channel.in_mask(seal, pe, seq),
            None => seal.mask(pe, *me, seq.high()),
        };
        let word = head.word ^ mask;
        let message = match Message::decode(head, word, bytes) {
            Ok(message) => message,
            Err(error) => return self.core.drop_foreign(rail, &error),
        };
        let ack = next.near(head.ack);
        if ack > next {
            return self.core.drop_foreign(rail, &"it acknowledges a message that was not sent");
        }
        if message.body.is_numbered() && is_beyond {
            return self.core.drop_foreign(rail, &"its number is out of the window");
        }
        // The mask of another round of numbers garbles the region: a replayed message is dropped
        // here.
        if message.body.region().is_some_and(|id| !self.core.regions.was_registered(id)) {
            return self.core.drop_foreign(rail, &"it names a region that never was");
        }
        if message.body.get().is_some_and(|get| !self.staging.was_issued(get)) {
            return self.core.drop_foreign(rail, &"it names a get that never was");
        }
        let Ok(()) = self.core.open(pe) else { return };
        self.core.channel(pe);
        // A bitmap is relative to its own number; that of a late acknowledgement says nothing new.
        let map = match message.body {
            Body::Ack(map) if ack >= acked => map,
            _ => None,
        };
        self.core.acknowledge(pe, ack, map);
        match message.body {
            Body::Ack(_) => {}
            Body::AckRequest => {
                self.core.channel(pe).handle_ack_request(seq);
                self.core.enter_control(pe);
            }
            Body::Reply { reply_slot, low, value } => self.store_result(pe, reply_slot, low, value),
            Body::Refusal { low, why } => {
                let why = why.to_owned();
                let asked = self.staging.get_requested_by(pe, low);
                let (what, len) = asked.or(self.core.sent_as(pe, low)).unwrap_or(("message", 0));
                self.core.fail_peer(pe, EngineError::PeerRefused { what, pe, len, why });
                // A peer that refuses has ended its reads of this process.
                let before = Seq(u64::MAX);
                self.core.staging_events.push_back(StagingEvent::Acknowledged { pe, before });
            }
            _ => self.take_numbered(pe, seq, &message, (head, word, bytes)),
        }
    }

    /// Executes a numbered message, or holds it until the messages before its mark are executed.
    fn take_numbered(&mut self, pe: Pe, seq: Seq, message: &Message<'_>, raw: (Head, u32, &[u8])) {
        let channel = self.core.channel(pe);
        if channel.has_refused {
            return;
        }
        if channel.executed.has(seq) || channel.is_waiting(seq) {
            // A duplicate of the fabric's or a stranger's, as senders repeat nothing. It is
            // acknowledged again, and a cached reply is sent again.
            channel.ack_due = true;
            if let Body::Fetch { reply_slot, .. } = message.body {
                let is_cached = channel.replies[usize::from(reply_slot)].0 == seq;
                channel.replies_due |= u16::from(is_cached) << reply_slot;
            }
            return self.core.enter_control(pe);
        }
        let takes_buffer = match &message.body {
            Body::GetRequest { .. } => true,
            Body::Pull(pull) => !matches!(pull.target, PullTarget::Get(_)),
            _ => false,
        };
        if let (true, Err(failed)) = (takes_buffer, self.core.peers.get(pe).check()) {
            // Nothing is read from a failed peer, so the buffer would never be free again.
            return self.core.decline(pe, seq, failed.to_string());
        }
        let channel = self.core.channel(pe);
        // The mark counts back from the message to the last one that it follows.
        let after = seq.0.saturating_sub(message.mark.into());
        let after = if message.mark == 0 { Seq::NONE } else { Seq(after) };
        if let Body::Pull(pull) = &message.body {
            // Staging holds it from now on; it counts as executed when its bytes are stored.
            if let Err(why) = self.staging.accept_pull(&mut self.core, pe, (seq, after), pull) {
                self.core.refuse(pe, seq, why);
            }
            return;
        }
        if channel.executed.next() <= after {
            let (head, word, bytes) = raw;
            let on = PendingOn::Earlier { after, head, word, bytes: bytes.into() };
            return channel.wait(PendingMessage { seq, on });
        }
        self.execute(pe, seq, message, raw);
    }

    /// Executes a message whose mark is reached; a counted signal still waits for its data.
    fn execute(&mut self, pe: Pe, seq: Seq, message: &Message<'_>, raw: (Head, u32, &[u8])) {
        if let Body::CountedSignal { tag, segments, .. } = message.body {
            let now = self.core.watchdog.time();
            let channel = self.core.channel(pe);
            let counts = channel.counts.get_or_insert_default();
            match counts.announce((tag, segments), seq, now) {
                Ok(true) => {}
                Ok(false) => {
                    let (head, word, bytes) = raw;
                    let on = PendingOn::Data { head, word, bytes: bytes.into() };
                    return channel.wait(PendingMessage { seq, on });
                }
                Err(why) => return self.core.refuse(pe, seq, why),
            }
        }
        self.end_message(pe, seq, message);
    }

    fn end_message(&mut self, pe: Pe, seq: Seq, message: &Message<'_>) {
        let applied = self.apply(pe, seq, message);
        // A deferred write of a refused message must not be attributed to the next one either.
        self.staging.track_unflushed(pe, seq);
        match applied {
            Ok(()) => self.core.message_executed(pe, seq),
            Err(why) => self.core.refuse(pe, seq, why),
        }
    }

    /// Executes held messages whose marks have been reached.
    #[cold]
    pub(crate) fn execute_held(&mut self) {
        while let Some(pe) = self.core.executable.pop() {
            while let Some(waiting) = self.core.channel(pe).take_executable() {
                let PendingOn::Earlier { head, word, bytes, .. } = waiting.on else { continue };
                // It was decoded when it arrived, so this cannot fail.
                let Ok(message) = Message::decode(head, word, &bytes) else { continue };
                self.execute(pe, waiting.seq, &message, (head, word, &bytes));
            }
            self.core.staging_events.push_back(StagingEvent::Advanced { pe });
        }
    }

    fn apply(&mut self, pe: Pe, seq: Seq, message: &Message<'_>) -> Result<(), String> {
        let order = order_of(message.mark);
        let (word_addr, atomic) = match message.body {
            Body::Word { addr, atomic }
            | Body::CountedSignal { addr, atomic, .. }
            | Body::Fetch { addr, atomic, .. }
            | Body::PutSignal { addr, atomic, .. } => (addr, atomic),
            Body::InlinePut { to, payload } => {
                let data =
                    self.core.regions.locate(to, payload.len()).map_err(|e| e.to_string())?;
                let stored = self.staging.store(&mut self.core, data, payload, order);
                return stored.map_err(|error| error.to_string());
            }
            Body::GetRequest { from, len, get, more } => {
                let asked = std::iter::once((from, len as usize)).chain(further_gets(from, more));
                return self.staging.queue_reply(&mut self.core, pe, seq, asked, get);
            }
            Body::GetReply { get, payload } => {
                return self.staging.finish_inline_get(&mut self.core, pe, get, payload);
            }
            _ => return Ok(()),
        };
        let word = self.core.locate_word(word_addr, &atomic)?;
        if let Body::PutSignal { to, payload, .. } = message.body {
            let data = self.core.regions.locate(to, payload.len()).map_err(|e| e.to_string())?;
            // A sender sees in the handle that processors do not reach the memory.
            if payload.len() > MAX_EAGER && data.reach != Reach::Direct {
                let len = payload.len();
                return Err(format!(
                    "{len} bytes in one message, for memory that the processor does not reach"
                ));
            }
            let stored = self.staging.store(&mut self.core, data, payload, order);
            stored.map_err(|error| error.to_string())?;
            // The signal follows its data.
            let applied = self.staging.apply(&mut self.core, word, &atomic, DeferredOrder::After);
            return applied.map_err(|error| error.to_string());
        }
        let Body::Fetch { reply_slot, .. } = message.body else {
            let applied = self.staging.apply(&mut self.core, word, &atomic, order);
            return applied.map_err(|error| error.to_string());
        };
        let before = self.staging.fetch(&mut self.core, word, &atomic, order);
        let before = before.map_err(|error| error.to_string())?;
        let channel = self.core.channel(pe);
        // Cached until the reply slot is used again: a repeated fetch gets the same reply.
        channel.replies[usize::from(reply_slot)] = (seq, before);
        channel.replies_due |= 1 << reply_slot;
        self.core.enter_control(pe);
        Ok(())
    }

    #[inline(never)]
    fn count_segment(&mut self, rail: RailId, data: u64) {
        // Anyone who reaches the rail may send immediate data: it has to match what is expected.
        let (pe, counter) = self.core.immediate.claimed_sender(data);
        let counts =
            self.core.peers.of(pe).and_then(|peer| peer.channel.as_deref()?.counts.as_deref());
        let tag = counts.map_or_else(
            || crate::channel::counts::SegmentCounts::default().expected(counter),
            |counts| counts.expected(counter),
        );
        let is_known = self.core.immediate.matches(data, pe, tag);
        if !is_known || self.core.open(pe).is_err() {
            return self.core.drop_foreign(rail, &"immediate data that nothing is expected with");
        }
        let now = self.core.watchdog.time();
        let channel = self.core.channel(pe);
        let counts = channel.counts.get_or_insert_default();
        let Some(seq) = counts.land(tag, now) else { return };
        let Some(PendingMessage { seq, on: PendingOn::Data { head, word, bytes } }) =
            channel.take_waiting(seq)
        else {
            return;
        };
        let Ok(message) = Message::decode(head, word, &bytes) else { return };
        self.end_message(pe, seq, &message);
    }

    fn store_result(&mut self, pe: Pe, reply_slot: u32, low: u32, value: u64) {
        let Some((result, width)) = self.core.end_fetch(pe, reply_slot, low) else { return };
        let len = if result.flag.is_some() { 8 } else { width };
        let bytes = value.to_le_bytes();
        let (addr, flag) = (result.addr, result.flag);
        // The word first, then the flag that announces it.
        let stored = self.staging.store_result(&mut self.core, pe, addr, &bytes[..len], flag);
        // The fetch has ended without its word, so waits for the peer have to report an error.
        if let Err(failed) = stored {
            self.core.fail_peer(pe, failed);
        }
    }
}

/// Opens a message of a common kind whose mark is reached, from a peer without waiting messages;
/// None if the general path has to.
#[inline(always)]
fn open_common<'c, 'b>(
    peers: &'c mut Peers,
    seal: &Seal,
    head: Head,
    bytes: &'b [u8],
) -> Option<(&'c mut Channel, Seq, CommonMessage<'b>)> {
    let pe = head.from;
    let channel = peers.of_mut(pe)?.channel.as_deref_mut()?;
    let is_idle = channel.waiting.is_empty() && !channel.has_refused;
    // A new acknowledgement ends messages, which the general path does.
    if !is_idle || head.ack != channel.acked.low() {
        return None;
    }
    let mut seq = channel.executed.next();
    // Most messages are the next one.
    if head.seq != seq.low() {
        seq = seq.near(head.seq);
        if channel.executed.is_beyond(seq) || channel.executed.has(seq) {
            return None;
        }
    }
    let word = head.word ^ channel.in_mask(seal, pe, seq);
    let common = CommonMessage::decode(head, word, bytes)?;
    // What it follows may not be executed yet.
    let is_reached = || channel.executed.next().0 > seq.0.saturating_sub(common.mark.into());
    (common.mark == 0 || is_reached()).then_some((channel, seq, common))
}

/// With a mark, deferred writes of earlier messages come first.
fn order_of(mark: u16) -> DeferredOrder {
    if mark == 0 { DeferredOrder::Any } else { DeferredOrder::After }
}

/// A message that could not be received, with the fabric's error.
struct Broken(i32);

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a message that could not be received (error {})", self.0)
    }
}
