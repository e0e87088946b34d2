//! Incoming messages: taken, executed or given to the mechanism that they are for, and what they
//! acknowledge ended.
//!
//! # The way of a put with signal
//! `lane/progress` polls a rail. The port (ofi `data_path/port/operations`, `data_path/messages`)
//! finds a message among the completions and keeps it until [`Lane::receive`] copies it out. Here
//! its seal is opened (`wire/seal`), its head decoded into a [`PlainMessage`] (`wire/message`), and
//! data and signal are stored (ofi `data_path/host_memory`). A message that acknowledges something
//! new, waits for others or is no plain one is decoded into a [`Message`], and takes the longer way
//! by [`Lane::execute`].
//!
//! Nothing is sent from here. What a message calls forth is queued, in room that was set aside for
//! it; [`crate::posting::peers::requests`] says why that cannot deadlock.

use std::fmt::{self, Display, Formatter};

use crate::error::EngineError;
use crate::ids::{Pe, RailId, WrId};
use crate::lane::Lane;
use crate::port::copies::{Reach, SoonOrder};
use crate::port::{Incoming, Port};
use crate::state::counts::CountedSignal;
use crate::state::messages::order::{Kept, WaitingRequest};
use crate::state::messages::unnumbered::Owed;
use crate::state::segment::Stage;
use crate::state::segment::work::Work;
use crate::wire::message::{Body, MAX_EAGER, Message, PlainMessage, RequestId};
use crate::wire::rails::Rails;
use crate::wire::staged::Staged;
use crate::wire::window::{Arrival, Seq};

impl<P: Port> Lane<P> {
    #[inline(never)]
    pub(crate) fn receive(&mut self, rail: RailId) -> bool {
        let Some(packet) = self.packet.as_deref_mut() else { return false };
        match self.core.transmit.port_mut().receive(rail, packet) {
            Incoming::Nothing => false,
            first => {
                self.receive_all(rail, first);
                true
            }
        }
    }

    #[inline(never)]
    fn receive_all(&mut self, rail: RailId, first: Incoming) {
        let Some(mut packet) = self.packet.take() else { return };
        // What has arrived was sent after the regions it names were registered.
        self.staging.sync_regions(&mut self.core);
        let mut next = first;
        loop {
            match next {
                Incoming::Nothing => break,
                Incoming::Message => {
                    let len = packet.len();
                    self.core.peers.unseal(&mut packet, len);
                    self.message(rail, packet.first(len));
                }
                rare => self.receive_rare(rail, rare),
            }
            next = self.core.transmit.port_mut().receive(rail, &mut packet);
        }
        self.packet = Some(packet);
        self.execute_due();
        // All words of a poll go to a device together.
        self.staging.settle(&mut self.core);
    }

    #[inline(never)]
    fn receive_rare(&mut self, rail: RailId, incoming: Incoming) {
        match incoming {
            Incoming::Nothing | Incoming::Message => {}
            Incoming::ImmediateData(data) => match self.signals.landed(&mut self.core, data) {
                Ok(None) => {}
                Ok(Some((pe, signal))) => self.apply_counted(pe, &signal),
                Err(foreign) => self.core.transmit.drop_foreign(rail, &foreign),
            },
            Incoming::Broken { code } => self.core.transmit.drop_foreign(rail, &Broken(code)),
        }
    }

    #[inline(always)]
    fn message(&mut self, rail: RailId, bytes: &[u8]) {
        if let Some(plain) = PlainMessage::decode(bytes) {
            if self.try_handle(&plain) {
                return;
            }
        }
        self.message_at_length(rail, bytes);
    }

    #[inline(never)]
    pub(crate) fn message_at_length(&mut self, rail: RailId, bytes: &[u8]) {
        let message = match Message::decode(bytes) {
            Ok(message) => message,
            Err(error) => return self.core.transmit.drop_foreign(rail, &error),
        };
        match self.core.peers.foreign(&message, self.core.failures.recovers()) {
            None => self.handle(&message),
            Some(what) => self.core.transmit.drop_foreign(rail, &what),
        }
    }

    /// As [`Lane::handle`], in few instructions and for what is most common: a request of a known
    /// peer that returns nothing. False, and nothing has happened, for all else and what is wrong.
    #[inline(always)]
    fn try_handle(&mut self, message: &PlainMessage<'_>) -> bool {
        let PlainMessage { from: pe, at, atomic, to, payload, .. } = *message;
        let Some(connection) = self.core.peers.find_mut(pe) else { return false };
        let Some(channel) = connection.channel.as_deref_mut() else { return false };
        // Acknowledgements are for the general way, which takes the request with them. Others may
        // wait for this one.
        if channel.holds || message.ack != channel.ack_received {
            return false;
        }
        let width = atomic.width.bytes();
        let Some(word) = self.core.transmit.regions().place(at, width) else { return false };
        if word % width != 0 {
            return false;
        }
        let mut data = 0;
        if !payload.is_empty() {
            let Some(place) = self.core.transmit.regions().place(to, payload.len()) else {
                return false;
            };
            data = place;
        }
        let mut may_be_due = false;
        match channel.received.arrive(message.seq) {
            Arrival::Beyond => return false,
            // The sender does not know that it is here.
            Arrival::Duplicate => (channel.ack_due, may_be_due) = (true, true),
            Arrival::New => {
                let stored = match payload {
                    [] => Ok(()),
                    _ => self.core.transmit.port_mut().store(data, payload),
                };
                if let Err(error) = stored
                    .and_then(|()| self.core.transmit.port_mut().apply(word, &atomic).map(drop))
                {
                    self.core.cannot_execute(pe, message.seq, error.to_string());
                    return true;
                }
            }
        }
        may_be_due |= channel.check_wanted();
        if may_be_due && channel.enters_control() {
            self.core.peers.owe_control(pe);
        }
        true
    }

    #[inline(never)]
    fn handle(&mut self, message: &Message<'_>) {
        let pe = message.from;
        if let Body::Rails(rails) = message.body {
            return self.handle_rails(pe, (message.seq, message.ack), rails);
        }
        if self.core.open_connection(pe).is_none() {
            return;
        }
        self.core.acknowledged(pe, message.ack);
        let Some(connection) = self.core.peers.find_mut(pe) else { return };
        let channel = connection.channel();
        match message.body {
            Body::Ack => return channel.has_arrived_there(message.seq),
            Body::Reply { request_id, value } => return self.replied(pe, request_id, value),
            Body::AckRequest => {
                channel.asked(message.seq, self.core.failures.recovers());
                if self.core.failures.recovers() {
                    self.core.take_turns(pe);
                }
            }
            // Handled already.
            Body::Rails(_) => return,
            Body::Staged(ref staged) if !staged.is_request() => {
                if self.core.failures.recovers() && !self.core.peers.arrives(pe, message.seq) {
                    return;
                }
                if let Err(why) = self.staging.take_answer(&mut self.core, pe, staged) {
                    self.core.fail_connection(pe, EngineError::BadMessage { pe, why });
                }
                return;
            }
            // A request, which has a number.
            Body::Staged(_)
            | Body::Atomic { .. }
            | Body::Fetch { .. }
            | Body::PutSignal { .. }
            | Body::PutSignalHead { .. }
            | Body::CountedSignal { .. } => {
                let arrival = channel.received.arrive(message.seq);
                let is_counted = matches!(message.body, Body::CountedSignal { .. });
                if is_counted && arrival == Arrival::New && message.comes_behind().is_none() {
                    // It has arrived, so it is not taken again; acknowledged it is when applied.
                    return self.execute_now(pe, message.seq, &message.body, None);
                }
                match arrival {
                    Arrival::New => self.take_request(pe, message),
                    Arrival::Duplicate => self.core.arrived_again(pe, &message.body),
                    // Looked at before.
                    Arrival::Beyond => {}
                }
                // What waits is not acknowledged.
                if let Some(connection) = self.core.peers.find_mut(pe) {
                    connection.channel().check_wanted();
                }
            }
        }
        self.core.peers.queue_control(pe);
    }

    /// Executes a request that was not here before, unless it waits for others.
    fn take_request(&mut self, pe: Pe, message: &Message<'_>) {
        let Message { seq, body, .. } = *message;
        let Some(mark) = message.comes_behind() else {
            self.execute_now(pe, seq, &body, None);
            if self.core.peers.find_mut(pe).is_some_and(|connection| connection.channel().holds) {
                // Others may have waited for it.
                self.core.peers.note_due(pe);
            }
            return;
        };
        self.settle_before(&body);
        let is_pull = matches!(body, Body::Staged(Staged::Pull { .. }));
        let Some(connection) = self.core.peers.find_mut(pe) else { return };
        let channel = connection.channel();
        let due = if is_pull { channel.has_arrived(mark) } else { channel.is_executed(mark) };
        if due && !channel.holds {
            return self.execute_now(pe, seq, &body, Some(mark));
        }
        let kept = Kept::of(message);
        channel.wait(WaitingRequest { seq, mark, kept }, is_pull);
        self.core.peers.note_due(pe);
    }

    fn execute_now(&mut self, pe: Pe, seq: Seq, body: &Body<'_>, mark: Option<Seq>) {
        if let Body::CountedSignal { at, atomic, tag, segments } = *body {
            let signal = CountedSignal { seq, at, atomic };
            if self.signals.announced(&mut self.core, pe, (tag, segments), &signal) {
                self.apply_counted(pe, &signal);
            }
            return;
        }
        match self.execute(pe, body, mark) {
            Ok(()) => self.staging.executed(pe, seq),
            Err(why) => self.core.cannot_execute(pe, seq, why),
        }
    }

    fn settle_before(&mut self, body: &Body<'_>) {
        let (at, to) = match *body {
            Body::Atomic { at, .. } | Body::Fetch { at, .. } => (Some(at), None),
            Body::PutSignal { at, to, .. } => (Some(at), Some(to)),
            Body::Staged(Staged::Put { to, .. }) => (None, Some(to)),
            _ => (None, None),
        };
        let regions = self.core.transmit.regions_mut();
        let mut is_direct =
            |spot| regions.locate(spot, 1).is_ok_and(|place| place.reach == Reach::Direct);
        if at.is_some_and(&mut is_direct) || to.is_some_and(&mut is_direct) {
            self.staging.settle(&mut self.core);
        }
    }

    #[inline]
    pub(crate) fn execute_due(&mut self) {
        if !self.core.peers.has_no_due() {
            self.execute_all_due();
        }
    }

    #[cold]
    fn execute_all_due(&mut self) {
        while let Some(pe) = self.core.peers.next_due() {
            loop {
                let connection = self.core.peers.find_mut(pe);
                let Some(waiting) =
                    connection.and_then(|connection| connection.channel().next_due())
                else {
                    break;
                };
                self.execute_waiting(pe, waiting);
            }
            self.staging.go_on_in_order(&mut self.core, pe);
            if let Some(connection) = self.core.peers.find_mut(pe) {
                connection.channel().check_wanted();
            }
            self.core.peers.queue_control(pe);
        }
        self.staging.settle(&mut self.core);
    }

    fn execute_waiting(&mut self, pe: Pe, waiting: WaitingRequest) {
        let WaitingRequest { seq, mark, ref kept } = waiting;
        // It was read before.
        let Ok(message) = Message::decode(kept.bytes()) else { return };
        self.settle_before(&message.body);
        let Some(connection) = self.core.peers.find_mut(pe) else { return };
        if connection.channel().is_refused(mark) {
            // That what it comes behind is missing was found just now, and is told already.
            return connection.channel().refuse(seq);
        }
        self.execute_now(pe, seq, &message.body, Some(mark));
    }

    #[cold]
    fn handle_rails(&mut self, pe: Pe, (number, ack): (Seq, Seq), rails: Rails<'_>) {
        if self.core.peers.find(pe).is_some_and(|connection| connection.channel.is_some()) {
            self.core.acknowledged(pe, ack);
        }
        if let Some(recovery) = self.recovery.as_deref_mut() {
            recovery.heard_of_rails(&mut self.core, pe, number, rails);
        }
    }

    /// Applies a request to this process' memory. It comes behind all before `mark`: pulls wait for
    /// them when their bytes are here.
    pub(crate) fn execute(
        &mut self,
        pe: Pe,
        body: &Body<'_>,
        mark: Option<Seq>,
    ) -> Result<(), String> {
        let (at, atomic) = match *body {
            Body::Staged(ref staged) => {
                return self.staging.asked_for(&mut self.core, pe, staged, mark);
            }
            Body::PutSignal { at, atomic, .. }
            | Body::Atomic { at, atomic }
            | Body::Fetch { at, atomic, .. } => (at, atomic),
            // Nobody reads the last one, and counted ones wait for their data.
            Body::Ack
            | Body::AckRequest
            | Body::Reply { .. }
            | Body::Rails(_)
            | Body::CountedSignal { .. }
            | Body::PutSignalHead { .. } => return Ok(()),
        };
        let place = self.core.locate_word(at, atomic.width)?;
        if let Body::PutSignal { to, payload, .. } = *body {
            let data = self
                .core
                .transmit
                .regions_mut()
                .locate(to, payload.len())
                .map_err(|e| e.to_string())?;
            if payload.len() > MAX_EAGER && data.reach != Reach::Direct {
                // Its handle says so to whoever would send it.
                return Err(format!(
                    "{} bytes in one message, for memory that the processor does not reach",
                    payload.len()
                ));
            }
            let Self { core, staging, .. } = self;
            // The CPU changes its words at once, and these bytes come before.
            let stored = match place.reach {
                Reach::Direct => staging.store_at(core, data, payload),
                Reach::Fabric | Reach::Staged => {
                    staging.store_soon(core, data, payload, mark.is_some())
                }
            };
            stored.map_err(|e| e.to_string())?;
        }
        let Body::Fetch { request_id, place: kept, .. } = *body else {
            let order = SoonOrder::Behind;
            let applied = self.staging.apply_soon(&mut self.core, place, &atomic, order);
            return applied.map_err(|e| e.to_string());
        };
        let value =
            self.staging.apply_at(&mut self.core, place, &atomic).map_err(|e| e.to_string())?;
        if let Some(connection) = self.core.peers.find_mut(pe) {
            let replies = connection.channel().replies.get_or_insert_default();
            if let Some(reply) = replies.get_mut(usize::from(kept)) {
                *reply = Some((request_id, value));
            }
        }
        self.core.queue_unnumbered(pe, Owed::Word { request_id, value });
        Ok(())
    }

    fn apply_counted(&mut self, pe: Pe, signal: &CountedSignal) {
        let CountedSignal { at, atomic, .. } = *signal;
        let body = Body::Atomic { at, atomic };
        if self.core.transmit.has_devices() {
            self.settle_before(&body);
        }
        self.execute_now(pe, signal.seq, &body, None);
        self.signals.settle(&mut self.core, pe);
    }

    fn replied(&mut self, pe: Pe, answered: RequestId, value: u64) {
        let wr_id = WrId(answered.slot);
        let Some(segment) = self.core.transmit.away(wr_id) else { return };
        // A second reply to the same request finds another segment there, or none.
        let Work::Fetch { result, len: width, .. } = *segment.work() else { return };
        let was_sent = segment.stage == Stage::Sent;
        if segment.pe != pe || !was_sent || segment.request_id(wr_id) != answered {
            return;
        }
        self.core.drop_segment(wr_id);
        // Nobody waits for what comes from a peer that was declared failed: the memory may be gone.
        if self.core.peers.check(pe).is_ok() {
            self.staging.store_result(&mut self.core, pe, result, value, width);
        }
    }
}

struct Broken(i32);

impl Display for Broken {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "a message that could not be received (error {})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::atomic::{Atomic, AtomicOp, Width};
    use crate::fake::Event;
    use crate::port::Access;
    use crate::port::copies::CopyDirection;
    use crate::posting::tests::{Bed, PLAIN, RAIL};
    use crate::staging::state::Listed;
    use crate::staging::state::role::Role;
    use crate::staging::state::waiting::{Waiter, Wanted};
    use crate::state::messages::reliable_channel::FIRST;
    use crate::state::messages::unnumbered::NO_TICKET;
    use crate::state::regions::Place;
    use crate::wire::handle::HandleView;
    use crate::wire::staged::Exposure;

    /// A device that is given what it has to do all at once has done it before the CPU does what
    /// comes behind that, and before anything can be acknowledged.
    #[test]
    fn what_a_device_is_to_have_it_has_before_requests_that_the_cpu_carries_out() {
        let mut bed = Bed::new(PLAIN);
        let staged = bed.fabric.alloc_reached(Pe(0), 64, Reach::Staged);
        let theirs = bed.tables[0].register(staged, 64, Access::LocalAndRemote).unwrap();
        let (addr, ours) = bed.heaps[0];
        let spot = |handle, addr| HandleView::check(handle).unwrap().spot(addr, 8).unwrap();
        let (device, cpu) = (spot(&theirs, staged as u64), spot(&ours, addr));
        let (op, width) = (AtomicOp::Inc, Width::Eight);
        let atomic = Atomic { op, width, float: false, operand: 1, compare: 0 };
        let request_id = NO_TICKET;
        let put_signal = |at, to| Body::PutSignal { at, atomic, to, payload: &[7] };
        for (body, settles) in [
            (Body::Atomic { at: cpu, atomic }, true),
            (Body::Atomic { at: device, atomic }, false),
            (Body::Fetch { at: cpu, atomic, request_id, place: 0 }, true),
            (Body::Fetch { at: device, atomic, request_id, place: 0 }, false),
            (put_signal(device, device), false),
            (put_signal(cpu, device), true),
            (put_signal(device, cpu), true),
            (Body::Staged(Staged::Put { to: cpu, payload: &[7] }), true),
            (Body::Staged(Staged::Put { to: device, payload: &[7] }), false),
        ] {
            let Lane { staging, core, .. } = &mut bed.lane;
            let place = Place { addr: staged, reach: Reach::Staged };
            staging.sync_regions(core);
            staging.store_soon(core, place, &[7], false).unwrap();
            staging.executed(Pe(1), Seq(1));
            let before = bed.fabric.settled();
            bed.lane.settle_before(&body);
            assert_eq!(bed.fabric.settled() - before, u32::from(settles), "{body:?}");
            bed.fabric.forge_message(Pe(0), RAIL, b"of nobody");
            assert!(bed.lane.receive(RAIL));
            assert_eq!(bed.fabric.settled() - before, 1, "{body:?}");
        }
    }

    #[test]
    fn the_data_of_a_put_with_signal_is_behind_what_was_stored_before_its_mark() {
        let mut bed = Bed::new(PLAIN);
        let staged = bed.fabric.alloc_reached(Pe(0), 64, Reach::Staged);
        let handle = bed.tables[0].register(staged, 64, Access::LocalAndRemote).unwrap();
        let handle = HandleView::check(&handle).unwrap();
        let spot = |at| handle.spot(staged as u64 + at, 8).unwrap();
        let atomic =
            Atomic { op: AtomicOp::Inc, width: Width::Eight, float: false, operand: 1, compare: 0 };
        let put = Body::Staged(Staged::Put { to: spot(0), payload: &[7] });
        let put_signal = Body::PutSignal { at: spot(16), atomic, to: spot(8), payload: &[7] };
        for (mark, stored) in [(None, [8, 0, 16]), (Some(Seq(2)), [0, 8, 16])] {
            bed.lane.execute_now(Pe(1), Seq(1), &put, None);
            bed.lane.execute_now(Pe(1), Seq(2), &put_signal, mark);
            let before = bed.fabric.events().len();
            bed.lane.staging.settle(&mut bed.lane.core);
            let events = bed.fabric.events().split_off(before);
            let applied = |at| Event::Applied { pe: Pe(0), addr: staged + at };
            assert_eq!(events, stored.map(applied), "{mark:?}");
        }
    }

    #[test]
    fn an_atomic_on_an_aligned_word_is_taken_the_short_way() {
        let mut bed = Bed::new(PLAIN);
        bed.atomic(1, AtomicOp::Inc);
        bed.lane.core.transmit.regions_mut().sync();
        let ack = bed.lane.core.connection_to(Pe(1)).unwrap().channel().ack_received;
        let (addr, ref handle) = bed.heaps[0];
        let word = HandleView::check(handle).unwrap();
        let seqs = (0..).map(|at| Seq(FIRST.0 + at));
        for ((offset, is_taken), seq) in
            [(0, true), (8, true), (4, false), (9, false)].into_iter().zip(seqs)
        {
            let at = word.spot(addr + offset, 8).unwrap();
            let (op, width) = (AtomicOp::Inc, Width::Eight);
            let atomic = Atomic { op, width, float: false, operand: 1, compare: 0 };
            let (from, payload) = (Pe(1), &[][..]);
            let plain = PlainMessage { from, seq, ack, at, atomic, to: at, payload };
            assert_eq!(bed.lane.try_handle(&plain), is_taken, "{offset}");
        }
    }

    #[test]
    fn brought_bytes_wait_for_their_turn() {
        const LEN: usize = 1000;
        let mut bed = Bed::new(PLAIN);
        let addr = bed.fabric.alloc_reached(Pe(0), 2 * LEN, Reach::Staged);
        let handle = bed.tables[0].register(addr, 2 * LEN, Access::LocalAndRemote).unwrap();
        let to = HandleView::check(&handle).unwrap().spot(addr as u64, LEN as u64).unwrap();
        let Lane { staging, core, .. } = &mut bed.lane;
        staging.sync_regions(core);
        core.open_connection(Pe(1)).unwrap();
        let named = |slot: u32| RequestId { slot, seq: Seq(FIRST.0.wrapping_add(slot)) };
        let (from, mark) = (Exposure { slot: 0, stamp: 1, offset: 0 }, None);
        let (role, place) = (Role::Pull(named(0)), Place { addr, reach: Reach::Staged });
        let listed = Listed::default();
        let first = Wanted { pe: Pe(1), role, place, listed, len: LEN, from, mark };
        staging.state().waiting(CopyDirection::In).push(Pe(1), Waiter::Peer(first));
        let (request_id, brought) = (named(1), Some(&[7; LEN][..]));
        let second = Staged::Pull { to, from, len: LEN as u32, request_id, brought };
        staging.asked_for(core, Pe(1), &second, None).unwrap();
        let begun = core.transmit.wr_ids(|s| matches!(s.work(), Work::PeerRequest { .. }));
        let mut begun: Vec<_> =
            begun.into_iter().map(|wr_id| staging.state().fragment(wr_id).role).collect();
        begun.sort_by_key(|role| format!("{role:?}"));
        assert_eq!(begun, [Role::Pull(named(0)), Role::Pull(named(1))]);
    }
}
