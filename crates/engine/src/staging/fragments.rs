//! Fragments of puts and gets of staged memory: how they get on, step by step. What the ways are,
//! and why they cannot deadlock, is in [`crate::staging`].

use crate::error::EngineError;
use crate::ids::{Pe, WrId};
use crate::port::copies::{Copied, CopyDirection, Reach};
use crate::port::{Direction, Local, Port, PortError, Tail, Transfer};
use crate::posting::Core;
use crate::staging::Staging;
use crate::staging::peer_requests::refusal;
use crate::staging::state::role::Role;
use crate::staging::state::waiting::Waiter;
use crate::staging::state::{Fragment, LocalEnd, NOWHERE, PEER_REQUESTS, RemoteEnd};
use crate::state::messages::unnumbered::Owed;
use crate::state::regions::{Place, desc_of};
use crate::state::segment::table::Finished;
use crate::state::segment::work::Work;
use crate::state::segment::{Segment, Stage};
use crate::wire::message::{Body, RequestId};
use crate::wire::staged::{Exposure, Staged};

impl Staging {
    pub(crate) fn begin_fragment<P: Port>(&mut self, core: &mut Core<P>, wr_id: WrId) {
        core.transmit.segment_mut(wr_id).step();
        let Fragment { role, local_end, remote_end, .. } = *self.state().fragment(wr_id);
        match (role, local_end, remote_end) {
            (Role::Put, LocalEnd::BounceBuffer, _) => {
                let pe = core.transmit.segment(wr_id).pe;
                self.state().waiting(CopyDirection::Out).push(pe, Waiter::Mine(wr_id));
            }
            (_, _, RemoteEnd::Peer(_)) => self.ask_peer(core, wr_id),
            _ => self.fetch(core, wr_id),
        }
    }

    /// The bytes of a put are in their bounce buffer.
    fn offer<P: Port>(&mut self, core: &mut Core<P>, wr_id: WrId) {
        if self.ends_with_its_connection(core, wr_id) {
            return;
        }
        match self.state().fragment(wr_id).remote_end {
            RemoteEnd::Peer(_) => self.ask_peer(core, wr_id),
            _ => self.next_part(core, wr_id),
        }
    }

    /// The bytes of a get can be read.
    fn fetch<P: Port>(&mut self, core: &mut Core<P>, wr_id: WrId) {
        if self.ends_with_its_connection(core, wr_id) {
            return;
        }
        match self.state().fragment(wr_id).local_end {
            LocalEnd::BounceBuffer => {
                let pe = core.transmit.segment(wr_id).pe;
                self.state().waiting(CopyDirection::In).push(pe, Waiter::Mine(wr_id));
            }
            LocalEnd::Fabric { .. } => self.next_part(core, wr_id),
        }
    }

    pub(super) fn ends_with_its_connection<P: Port>(
        &mut self,
        core: &mut Core<P>,
        wr_id: WrId,
    ) -> bool {
        let failed = core.peers.check(core.transmit.segment(wr_id).pe).is_err();
        if failed {
            self.drop_fragment(core, wr_id);
        }
        failed
    }

    fn ask_peer<P: Port>(&mut self, core: &mut Core<P>, wr_id: WrId) {
        let pe = core.transmit.segment(wr_id).pe;
        let peer = self.state().peer(pe);
        if peer.requests >= PEER_REQUESTS {
            core.transmit.enqueue(&mut peer.blocked, wr_id);
            return;
        }
        peer.requests += 1;
        self.state().fragment(wr_id).counts = true;
        self.send_request(core, wr_id);
    }

    fn send_request<P: Port>(&mut self, core: &mut Core<P>, wr_id: WrId) {
        let fragment = *self.state().fragment(wr_id);
        let RemoteEnd::Peer(spot) = fragment.remote_end else { return };
        let pe = core.transmit.segment(wr_id).pe;
        let from = match (fragment.local_end, fragment.bounce) {
            (LocalEnd::Fabric { exposed, .. }, _) => exposed,
            (LocalEnd::BounceBuffer, Some(bounce)) => self.exposure_to(pe, bounce),
            // A get, which exposes nothing.
            (LocalEnd::BounceBuffer, None) => NOWHERE,
        };
        if fragment.role == Role::Put {
            self.tell_keys(core, pe, from);
        }
        let segment = core.transmit.segment(wr_id);
        let (len, request_id) = (fragment.len as u32, segment.request_id(wr_id));
        let staged = match fragment.role {
            Role::Put => Staged::Pull { to: spot, from, len, request_id, brought: None },
            _ => Staged::Ask { from: spot, len, request_id },
        };
        let rail = segment.rail;
        let Some(slot) = segment.message() else { return };
        core.peers.encode_into(slot, Body::Staged(staged));
        // What both processes see is copied from there.
        let shared = from.is_in_bounce();
        let brought = if shared { Tail::NONE } else { self.brought(core, &fragment) };
        self.counters.in_messages += brought.len as u64;
        core.peers.set_tail(slot, brought);
        core.transmit.segment_mut(wr_id).stage = Stage::Ready;
        core.dispatch(wr_id, rail);
    }

    /// The bytes that go with the message that tells of them: those of a short put which the
    /// processor reaches.
    fn brought<P: Port>(&mut self, core: &mut Core<P>, fragment: &Fragment) -> Tail {
        let Fragment { role, len, memory, local_end, bounce, .. } = *fragment;
        if role != Role::Put || len > self.most_brought || fragment.has_list() {
            return Tail::NONE;
        }
        match (local_end, bounce, self.bouncing()) {
            (LocalEnd::BounceBuffer, Some(bounce), Some(bouncing)) => {
                Tail { addr: bouncing.addr(role, bounce), len }
            }
            (LocalEnd::Fabric { .. }, ..)
                if core.transmit.regions().reach(memory, len) == Reach::Direct =>
            {
                Tail { addr: memory, len }
            }
            _ => Tail::NONE,
        }
    }

    /// Gets the next bytes of a fragment moved by the fabric, as many as one segment takes.
    pub(crate) fn next_part<P: Port>(&mut self, core: &mut Core<P>, wr_id: WrId) {
        let fragment = *self.state().fragment(wr_id);
        let (pe, rail) = (core.transmit.segment(wr_id).pe, core.transmit.segment(wr_id).rail);
        if self.ends_with_its_connection(core, wr_id) {
            return;
        }
        if core.failures.recovers() && core.transmit.is_out(pe, rail) {
            return core.lose(wr_id, false);
        }
        let remote_rail = core.transmit.remote_rail(pe, rail);
        let (remote, key) = match fragment.remote_end {
            RemoteEnd::Fabric { remote, key } => (remote, key),
            RemoteEnd::Peer(_) => return,
            RemoteEnd::Exposed(at) => {
                let peer = self.state().peer(pe);
                match peer.exposures.find(at, remote_rail) {
                    Some(found) => found,
                    None => return peer.keyless.push_back(wr_id),
                }
            }
        };
        let (addr, desc) = match (fragment.local_end, fragment.bounce, self.bouncing()) {
            (LocalEnd::Fabric { desc, .. }, ..) => (fragment.memory, desc),
            (LocalEnd::BounceBuffer, Some(bounce), Some(bouncing)) => {
                (bouncing.addr(fragment.role, bounce), desc_of(bouncing.descs(), rail))
            }
            (LocalEnd::BounceBuffer, ..) => return,
        };
        let most = core.transmit.rail(rail).max_segment;
        let is_bulk = core.transmit.balance().is_bulk(fragment.len);
        let segment = core.transmit.segment_mut(wr_id);
        let direction = match fragment.role {
            Role::Put | Role::Ask(_) => Direction::Write,
            Role::Get | Role::Pull(_) => Direction::Read,
        };
        let transfer = Transfer {
            direction,
            local: Local::Memory { addr: addr + fragment.moved, desc },
            len: (fragment.len - fragment.moved).min(most),
            remote: remote + fragment.moved as u64,
            key,
        };
        segment.move_next(transfer, is_bulk);
        segment.stage = Stage::Ready;
        core.add_fragment_load(wr_id);
        core.dispatch(wr_id, rail);
    }

    /// The fabric has moved bytes of a fragment. Takes the completion, except for the rail's own
    /// count; says whether it was of a fragment in flight.
    #[cold]
    pub(crate) fn completed_fragment<P: Port>(&mut self, core: &mut Core<P>, wr_id: WrId) -> bool {
        let posted = core.transmit.away(wr_id).filter(|segment| segment.stage == Stage::Posted);
        let Some(segment) = posted else { return false };
        debug_assert!(segment.work().is_staged(), "others have ended with their completion");
        let (pe, len) = (segment.pe, segment.len());
        let fragment = self.state().fragment(wr_id);
        fragment.moved += len;
        let fragment = *fragment;
        self.counters.by_fabric += len as u64;
        core.transmit.segment_mut(wr_id).step();
        if self.ends_with_its_connection(core, wr_id) {
            return true;
        }
        if fragment.moved < fragment.len {
            self.next_part(core, wr_id);
            return true;
        }
        if let (Role::Get, RemoteEnd::Exposed(_)) = (fragment.role, fragment.remote_end) {
            let request_id = core.transmit.segment(wr_id).request_id(wr_id);
            core.queue_unnumbered(pe, Owed::Release { request_id });
            self.end_request(core, pe, wr_id);
        }
        match (fragment.role, fragment.local_end) {
            (Role::Put, _) | (Role::Get, LocalEnd::Fabric { .. }) => {
                self.drop_fragment(core, wr_id)
            }
            _ => self.copy_in(core, wr_id),
        }
        true
    }

    pub(crate) fn copy_in<P: Port>(&mut self, core: &mut Core<P>, wr_id: WrId) {
        if self.is_its_turn(core, wr_id) {
            // The iteration starts it, with others that it finds.
            self.state().ready(CopyDirection::In).push_back(wr_id);
        }
    }

    /// Whether a fragment may be copied in now. A peer's comes behind others and waits for them; if
    /// one of these is never executed, nor is this.
    fn is_its_turn<P: Port>(&mut self, core: &mut Core<P>, wr_id: WrId) -> bool {
        let Fragment { role, mark, .. } = *self.state().fragment(wr_id);
        let (Role::Pull(request_id), Some(mark)) = (role, mark) else { return true };
        let pe = core.transmit.segment(wr_id).pe;
        let Some(channel) = core.peers.channel(pe) else {
            return true;
        };
        if channel.is_refused(mark) {
            let why = "what it comes behind cannot be executed";
            self.answer_peer_request(core, wr_id, refusal(pe, request_id, why));
            return false;
        }
        let waits = !channel.is_executed(mark);
        if waits && !self.ends_with_its_connection(core, wr_id) {
            self.state().peer(pe).in_order.push_back(wr_id);
        }
        !waits
    }

    /// Moves what waits for copies and bounce buffers, after what the device has copied. Turns
    /// alone ask that of it: each question is a call of the driver.
    #[cold]
    pub(crate) fn pump<P: Port>(&mut self, core: &mut Core<P>) -> bool {
        let mut moved = false;
        while let Some(copied) = self.next_copied() {
            self.copied(core, copied);
            moved = true;
        }
        if moved {
            self.end_signalled(core);
        }
        let started = self.start_waiting(core);
        moved || started
    }

    pub(crate) fn start_waiting<P: Port>(&mut self, core: &mut Core<P>) -> bool {
        let out = self.give_bounces(core, CopyDirection::Out);
        let inward = self.give_bounces(core, CopyDirection::In);
        let shared = self.take_shared(core);
        let started_out = self.start_copies(core, CopyDirection::Out);
        let started_in = self.start_copies(core, CopyDirection::In);
        out || inward || shared || started_out || started_in
    }

    fn next_copied(&mut self) -> Option<Copied> {
        let staging = self.state.as_deref_mut()?;
        if staging.copying == 0 {
            return None;
        }
        let copied = staging.bouncing.as_mut()?.copies.poll()?;
        staging.copying -= 1;
        Some(copied)
    }

    fn give_bounces<P: Port>(&mut self, core: &mut Core<P>, direction: CopyDirection) -> bool {
        let mut moved = false;
        // What leaves waits where more may join it, for as long as no copy can be started anyway.
        while direction == CopyDirection::In || self.room(direction) != 0 {
            let Some((pe, waiter)) = self.next_waiter(direction) else { break };
            if core.peers.check(pe).is_err() {
                self.state().waiting(direction).pop(pe);
                match waiter {
                    Waiter::Mine(wr_id) => self.drop_fragment(core, wr_id),
                    Waiter::Peer(wanted) => self.end_pull(core, pe, wanted.role, false),
                }
                moved = true;
                continue;
            }
            let wr_id = match waiter {
                Waiter::Mine(wr_id) => Some(wr_id),
                Waiter::Peer(wanted) => self.begin_peer_request(core, &wanted),
            };
            let (Some(wr_id), Some(bouncing)) = (wr_id, self.bouncing()) else { break };
            self.state().fragment(wr_id).bounce = bouncing.bounces(direction).take();
            self.state().waiting(direction).hold(pe);
            self.state().waiting(direction).pop(pe);
            match direction {
                CopyDirection::In => self.next_part(core, wr_id),
                CopyDirection::Out => {
                    let is_mine = matches!(waiter, Waiter::Mine(_));
                    if !is_mine || self.seal_list(core, wr_id) {
                        self.state().ready(direction).push_back(wr_id);
                    }
                }
            }
            moved = true;
        }
        moved
    }

    pub(crate) fn next_waiter(&mut self, direction: CopyDirection) -> Option<(Pe, Waiter)> {
        let free = self.bouncing()?.bounces(direction).free().0;
        self.state().waiting(direction).first(free)
    }

    fn copied<P: Port>(&mut self, core: &mut Core<P>, Copied { tag, result }: Copied) {
        let wr_id = WrId(tag);
        // It touches no memory but its bounce buffer from here on.
        core.transmit.segment_mut(wr_id).touch_nothing();
        if let (Ok(()), Some(next)) = (&result, self.state().fragment(wr_id).next) {
            match self.end_step(core, wr_id, next) {
                Ok(true) => {}
                Ok(false) => return self.state().go_on_with_list(wr_id),
                Err(error) => return self.fail_fragment(core, wr_id, error),
            }
        }
        let applied = result.and_then(|()| self.apply_listed(core, wr_id));
        let bytes = self.leave_list(wr_id);
        let has_signals = match applied {
            Ok(has_signals) => has_signals,
            Err(error) => return self.fail_fragment(core, wr_id, error),
        };
        self.was_copied_from_peer(core, wr_id, bytes);
        if has_signals {
            return self.state().signalled.push(wr_id);
        }
        match self.state().fragment(wr_id).role {
            Role::Put => self.offer(core, wr_id),
            Role::Get => self.drop_fragment(core, wr_id),
            Role::Pull(request_id) => {
                self.answer_peer_request(core, wr_id, Owed::Pulled { request_id })
            }
            Role::Ask(request_id) => self.expose(core, wr_id, request_id),
        }
    }

    fn end_signalled<P: Port>(&mut self, core: &mut Core<P>) {
        if self.state().signalled.is_empty() {
            return;
        }
        let settled = self.state().settle(core);
        let mut signalled = std::mem::take(&mut self.state().signalled);
        for wr_id in signalled.drain(..) {
            let Role::Pull(request_id) = self.state().fragment(wr_id).role else { continue };
            match &settled {
                Ok(()) => self.answer_peer_request(core, wr_id, Owed::Pulled { request_id }),
                Err(error) => self.fail_fragment(core, wr_id, error.clone()),
            }
        }
        self.state().signalled = signalled;
    }

    #[cold]
    pub(crate) fn fail_fragment<P: Port>(
        &mut self,
        core: &mut Core<P>,
        wr_id: WrId,
        error: PortError,
    ) {
        let Fragment { role, len, .. } = *self.state().fragment(wr_id);
        let pe = core.transmit.segment(wr_id).pe;
        match role {
            Role::Put | Role::Get => {
                let failed = staging_failed(core.transmit.segment(wr_id).what(), pe, len, error);
                core.fail_connection(pe, failed);
                self.drop_fragment(core, wr_id);
            }
            Role::Pull(request_id) | Role::Ask(request_id) => {
                self.answer_peer_request(core, wr_id, refusal(pe, request_id, &error.to_string()));
            }
        }
    }

    pub(crate) fn answered<P: Port>(
        &self,
        core: &Core<P>,
        pe: Pe,
        request_id: RequestId,
    ) -> Option<WrId> {
        let wr_id = WrId(request_id.slot);
        let segment = core.transmit.away(wr_id)?;
        let same = segment.work().is_staged()
            && segment.stage == Stage::Sent
            && segment.pe == pe
            && segment.request_id(wr_id) == request_id;
        same.then_some(wr_id)
    }

    /// As [`Staging::answered`], of an answer that fits some requests alone.
    ///
    /// # Errors
    /// It is no answer to what was asked: a put's source, for one, is nothing that a peer may fill.
    pub(crate) fn answered_as<P: Port>(
        &self,
        core: &Core<P>,
        pe: Pe,
        request_id: RequestId,
        answer: &str,
        fits: impl Fn(&Fragment) -> bool,
    ) -> Result<Option<WrId>, String> {
        let Some(wr_id) = self.answered(core, pe, request_id) else { return Ok(None) };
        let Some(asked) = self.state.as_deref().map(|state| state.peek(wr_id)) else {
            return Ok(None);
        };
        if fits(asked) {
            return Ok(Some(wr_id));
        }
        let Fragment { role, len, .. } = asked;
        Err(format!("it answers \"{answer}\" to a {role:?} of {len} bytes"))
    }

    pub(crate) fn exposed<P: Port>(&mut self, core: &mut Core<P>, wr_id: WrId, from: Exposure) {
        let segment = core.transmit.segment_mut(wr_id);
        let message = segment.take_message();
        segment.step();
        if let Some(message) = message {
            core.peers.forget_fragment(message);
        }
        self.state().fragment(wr_id).remote_end = RemoteEnd::Exposed(from);
        match self.describe_anew(core, wr_id) {
            _ if from.is_in_bounce() => self.copy_in(core, wr_id),
            Ok(()) => self.fetch(core, wr_id),
            Err(error) => self.fail_fragment(core, wr_id, error),
        }
        self.start_waiting(core);
    }

    /// All bytes that a get has asked for are here.
    pub(crate) fn loaded<P: Port>(&mut self, core: &mut Core<P>, wr_id: WrId, payload: &[u8]) {
        if self.ends_with_its_connection(core, wr_id) {
            return;
        }
        let Fragment { len, memory: addr, local_end, .. } = *self.state().fragment(wr_id);
        let reach = match (local_end, core.transmit.regions().reach(addr, len)) {
            (_, reach @ (Reach::Fabric | Reach::Staged)) => reach,
            (LocalEnd::Fabric { .. }, _) => Reach::Direct,
            (LocalEnd::BounceBuffer, _) => match self.bouncing() {
                Some(bouncing) => match bouncing.copies.reach(addr, len) {
                    Ok(reach) => reach,
                    Err(error) => return self.fail_fragment(core, wr_id, error),
                },
                None => Reach::Direct,
            },
        };
        match self.store_at(core, Place { addr, reach }, payload) {
            Ok(()) => self.drop_fragment(core, wr_id),
            Err(error) => self.fail_fragment(core, wr_id, error),
        }
    }

    pub(crate) fn end_request<P: Port>(&mut self, core: &mut Core<P>, pe: Pe, wr_id: WrId) {
        if !std::mem::take(&mut self.state().fragment(wr_id).counts) {
            return;
        }
        let failed = core.peers.check(pe).is_err();
        self.state().peer(pe).requests -= 1;
        while let Some(next) = core.transmit.dequeue(&mut self.state().peer(pe).blocked) {
            if failed {
                // It does not count, so this does not come back here.
                self.drop_fragment(core, next);
                continue;
            }
            self.ask_peer(core, next);
            break;
        }
    }

    pub(crate) fn leave_fragment<P: Port>(&mut self, core: &mut Core<P>, wr_id: WrId) {
        let segment = core.transmit.segment_mut(wr_id);
        let (pe, stage) = (segment.pe, segment.stage);
        match (segment.take_message(), stage) {
            (None, _) => {}
            (Some(message), Stage::Sent) => core.peers.forget_fragment(message),
            (Some(message), _) => core.peers.give_beside(message),
        }
        self.leave_list(wr_id);
        self.close(pe, wr_id);
        self.leave_bounce(core, wr_id);
        let is_put = self.state().fragment(wr_id).role == Role::Put;
        if let (true, Stage::Sent, Some(connection)) = (is_put, stage, core.peers.find_mut(pe)) {
            let channel = connection.channel();
            channel.pulls -= 1;
            channel.apart = channel.apart.wrapping_sub(1);
        }
        self.state().peer(pe).fragments -= 1;
        self.end_request(core, pe, wr_id);
    }

    /// A peer was declared failed: what waits for it, or for its answer, ends, so that it takes no
    /// room of others. The fabric may still move some, which ends with that.
    #[cold]
    pub(crate) fn give_up<P: Port>(&mut self, core: &mut Core<P>, pe: Pe) {
        if self.state.is_none() {
            return;
        }
        let mut over = Vec::from(std::mem::take(&mut self.state().peer(pe).keyless));
        over.extend(std::mem::take(&mut self.state().peer(pe).in_order));
        for direction in [CopyDirection::Out, CopyDirection::In] {
            let waiters = self.state().waiting(direction).forget(pe);
            over.extend(waiters.filter_map(|waiter| match waiter {
                Waiter::Mine(wr_id) => Some(wr_id),
                Waiter::Peer(_) => None,
            }));
        }
        while let Some(wr_id) = core.transmit.dequeue(&mut self.state().peer(pe).blocked) {
            over.push(wr_id);
        }
        for wr_id in over {
            self.drop_fragment(core, wr_id);
        }
        let asks = |s: &Segment| {
            s.pe == pe && s.stage == Stage::Sent && matches!(s.work(), Work::Fragment { .. })
        };
        for wr_id in core.transmit.wr_ids(asks) {
            match self.state().fragment(wr_id).bounce {
                None => self.drop_fragment(core, wr_id),
                Some(_) => self.keep_for_reader(core, wr_id),
            }
        }
        self.give_up_same_host(core, pe);
        self.start_waiting(core);
    }

    /// A put ends whose bounce buffer its peer may still read: the bounce buffer, and the segment
    /// with it, are the peer's from here on, until it answers.
    fn keep_for_reader<P: Port>(&mut self, core: &mut Core<P>, wr_id: WrId) {
        let segment = core.transmit.segment_mut(wr_id);
        let (pe, message) = (segment.pe, segment.take_message());
        let finished = Finished::of(segment);
        segment.leave_to_peer();
        if let Some(message) = message {
            core.peers.forget_fragment(message);
        }
        self.state().peer_segments += 1;
        core.transmit.reserve();
        self.state().peer(pe).fragments -= 1;
        self.end_request(core, pe, wr_id);
        core.ended(finished);
    }

    pub(crate) fn drop_fragment<P: Port>(&mut self, core: &mut Core<P>, wr_id: WrId) {
        core.end_load(wr_id, false);
        if let Work::PeerRequest { .. } = core.transmit.segment(wr_id).work() {
            let (pe, role) = (core.transmit.segment(wr_id).pe, self.state().fragment(wr_id).role);
            self.end_pull(core, pe, role, false);
            return self.release_peer_request(core, wr_id);
        }
        self.leave_fragment(core, wr_id);
        core.end_dropped(wr_id);
    }

    pub(crate) fn leave_bounce<P: Port>(&mut self, core: &mut Core<P>, wr_id: WrId) {
        self.state().moved = core.failures.stamp();
        let fragment = self.state().fragment(wr_id);
        let (direction, bounce) = (fragment.role.direction(), fragment.bounce.take());
        if let (Some(bounce), Some(bouncing)) = (bounce, self.bouncing()) {
            bouncing.bounces(direction).give(bounce);
            let pe = core.transmit.segment(wr_id).pe;
            self.state().waiting(direction).let_go(pe);
        }
    }
}

#[cold]
pub(crate) fn staging_failed(
    what: &'static str,
    pe: Pe,
    len: usize,
    error: PortError,
) -> EngineError {
    EngineError::Staging { what, pe, len, error }
}
