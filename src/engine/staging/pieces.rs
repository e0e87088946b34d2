//! Pieces of puts and gets of staged memory: how they get on, step by step. What the ways are, and why
//! they cannot deadlock, is in [`crate::engine::staging`].

use crate::engine::error::EngineError;
use crate::engine::ids::{Pe, Token};
use crate::engine::port::copies::{Copied, Copy, CopyDirection, Reach};
use crate::engine::port::{Direction, Local, Port, PortError, Posted, Transfer};
use crate::engine::posting::Core;
use crate::engine::staging::Staging;
use crate::engine::staging::errands::refusal;
use crate::engine::staging::state::{ERRANDS, Errand, Far, Near, Piece, Waiter};
use crate::engine::state::regions::{Place, desc_of};
use crate::engine::state::segment::{Kind, NIL, Stage, named_by};
use crate::engine::state::unnumbered::What;
use crate::engine::wire::message::{Body, Ticket};
use crate::engine::wire::staged::{Exposure, Staged};

impl Staging {
    /// A piece that no fence holds sets out.
    pub(in crate::engine) fn begin_piece<P: Port>(&mut self, core: &mut Core<P>, token: Token) {
        core.segments[token.0].stage = Stage::Staged;
        let Piece { errand, near, far, .. } = *self.state().piece(token);
        match (errand, near, far) {
            (Errand::Put, Near::Chunk, _) => {
                self.state().waiting_out.push_back(Waiter::Mine(token));
            }
            (Errand::Put, ..) => self.offer(core, token),
            (_, _, Far::Peer(_)) => self.ask_peer(core, token),
            _ => self.fetch(core, token),
        }
    }

    /// The bytes of a put can be read or written from where they are.
    fn offer<P: Port>(&mut self, core: &mut Core<P>, token: Token) {
        if self.ends_with_its_stream(core, token) {
            return;
        }
        match self.state().piece(token).far {
            Far::Peer(_) => self.ask_peer(core, token),
            _ => self.next_part(core, token),
        }
    }

    /// The bytes of a get can be read.
    fn fetch<P: Port>(&mut self, core: &mut Core<P>, token: Token) {
        if self.ends_with_its_stream(core, token) {
            return;
        }
        match self.state().piece(token).near {
            Near::Chunk => self.state().waiting_in.push_back(Waiter::Mine(token)),
            Near::Fabric { .. } => self.next_part(core, token),
        }
    }

    /// Whether the piece's stream has failed: then it goes no further.
    fn ends_with_its_stream<P: Port>(&mut self, core: &mut Core<P>, token: Token) -> bool {
        let failed = core.check_stream(core.segments[token.0].pe).is_err();
        if failed {
            self.drop_piece(core, token);
        }
        failed
    }

    /// Asks the peer for its part, as soon as it may be asked for more.
    fn ask_peer<P: Port>(&mut self, core: &mut Core<P>, token: Token) {
        let pe = core.segments[token.0].pe;
        let peer = self.state().peer(pe);
        if peer.errands >= ERRANDS {
            peer.blocked.push(&mut core.segments, token.0);
            return;
        }
        peer.errands += 1;
        self.state().piece(token).counts = true;
        self.send_errand(core, token);
    }

    fn send_errand<P: Port>(&mut self, core: &mut Core<P>, token: Token) {
        let piece = *self.state().piece(token);
        let Far::Peer(spot) = piece.far else { return };
        let pe = core.segments[token.0].pe;
        let from = match (piece.near, piece.chunk, self.bouncing()) {
            (Near::Fabric { exposed, .. }, ..) => exposed,
            (Near::Chunk, Some(chunk), Some(bouncing)) => bouncing.exposure(chunk),
            // A get, which exposes nothing.
            _ => NOWHERE,
        };
        if piece.errand == Errand::Put {
            self.tell_keys(core, pe, from);
        }
        let segment = &mut core.segments[token.0];
        let (len, ticket) = (piece.len as u32, segment.new_ticket(token));
        let staged = match piece.errand {
            Errand::Put => Staged::Pull { to: spot, from, len, ticket },
            _ => Staged::Ask { from: spot, len, ticket },
        };
        let (slot, rail) = (segment.message, segment.rail);
        core.encode_into(slot, Body::Staged(staged));
        core.segments[token.0].stage = Stage::Ready;
        core.dispatch(token, rail);
    }

    /// Gets the next bytes of a piece moved by the fabric, as many as one segment takes.
    pub(in crate::engine) fn next_part<P: Port>(&mut self, core: &mut Core<P>, token: Token) {
        let piece = *self.state().piece(token);
        let (pe, rail) = (core.segments[token.0].pe, core.segments[token.0].rail);
        if core.recovers && core.paths.is_out(pe, rail) {
            return core.lose(token, false);
        }
        let remote_rail = core.paths.get(pe, rail).remote.rail();
        let (remote, key) = match piece.far {
            Far::Fabric { remote, key } => (remote, key),
            Far::Peer(_) => return,
            Far::Exposed(at) => {
                let peer = self.state().peer(pe);
                match peer.exposures.find(at, remote_rail) {
                    Some(found) => found,
                    None => return peer.keyless.push_back(token),
                }
            }
        };
        let (addr, desc) = match (piece.near, piece.chunk, self.bouncing()) {
            (Near::Fabric { desc, .. }, ..) => (piece.memory, desc),
            (Near::Chunk, Some(chunk), Some(bouncing)) => {
                (bouncing.addr(piece.errand, chunk), desc_of(bouncing.descs(), rail))
            }
            (Near::Chunk, ..) => return,
        };
        let most = core.rails[rail.index()].max_segment;
        let segment = &mut core.segments[token.0];
        let direction = match piece.errand {
            Errand::Put | Errand::Ask(_) => Direction::Write,
            Errand::Get | Errand::Pull(_) => Direction::Read,
        };
        segment.transfer = Transfer {
            direction,
            local: Local::Memory { addr: addr + piece.moved, desc },
            len: (piece.len - piece.moved).min(most),
            remote: remote + piece.moved as u64,
            key,
        };
        segment.stage = Stage::Ready;
        core.weigh_part(token);
        core.dispatch(token, rail);
    }

    /// The fabric has moved bytes of a piece. Takes the completion, except for the rail's own count;
    /// says whether it was of a piece in flight.
    #[cold]
    pub(in crate::engine) fn completed_staged<P: Port>(
        &mut self,
        core: &mut Core<P>,
        token: Token,
    ) -> bool {
        let Some(segment) = core.segments.away(token) else { return false };
        if !segment.kind.is_staged() || segment.stage != Stage::Posted {
            return false;
        }
        let (pe, len) = (segment.pe, segment.transfer.len);
        let piece = self.state().piece(token);
        piece.moved += len;
        let piece = *piece;
        core.segments[token.0].stage = Stage::Staged;
        if piece.moved < piece.len {
            self.next_part(core, token);
            return true;
        }
        if let (Errand::Get, Far::Exposed(_)) = (piece.errand, piece.far) {
            let ticket = core.segments[token.0].ticket(token);
            core.note(pe, What::Release { ticket });
            self.end_errand(core, pe, token);
        }
        match (piece.errand, piece.near) {
            (Errand::Put, _) | (Errand::Get, Near::Fabric { .. }) => self.drop_piece(core, token),
            _ => self.copy_in(core, token),
        }
        true
    }

    /// Copies what has landed in a piece's chunk to its place.
    fn copy_in<P: Port>(&mut self, core: &mut Core<P>, token: Token) {
        let waits = !self.state().landed.is_empty();
        if waits || !self.start_copy(core, token, CopyDirection::In) {
            self.state().landed.push_back(token);
        }
    }

    /// Starts the copy of a piece that has a chunk. False if it has to be tried again.
    pub(in crate::engine) fn start_copy<P: Port>(
        &mut self,
        core: &mut Core<P>,
        token: Token,
        direction: CopyDirection,
    ) -> bool {
        let Piece { errand, len, memory, chunk, .. } = *self.state().piece(token);
        let (Some(chunk), Some(bouncing)) = (chunk, self.bouncing()) else { return true };
        let copy = Copy { direction, memory, chunk: bouncing.addr(errand, chunk), len };
        match bouncing.copies.start(&copy, token.0) {
            Ok(Posted::Yes) => {
                self.state().copying += 1;
                true
            }
            Ok(Posted::Again) => false,
            Err(error) => {
                self.fail_piece(core, token, error);
                true
            }
        }
    }

    /// Moves what waits for copies and chunks.
    #[cold]
    pub(in crate::engine) fn pump<P: Port>(&mut self, core: &mut Core<P>) -> bool {
        let mut moved = false;
        while let Some(copied) = self.next_copied() {
            self.copied(core, copied);
            moved = true;
        }
        while let Some(token) = self.state().landed.front().copied() {
            if !self.start_copy(core, token, CopyDirection::In) {
                break;
            }
            self.state().landed.pop_front();
            moved = true;
        }
        moved |= self.give_chunks(core, CopyDirection::Out);
        moved | self.give_chunks(core, CopyDirection::In)
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

    /// Gives chunks of one direction to those who wait, in their order.
    fn give_chunks<P: Port>(&mut self, core: &mut Core<P>, direction: CopyDirection) -> bool {
        let mut moved = false;
        while let Some(waiter) = self.state().waiting(direction).front().copied() {
            let pe = match waiter {
                Waiter::Mine(token) => core.segments[token.0].pe,
                Waiter::Peer(wanted) => wanted.pe,
            };
            if core.check_stream(pe).is_err() {
                self.state().waiting(direction).pop_front();
                if let Waiter::Mine(token) = waiter {
                    self.drop_piece(core, token);
                }
                moved = true;
                continue;
            }
            let Some(bouncing) = self.bouncing() else { break };
            let chunks = bouncing.chunks(direction);
            let Some(chunk) = chunks.take() else { break };
            let token = match waiter {
                Waiter::Mine(token) => Some(token),
                Waiter::Peer(wanted) => self.enter_for_peer(core, &wanted),
            };
            let Some(token) = token else {
                if let Some(bouncing) = self.bouncing() {
                    bouncing.chunks(direction).give(chunk);
                }
                break;
            };
            self.state().piece(token).chunk = Some(chunk);
            if direction == CopyDirection::In {
                self.state().waiting(direction).pop_front();
                self.next_part(core, token);
            } else if self.start_copy(core, token, direction) {
                self.state().waiting(direction).pop_front();
            } else {
                // It keeps its place, and what it was given.
                self.leave_chunk(core, token);
                if let Waiter::Peer(_) = waiter {
                    self.leave_for_peer(core, token);
                }
                break;
            }
            moved = true;
        }
        moved
    }

    /// A copy has ended.
    fn copied<P: Port>(&mut self, core: &mut Core<P>, Copied { tag, result }: Copied) {
        let token = Token(tag);
        if let Err(error) = result {
            return self.fail_piece(core, token, error);
        }
        match self.state().piece(token).errand {
            Errand::Put => self.offer(core, token),
            Errand::Get => self.drop_piece(core, token),
            Errand::Pull(ticket) => self.end_for_peer(core, token, What::Pulled { ticket }),
            Errand::Ask(ticket) => self.expose(core, token, ticket),
        }
    }

    /// A piece cannot be copied.
    #[cold]
    fn fail_piece<P: Port>(&mut self, core: &mut Core<P>, token: Token, error: PortError) {
        let Piece { errand, len, .. } = *self.state().piece(token);
        let pe = core.segments[token.0].pe;
        match errand {
            Errand::Put | Errand::Get => {
                let failed = staging_failed(core.segments[token.0].what(), pe, len, error);
                core.fail_stream(pe, failed);
                self.drop_piece(core, token);
            }
            Errand::Pull(ticket) | Errand::Ask(ticket) => {
                self.end_for_peer(core, token, refusal(pe, ticket, &error.to_string()));
            }
        }
    }

    /// The peer has answered an errand: its token, if there is such an errand.
    pub(in crate::engine) fn answered<P: Port>(
        &self,
        core: &Core<P>,
        pe: Pe,
        ticket: Ticket,
    ) -> Option<Token> {
        let token = named_by(ticket);
        let segment = core.segments.away(token)?;
        let same = segment.kind == Kind::Staged
            && segment.stage == Stage::Sent
            && segment.pe == pe
            && segment.ticket(token) == ticket;
        same.then_some(token)
    }

    /// The peer has exposed what a get has asked for.
    pub(in crate::engine) fn exposed<P: Port>(
        &mut self,
        core: &mut Core<P>,
        token: Token,
        from: Exposure,
    ) {
        let segment = &mut core.segments[token.0];
        let message = std::mem::replace(&mut segment.message, NIL);
        segment.stage = Stage::Staged;
        if message != NIL {
            core.messages.forget_segment(message);
        }
        self.state().piece(token).far = Far::Exposed(from);
        self.fetch(core, token);
        self.pump(core);
    }

    /// The bytes that a get has asked for are here.
    pub(in crate::engine) fn loaded<P: Port>(
        &mut self,
        core: &mut Core<P>,
        token: Token,
        payload: &[u8],
    ) -> Result<(), String> {
        let Piece { len, memory: addr, near, .. } = *self.state().piece(token);
        if payload.len() != len {
            return Err(format!("{} bytes for a get of {len}", payload.len()));
        }
        let reach = match (near, core.regions.reach(addr)) {
            (_, reach @ (Reach::Fabric | Reach::Staged)) => reach,
            (Near::Fabric { .. }, _) => Reach::Direct,
            (Near::Chunk, _) => match self.bouncing() {
                Some(bouncing) => {
                    bouncing.copies.reach(addr, len).map_err(|error| error.to_string())?
                }
                None => Reach::Direct,
            },
        };
        match self.store_at(core, Place { addr, reach }, payload) {
            Ok(()) => self.drop_piece(core, token),
            Err(error) => self.fail_piece(core, token, error),
        }
        Ok(())
    }

    /// An errand of ours is over: the peer may be asked for another.
    pub(in crate::engine) fn end_errand<P: Port>(
        &mut self,
        core: &mut Core<P>,
        pe: Pe,
        token: Token,
    ) {
        if !std::mem::take(&mut self.state().piece(token).counts) {
            return;
        }
        let failed = core.check_stream(pe).is_err();
        self.state().peer(pe).errands -= 1;
        while let Some(next) = self.state().peer(pe).blocked.pop(&core.segments).map(Token) {
            if failed {
                // It does not count, so this does not come back here.
                self.drop_piece(core, next);
                continue;
            }
            self.ask_peer(core, next);
            break;
        }
    }

    /// What a piece has, as it ends: chunk, message, and its place among the errands.
    pub(in crate::engine) fn leave_piece<P: Port>(&mut self, core: &mut Core<P>, token: Token) {
        let segment = &mut core.segments[token.0];
        let (pe, stage) = (segment.pe, segment.stage);
        let message = std::mem::replace(&mut segment.message, NIL);
        core.give_message(message, stage);
        self.leave_chunk(core, token);
        self.end_errand(core, pe, token);
    }

    /// A piece of this lane's ends, done or not; or one of a peer's, whom nobody tells.
    pub(in crate::engine) fn drop_piece<P: Port>(&mut self, core: &mut Core<P>, token: Token) {
        core.unweigh(token, false);
        if core.segments[token.0].kind == Kind::ForPeer {
            return self.leave_for_peer(core, token);
        }
        self.leave_piece(core, token);
        core.end_dropped(token);
    }

    pub(in crate::engine) fn leave_chunk<P: Port>(&mut self, core: &mut Core<P>, token: Token) {
        self.state().moved = core.watchdog.stamp();
        let piece = self.state().piece(token);
        let (errand, chunk) = (piece.errand, piece.chunk.take());
        if let (Some(chunk), Some(bouncing)) = (chunk, self.bouncing()) {
            bouncing.chunks(errand.direction()).give(chunk);
        }
    }
}

/// What exposes nothing.
pub(in crate::engine) const NOWHERE: Exposure = Exposure { slot: u32::MAX, stamp: 0, offset: 0 };

#[cold]
pub(in crate::engine) fn staging_failed(
    what: &'static str,
    pe: Pe,
    len: usize,
    error: PortError,
) -> EngineError {
    EngineError::Staging { what, pe, len, error }
}
