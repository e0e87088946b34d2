//! Fragments of puts and gets of staged memory: how they get on, step by step. What the ways are, and why
//! they cannot deadlock, is in [`crate::staging`].

use crate::error::EngineError;
use crate::ids::{Pe, Token};
use crate::port::copies::{Copied, Copy, CopyDirection, Reach};
use crate::port::{Desc, Direction, Local, Port, PortError, Posted, Tail, Transfer};
use crate::posting::Core;
use crate::staging::Staging;
use crate::staging::peer_requests::refusal;
use crate::staging::role::Role;
use crate::staging::state::{Fragment, LocalEnd, PEER_REQUESTS, RemoteEnd};
use crate::staging::waiting::Waiter;
use crate::state::messages::unnumbered::What;
use crate::state::regions::{Place, desc_of};
use crate::state::segment::table::Finished;
use crate::state::segment::{Kind, Segment, Stage};
use crate::wire::message::{Body, Ticket};
use crate::wire::staged::{Exposure, Staged};

impl Staging {
    /// A fragment that no fence holds sets out.
    pub(crate) fn begin_fragment<P: Port>(&mut self, core: &mut Core<P>, token: Token) {
        core.segments[token.0].step();
        let Fragment { role, local_end, remote_end, .. } = *self.state().fragment(token);
        match (role, local_end, remote_end) {
            (Role::Put, LocalEnd::Chunk, _) => {
                let pe = core.segments[token.0].pe;
                self.state().waiting(CopyDirection::Out).push(pe, Waiter::Mine(token));
            }
            (_, _, RemoteEnd::Peer(_)) => self.ask_peer(core, token),
            _ => self.fetch(core, token),
        }
    }

    /// The bytes of a put are in their chunk.
    fn offer<P: Port>(&mut self, core: &mut Core<P>, token: Token) {
        if self.ends_with_its_stream(core, token) {
            return;
        }
        match self.state().fragment(token).remote_end {
            RemoteEnd::Peer(_) => self.ask_peer(core, token),
            _ => self.next_part(core, token),
        }
    }

    /// The bytes of a get can be read.
    fn fetch<P: Port>(&mut self, core: &mut Core<P>, token: Token) {
        if self.ends_with_its_stream(core, token) {
            return;
        }
        match self.state().fragment(token).local_end {
            LocalEnd::Chunk => {
                let pe = core.segments[token.0].pe;
                self.state().waiting(CopyDirection::In).push(pe, Waiter::Mine(token));
            }
            LocalEnd::Fabric { .. } => self.next_part(core, token),
        }
    }

    /// Whether the fragment's stream has failed: then it goes no further.
    fn ends_with_its_stream<P: Port>(&mut self, core: &mut Core<P>, token: Token) -> bool {
        let failed = core.check_stream(core.segments[token.0].pe).is_err();
        if failed {
            self.drop_fragment(core, token);
        }
        failed
    }

    /// Asks the peer for its part, as soon as it may be asked for more.
    fn ask_peer<P: Port>(&mut self, core: &mut Core<P>, token: Token) {
        let pe = core.segments[token.0].pe;
        let peer = self.state().peer(pe);
        if peer.requests >= PEER_REQUESTS {
            peer.blocked.push(&mut core.segments, token.0);
            return;
        }
        peer.requests += 1;
        self.state().fragment(token).counts = true;
        self.send_request(core, token);
    }

    fn send_request<P: Port>(&mut self, core: &mut Core<P>, token: Token) {
        let fragment = *self.state().fragment(token);
        let RemoteEnd::Peer(spot) = fragment.remote_end else { return };
        let pe = core.segments[token.0].pe;
        let from = match (fragment.local_end, fragment.chunk, self.bouncing()) {
            (LocalEnd::Fabric { exposed, .. }, ..) => exposed,
            (LocalEnd::Chunk, Some(chunk), Some(bouncing)) => bouncing.exposure(chunk),
            // A get, which exposes nothing.
            _ => NOWHERE,
        };
        if fragment.role == Role::Put {
            self.tell_keys(core, pe, from);
        }
        let segment = &core.segments[token.0];
        let (len, ticket) = (fragment.len as u32, segment.ticket(token));
        let staged = match fragment.role {
            Role::Put => Staged::Pull { to: spot, from, len, ticket, brought: None },
            _ => Staged::Ask { from: spot, len, ticket },
        };
        let rail = segment.rail;
        let Some(slot) = segment.message() else { return };
        core.encode_into(slot, Body::Staged(staged));
        let brought = self.brought(core, &fragment);
        core.messages.set_tail(slot, brought);
        core.segments[token.0].stage = Stage::Ready;
        core.dispatch(token, rail);
    }

    /// The bytes that go with the message that tells of them: those of a short put which the processor reaches.
    fn brought<P: Port>(&mut self, core: &mut Core<P>, fragment: &Fragment) -> Tail {
        let Fragment { role, len, memory, local_end, chunk, .. } = *fragment;
        if role != Role::Put || len > self.most_brought {
            return Tail::NONE;
        }
        match (local_end, chunk, self.bouncing()) {
            (LocalEnd::Chunk, Some(chunk), Some(bouncing)) => {
                Tail { addr: bouncing.addr(role, chunk), len }
            }
            (LocalEnd::Fabric { .. }, ..) if core.regions.reach(memory) == Reach::Direct => {
                Tail { addr: memory, len }
            }
            _ => Tail::NONE,
        }
    }

    /// Gets the next bytes of a fragment moved by the fabric, as many as one segment takes.
    pub(crate) fn next_part<P: Port>(&mut self, core: &mut Core<P>, token: Token) {
        let fragment = *self.state().fragment(token);
        let (pe, rail) = (core.segments[token.0].pe, core.segments[token.0].rail);
        if self.ends_with_its_stream(core, token) {
            return;
        }
        if core.recovers && core.paths.is_out(pe, rail) {
            return core.lose(token, false);
        }
        let remote_rail = core.paths.get(pe, rail).remote.rail();
        let (remote, key) = match fragment.remote_end {
            RemoteEnd::Fabric { remote, key } => (remote, key),
            RemoteEnd::Peer(_) => return,
            RemoteEnd::Exposed(at) => {
                let peer = self.state().peer(pe);
                match peer.exposures.find(at, remote_rail) {
                    Some(found) => found,
                    None => return peer.keyless.push_back(token),
                }
            }
        };
        let (addr, desc) = match (fragment.local_end, fragment.chunk, self.bouncing()) {
            (LocalEnd::Fabric { desc, .. }, ..) => (fragment.memory, desc),
            (LocalEnd::Chunk, Some(chunk), Some(bouncing)) => {
                (bouncing.addr(fragment.role, chunk), desc_of(bouncing.descs(), rail))
            }
            (LocalEnd::Chunk, ..) => return,
        };
        let most = core.rails[rail.index()].max_segment;
        let segment = &mut core.segments[token.0];
        let direction = match fragment.role {
            Role::Put | Role::Ask(_) => Direction::Write,
            Role::Get | Role::Pull(_) => Direction::Read,
        };
        segment.transfer = Transfer {
            direction,
            local: Local::Memory { addr: addr + fragment.moved, desc },
            len: (fragment.len - fragment.moved).min(most),
            remote: remote + fragment.moved as u64,
            key,
        };
        segment.stage = Stage::Ready;
        core.add_fragment_load(token);
        core.dispatch(token, rail);
    }

    /// The fabric has moved bytes of a fragment. Takes the completion, except for the rail's own count;
    /// says whether it was of a fragment in flight.
    #[cold]
    pub(crate) fn completed_fragment<P: Port>(&mut self, core: &mut Core<P>, token: Token) -> bool {
        let posted = core.segments.away(token).filter(|segment| segment.stage == Stage::Posted);
        let Some(segment) = posted else { return false };
        debug_assert!(segment.kind.is_staged(), "others have ended with their completion");
        let (pe, len) = (segment.pe, segment.transfer.len);
        let fragment = self.state().fragment(token);
        fragment.moved += len;
        let fragment = *fragment;
        core.segments[token.0].step();
        if self.ends_with_its_stream(core, token) {
            return true;
        }
        if fragment.moved < fragment.len {
            self.next_part(core, token);
            return true;
        }
        if let (Role::Get, RemoteEnd::Exposed(_)) = (fragment.role, fragment.remote_end) {
            let ticket = core.segments[token.0].ticket(token);
            core.queue_unnumbered(pe, What::Release { ticket });
            self.end_request(core, pe, token);
        }
        match (fragment.role, fragment.local_end) {
            (Role::Put, _) | (Role::Get, LocalEnd::Fabric { .. }) => {
                self.drop_fragment(core, token)
            }
            _ => self.copy_in(core, token),
        }
        true
    }

    /// Copies what has landed in a fragment's chunk to its place.
    pub(crate) fn copy_in<P: Port>(&mut self, core: &mut Core<P>, token: Token) {
        if !self.is_its_turn(core, token) {
            return;
        }
        self.state().landed.push_back(token);
        self.start_landed(core);
    }

    /// Starts the copies of what has landed, first in first out. Whether it has started any.
    fn start_landed<P: Port>(&mut self, core: &mut Core<P>) -> bool {
        let mut moved = false;
        while let Some(token) = self.state().landed.front().copied() {
            if !self.start_copy(core, token, CopyDirection::In) {
                break;
            }
            self.state().landed.pop_front();
            moved = true;
        }
        moved
    }

    /// Whether a fragment may be copied in now. A peer's comes behind others and waits for them; if one of these is never
    /// carried out, nor is this.
    fn is_its_turn<P: Port>(&mut self, core: &mut Core<P>, token: Token) -> bool {
        let Fragment { role, mark, .. } = *self.state().fragment(token);
        let (Role::Pull(ticket), Some(mark)) = (role, mark) else { return true };
        let pe = core.segments[token.0].pe;
        let Some(link) = core.streams.find(pe).and_then(|stream| stream.link.as_deref()) else {
            return true;
        };
        if link.is_refused(mark) {
            let why = "what it comes behind cannot be carried out";
            self.answer_peer_request(core, token, refusal(pe, ticket, why));
            return false;
        }
        let waits = !link.is_carried_out(mark);
        if waits && !self.ends_with_its_stream(core, token) {
            self.state().peer(pe).in_order.push_back(token);
        }
        !waits
    }

    /// Starts the copy of a fragment that has a chunk. False if it has to be tried again.
    pub(crate) fn start_copy<P: Port>(
        &mut self,
        core: &mut Core<P>,
        token: Token,
        direction: CopyDirection,
    ) -> bool {
        if self.ends_with_its_stream(core, token) {
            return true;
        }
        let Fragment { role, len, memory, chunk, .. } = *self.state().fragment(token);
        let (Some(chunk), Some(bouncing)) = (chunk, self.bouncing()) else { return true };
        let copy = Copy { direction, memory, chunk: bouncing.addr(role, chunk), len };
        match bouncing.copies.start(&copy, token.0) {
            Ok(Posted::Yes) => {
                // What it touches until it has ended.
                let transfer = &mut core.segments[token.0].transfer;
                (transfer.local, transfer.len) =
                    (Local::Memory { addr: memory, desc: Desc(0) }, len);
                self.state().copying += 1;
                true
            }
            Ok(Posted::Again) => false,
            Err(error) => {
                self.fail_fragment(core, token, error);
                true
            }
        }
    }

    /// Moves what waits for copies and chunks, after what the device has copied. Turns alone ask that of it: each question
    /// is a call of the driver.
    #[cold]
    pub(crate) fn pump<P: Port>(&mut self, core: &mut Core<P>) -> bool {
        let mut moved = false;
        while let Some(copied) = self.next_copied() {
            self.copied(core, copied);
            moved = true;
        }
        let started = self.start_waiting(core);
        moved || started
    }

    /// Starts what waits for copies and chunks, as far as there is room.
    pub(crate) fn start_waiting<P: Port>(&mut self, core: &mut Core<P>) -> bool {
        let landed = self.start_landed(core);
        let out = self.give_chunks(core, CopyDirection::Out);
        let inward = self.give_chunks(core, CopyDirection::In);
        landed || out || inward
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

    /// Gives chunks of one direction to those who wait, peer by peer.
    fn give_chunks<P: Port>(&mut self, core: &mut Core<P>, direction: CopyDirection) -> bool {
        let mut moved = false;
        while let Some((pe, waiter)) = self.next_waiter(direction) {
            if core.check_stream(pe).is_err() {
                self.state().waiting(direction).pop(pe);
                match waiter {
                    Waiter::Mine(token) => self.drop_fragment(core, token),
                    Waiter::Peer(wanted) => self.end_pull(core, pe, wanted.role, false),
                }
                moved = true;
                continue;
            }
            let token = match waiter {
                Waiter::Mine(token) => Some(token),
                Waiter::Peer(wanted) => self.begin_peer_request(core, &wanted),
            };
            let (Some(token), Some(bouncing)) = (token, self.bouncing()) else { break };
            self.state().fragment(token).chunk = bouncing.chunks(direction).take();
            self.state().waiting(direction).hold(pe);
            if direction == CopyDirection::In {
                self.state().waiting(direction).pop(pe);
                self.next_part(core, token);
            } else if self.start_copy(core, token, direction) {
                self.state().waiting(direction).pop(pe);
            } else {
                // It keeps its place, and what it was given.
                self.leave_chunk(core, token);
                if let Waiter::Peer(_) = waiter {
                    self.release_peer_request(core, token);
                }
                break;
            }
            moved = true;
        }
        moved
    }

    /// Who is to have the next chunk of a direction, if one is free.
    pub(crate) fn next_waiter(&mut self, direction: CopyDirection) -> Option<(Pe, Waiter)> {
        let free = self.bouncing()?.chunks(direction).free().0;
        self.state().waiting(direction).first(free)
    }

    /// A copy has ended.
    fn copied<P: Port>(&mut self, core: &mut Core<P>, Copied { tag, result }: Copied) {
        let token = Token(tag);
        // It touches no memory but its chunk from here on.
        core.segments[token.0].transfer.local = Local::Inline(0);
        if let Err(error) = result {
            return self.fail_fragment(core, token, error);
        }
        match self.state().fragment(token).role {
            Role::Put => self.offer(core, token),
            Role::Get => self.drop_fragment(core, token),
            Role::Pull(ticket) => self.answer_peer_request(core, token, What::Pulled { ticket }),
            Role::Ask(ticket) => self.expose(core, token, ticket),
        }
    }

    /// A fragment cannot be copied.
    #[cold]
    pub(crate) fn fail_fragment<P: Port>(
        &mut self,
        core: &mut Core<P>,
        token: Token,
        error: PortError,
    ) {
        let Fragment { role, len, .. } = *self.state().fragment(token);
        let pe = core.segments[token.0].pe;
        match role {
            Role::Put | Role::Get => {
                let failed = staging_failed(core.segments[token.0].what(), pe, len, error);
                core.fail_stream(pe, failed);
                self.drop_fragment(core, token);
            }
            Role::Pull(ticket) | Role::Ask(ticket) => {
                self.answer_peer_request(core, token, refusal(pe, ticket, &error.to_string()));
            }
        }
    }

    /// The peer has answered an role: its token, if there is such an role.
    pub(crate) fn answered<P: Port>(
        &self,
        core: &Core<P>,
        pe: Pe,
        ticket: Ticket,
    ) -> Option<Token> {
        let token = Token(ticket.slot);
        let segment = core.segments.away(token)?;
        let same = segment.kind.is_staged()
            && segment.stage == Stage::Sent
            && segment.pe == pe
            && segment.ticket(token) == ticket;
        same.then_some(token)
    }

    /// The peer has exposed what a get has asked for.
    pub(crate) fn exposed<P: Port>(&mut self, core: &mut Core<P>, token: Token, from: Exposure) {
        let segment = &mut core.segments[token.0];
        let message = segment.take_message();
        segment.step();
        if let Some(message) = message {
            core.messages.forget_fragment(message);
        }
        self.state().fragment(token).remote_end = RemoteEnd::Exposed(from);
        match self.describe_anew(core, token) {
            Ok(()) => self.fetch(core, token),
            Err(error) => self.fail_fragment(core, token, error),
        }
        self.start_waiting(core);
    }

    /// The bytes that a get has asked for are here.
    pub(crate) fn loaded<P: Port>(
        &mut self,
        core: &mut Core<P>,
        token: Token,
        payload: &[u8],
    ) -> Result<(), String> {
        if self.ends_with_its_stream(core, token) {
            return Ok(());
        }
        let Fragment { len, memory: addr, local_end, .. } = *self.state().fragment(token);
        if payload.len() != len {
            return Err(format!("{} bytes for a get of {len}", payload.len()));
        }
        let reach = match (local_end, core.regions.reach(addr)) {
            (_, reach @ (Reach::Fabric | Reach::Staged)) => reach,
            (LocalEnd::Fabric { .. }, _) => Reach::Direct,
            (LocalEnd::Chunk, _) => match self.bouncing() {
                Some(bouncing) => {
                    bouncing.copies.reach(addr, len).map_err(|error| error.to_string())?
                }
                None => Reach::Direct,
            },
        };
        match self.store_at(core, Place { addr, reach }, payload) {
            Ok(()) => self.drop_fragment(core, token),
            Err(error) => self.fail_fragment(core, token, error),
        }
        Ok(())
    }

    /// An role of ours is over: the peer may be asked for another.
    pub(crate) fn end_request<P: Port>(&mut self, core: &mut Core<P>, pe: Pe, token: Token) {
        if !std::mem::take(&mut self.state().fragment(token).counts) {
            return;
        }
        let failed = core.check_stream(pe).is_err();
        self.state().peer(pe).requests -= 1;
        while let Some(next) = self.state().peer(pe).blocked.pop(&core.segments).map(Token) {
            if failed {
                // It does not count, so this does not come back here.
                self.drop_fragment(core, next);
                continue;
            }
            self.ask_peer(core, next);
            break;
        }
    }

    /// What a fragment has, as it ends: chunk, message, and its place among the requests.
    pub(crate) fn leave_fragment<P: Port>(&mut self, core: &mut Core<P>, token: Token) {
        let segment = &mut core.segments[token.0];
        let (pe, stage) = (segment.pe, segment.stage);
        match (segment.take_message(), stage) {
            (None, _) => {}
            (Some(message), Stage::Sent) => core.messages.forget_fragment(message),
            (Some(message), _) => core.messages.give_beside(message),
        }
        self.leave_chunk(core, token);
        let is_put = self.state().fragment(token).role == Role::Put;
        if let (true, Stage::Sent, Some(stream)) = (is_put, stage, core.streams.find_mut(pe)) {
            let placed = stream.orders();
            let link = stream.link();
            link.pulls -= u32::from(placed);
            link.apart = link.apart.wrapping_sub(1);
        }
        self.state().peer(pe).fragments -= 1;
        self.end_request(core, pe, token);
    }

    /// A peer was given up: what waits for it, or for its answer, ends, so that it takes no room of others. The fabric may
    /// still move some, which ends with that.
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
                Waiter::Mine(token) => Some(token),
                Waiter::Peer(_) => None,
            }));
        }
        while let Some(token) = self.state().peer(pe).blocked.pop(&core.segments).map(Token) {
            over.push(token);
        }
        for token in over {
            self.drop_fragment(core, token);
        }
        let asks = |s: &Segment| s.pe == pe && s.kind == Kind::Staged && s.stage == Stage::Sent;
        for token in core.segments.tokens(asks) {
            match self.state().fragment(token).chunk {
                None => self.drop_fragment(core, token),
                Some(_) => self.keep_for_reader(core, token),
            }
        }
        self.start_waiting(core);
    }

    /// A put ends whose chunk its peer may still read: the chunk, and the segment with it, are the peer's from here on, until
    /// it answers.
    fn keep_for_reader<P: Port>(&mut self, core: &mut Core<P>, token: Token) {
        let segment = &mut core.segments[token.0];
        let (pe, message) = (segment.pe, segment.take_message());
        segment.kind = Kind::PeerRequest;
        let finished = Finished::of(segment);
        segment.uncount();
        if let Some(message) = message {
            core.messages.forget_fragment(message);
        }
        self.state().peer_segments += 1;
        core.reserved += 1;
        self.state().peer(pe).fragments -= 1;
        self.end_request(core, pe, token);
        core.ended(finished);
    }

    /// A fragment of this lane's ends, done or not; or one of a peer's, whom nobody tells.
    pub(crate) fn drop_fragment<P: Port>(&mut self, core: &mut Core<P>, token: Token) {
        core.end_load(token, false);
        if core.segments[token.0].kind == Kind::PeerRequest {
            let (pe, role) = (core.segments[token.0].pe, self.state().fragment(token).role);
            self.end_pull(core, pe, role, false);
            return self.release_peer_request(core, token);
        }
        self.leave_fragment(core, token);
        core.end_dropped(token);
    }

    pub(crate) fn leave_chunk<P: Port>(&mut self, core: &mut Core<P>, token: Token) {
        self.state().moved = core.watchdog.stamp();
        let fragment = self.state().fragment(token);
        let (direction, chunk) = (fragment.role.direction(), fragment.chunk.take());
        if let (Some(chunk), Some(bouncing)) = (chunk, self.bouncing()) {
            bouncing.chunks(direction).give(chunk);
            let pe = core.segments[token.0].pe;
            self.state().waiting(direction).let_go(pe);
        }
    }
}

/// What exposes nothing.
pub(crate) const NOWHERE: Exposure = Exposure { slot: u32::MAX, stamp: 0, offset: 0 };

#[cold]
pub(crate) fn staging_failed(
    what: &'static str,
    pe: Pe,
    len: usize,
    error: PortError,
) -> EngineError {
    EngineError::Staging { what, pe, len, error }
}
