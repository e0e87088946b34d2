//! Pieces of puts and gets of staged memory: how they get on, step by step. What the ways are, and why
//! they cannot deadlock, is in [`crate::engine::staging::state`].

use crate::engine::error::EngineError;
use crate::engine::ids::{Pe, Token};
use crate::engine::lane::Lane;
use crate::engine::messages::notes::What;
use crate::engine::port::copies::{Copied, Copy, CopyDirection, Reach};
use crate::engine::port::{Direction, Local, Port, PortError, Posted, Transfer};
use crate::engine::staging::state::{ERRANDS, Errand, Far, Near, Piece, Waiter};
use crate::engine::state::regions::{Place, desc_of};
use crate::engine::state::segment::{Kind, NIL, Stage};
use crate::engine::wire::message::{Body, Ticket};
use crate::engine::wire::staged::{Exposure, Staged};

impl<P: Port> Lane<P> {
    /// A piece that no fence holds sets out.
    pub(in crate::engine) fn begin_piece(&mut self, token: Token) {
        self.segments[token.0].stage = Stage::Staged;
        let Piece { errand, near, far, .. } = *self.staging().piece(token);
        match (errand, near, far) {
            (Errand::Put, Near::Chunk, _) => {
                self.staging().waiting_out.push_back(Waiter::Mine(token));
            }
            (Errand::Put, ..) => self.offer(token),
            (_, _, Far::Peer(_)) => self.ask_peer(token),
            _ => self.fetch(token),
        }
    }

    /// The bytes of a put can be read or written from where they are.
    fn offer(&mut self, token: Token) {
        if self.ends_with_its_stream(token) {
            return;
        }
        match self.staging().piece(token).far {
            Far::Peer(_) => self.ask_peer(token),
            _ => self.next_part(token),
        }
    }

    /// The bytes of a get can be read.
    fn fetch(&mut self, token: Token) {
        if self.ends_with_its_stream(token) {
            return;
        }
        match self.staging().piece(token).near {
            Near::Chunk => self.staging().waiting_in.push_back(Waiter::Mine(token)),
            Near::Fabric { .. } => self.next_part(token),
        }
    }

    /// Whether the piece's stream has failed: then it goes no further.
    fn ends_with_its_stream(&mut self, token: Token) -> bool {
        let failed = self.check_stream(self.segments[token.0].pe).is_err();
        if failed {
            self.drop_segment(token);
        }
        failed
    }

    /// Asks the peer for its part, as soon as it may be asked for more.
    fn ask_peer(&mut self, token: Token) {
        let pe = self.segments[token.0].pe;
        let Some(stream) = self.streams.find_mut(pe) else { return };
        let link = stream.link().staged();
        if link.errands >= ERRANDS {
            link.blocked.push(&mut self.segments, token.0);
            return;
        }
        link.errands += 1;
        self.staging().piece(token).counts = true;
        self.send_errand(token);
    }

    fn send_errand(&mut self, token: Token) {
        let piece = *self.staging().piece(token);
        let Far::Peer(spot) = piece.far else { return };
        let pe = self.segments[token.0].pe;
        let from = match (piece.near, piece.chunk, self.bouncing()) {
            (Near::Fabric { exposed, .. }, ..) => exposed,
            (Near::Chunk, Some(chunk), Some(bouncing)) => bouncing.exposure(chunk),
            // A get, which exposes nothing.
            _ => NOWHERE,
        };
        if piece.errand == Errand::Put {
            self.tell_keys(pe, from);
        }
        let segment = &mut self.segments[token.0];
        let (len, ticket) = (piece.len as u32, segment.new_ticket(token));
        let staged = match piece.errand {
            Errand::Put => Staged::Pull { to: spot, from, len, ticket },
            _ => Staged::Ask { from: spot, len, ticket },
        };
        let (slot, rail) = (segment.message, segment.rail);
        self.encode_into(slot, Body::Staged(staged));
        self.segments[token.0].stage = Stage::Ready;
        self.dispatch(token, rail);
    }

    /// Gets the next bytes of a piece moved by the fabric, as many as one segment takes.
    pub(in crate::engine) fn next_part(&mut self, token: Token) {
        let piece = *self.staging().piece(token);
        let (pe, rail) = (self.segments[token.0].pe, self.segments[token.0].rail);
        if self.health.as_deref().is_some_and(|health| health.is_out(pe, rail)) {
            return self.lose(token, false);
        }
        let remote_rail = self.paths.get(pe, rail).remote.rail();
        let (remote, key) = match piece.far {
            Far::Fabric { remote, key } => (remote, key),
            Far::Peer(_) => return,
            Far::Exposed(at) => {
                let Some(stream) = self.streams.find_mut(pe) else { return };
                let link = stream.link().staged();
                match link.exposures.find(at, remote_rail) {
                    Some(found) => found,
                    None => return link.keyless.push_back(token),
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
        let most = self.rails[rail.index()].max_segment;
        let segment = &mut self.segments[token.0];
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
        self.weigh_part(token);
        self.dispatch(token, rail);
    }

    /// The fabric has moved bytes of a piece. Takes the completion, except for the rail's own count;
    /// says whether it was of a piece in flight.
    #[cold]
    pub(in crate::engine) fn completed_staged(&mut self, token: Token) -> bool {
        let Some(segment) = self.segments.away(token) else { return false };
        if !segment.kind.is_staged() || segment.stage != Stage::Posted {
            return false;
        }
        let (pe, len) = (segment.pe, segment.transfer.len);
        let piece = self.staging().piece(token);
        piece.moved += len;
        let piece = *piece;
        self.segments[token.0].stage = Stage::Staged;
        if piece.moved < piece.len {
            self.next_part(token);
            return true;
        }
        if let (Errand::Get, Far::Exposed(_)) = (piece.errand, piece.far) {
            let ticket = self.segments[token.0].ticket(token);
            self.note(pe, What::Release { ticket });
            self.end_errand(pe, token);
        }
        match (piece.errand, piece.near) {
            (Errand::Put, _) | (Errand::Get, Near::Fabric { .. }) => self.drop_segment(token),
            _ => self.copy_in(token),
        }
        true
    }

    /// Copies what has landed in a piece's chunk to its place.
    fn copy_in(&mut self, token: Token) {
        let waits = !self.staging().landed.is_empty();
        if waits || !self.start_copy(token, CopyDirection::In) {
            self.staging().landed.push_back(token);
        }
    }

    /// Starts the copy of a piece that has a chunk. False if it has to be tried again.
    pub(in crate::engine) fn start_copy(&mut self, token: Token, direction: CopyDirection) -> bool {
        let Piece { errand, len, memory, chunk, .. } = *self.staging().piece(token);
        let (Some(chunk), Some(bouncing)) = (chunk, self.bouncing()) else { return true };
        let copy = Copy { direction, memory, chunk: bouncing.addr(errand, chunk), len };
        match bouncing.copies.start(&copy, token.0) {
            Ok(Posted::Yes) => {
                self.staging().copying += 1;
                true
            }
            Ok(Posted::Again) => false,
            Err(error) => {
                self.fail_piece(token, error);
                true
            }
        }
    }

    /// Moves what waits for copies and chunks.
    #[cold]
    pub(in crate::engine) fn pump(&mut self) -> bool {
        let mut moved = false;
        while let Some(copied) = self.next_copied() {
            self.copied(copied);
            moved = true;
        }
        while let Some(token) = self.staging().landed.front().copied() {
            if !self.start_copy(token, CopyDirection::In) {
                break;
            }
            self.staging().landed.pop_front();
            moved = true;
        }
        moved |= self.give_chunks(CopyDirection::Out);
        moved | self.give_chunks(CopyDirection::In)
    }

    fn next_copied(&mut self) -> Option<Copied> {
        let staging = self.staging.as_deref_mut()?;
        if staging.copying == 0 {
            return None;
        }
        let copied = staging.bouncing.as_mut()?.copies.poll()?;
        staging.copying -= 1;
        Some(copied)
    }

    /// Gives chunks of one direction to those who wait, in their order.
    fn give_chunks(&mut self, direction: CopyDirection) -> bool {
        let mut moved = false;
        while let Some(waiter) = self.staging().waiting(direction).front().copied() {
            let pe = match waiter {
                Waiter::Mine(token) => self.segments[token.0].pe,
                Waiter::Peer(wanted) => wanted.pe,
            };
            if self.check_stream(pe).is_err() {
                self.staging().waiting(direction).pop_front();
                if let Waiter::Mine(token) = waiter {
                    self.drop_segment(token);
                }
                moved = true;
                continue;
            }
            let Some(bouncing) = self.bouncing() else { break };
            let chunks = bouncing.chunks(direction);
            let Some(chunk) = chunks.take() else { break };
            let token = match waiter {
                Waiter::Mine(token) => Some(token),
                Waiter::Peer(wanted) => self.enter_for_peer(&wanted),
            };
            let Some(token) = token else {
                if let Some(bouncing) = self.bouncing() {
                    bouncing.chunks(direction).give(chunk);
                }
                break;
            };
            self.staging().piece(token).chunk = Some(chunk);
            if direction == CopyDirection::In {
                self.staging().waiting(direction).pop_front();
                self.next_part(token);
            } else if self.start_copy(token, direction) {
                self.staging().waiting(direction).pop_front();
            } else {
                // It keeps its place, and what it was given.
                self.leave_chunk(token);
                if let Waiter::Peer(_) = waiter {
                    self.leave_for_peer(token);
                }
                break;
            }
            moved = true;
        }
        moved
    }

    /// A copy has ended.
    fn copied(&mut self, Copied { tag, result }: Copied) {
        let token = Token(tag);
        if let Err(error) = result {
            return self.fail_piece(token, error);
        }
        match self.staging().piece(token).errand {
            Errand::Put => self.offer(token),
            Errand::Get => self.drop_segment(token),
            Errand::Pull(ticket) => self.end_for_peer(token, What::Pulled { ticket }),
            Errand::Ask(ticket) => self.expose(token, ticket),
        }
    }

    /// A piece cannot be copied.
    #[cold]
    fn fail_piece(&mut self, token: Token, error: PortError) {
        let Piece { errand, len, .. } = *self.staging().piece(token);
        let pe = self.segments[token.0].pe;
        match errand {
            Errand::Put | Errand::Get => {
                let failed = staging_failed(self.segments[token.0].what(), pe, len, error);
                self.fail_stream(pe, failed);
                self.drop_segment(token);
            }
            Errand::Pull(ticket) | Errand::Ask(ticket) => {
                self.end_for_peer(token, self.refusal(pe, ticket, &error.to_string()));
            }
        }
    }

    /// The peer has answered an errand: its token, if there is such an errand.
    pub(in crate::engine) fn answered(&self, pe: Pe, ticket: Ticket) -> Option<Token> {
        let token = crate::engine::state::segment::named_by(ticket);
        let segment = self.segments.away(token)?;
        let same = segment.kind == Kind::Staged
            && segment.stage == Stage::Sent
            && segment.pe == pe
            && segment.ticket(token) == ticket;
        same.then_some(token)
    }

    /// The peer has exposed what a get has asked for.
    pub(in crate::engine) fn exposed(&mut self, token: Token, from: Exposure) {
        let segment = &mut self.segments[token.0];
        let message = std::mem::replace(&mut segment.message, NIL);
        segment.stage = Stage::Staged;
        if message != NIL {
            self.messages.forget_segment(message);
        }
        self.staging().piece(token).far = Far::Exposed(from);
        self.fetch(token);
        self.pump();
    }

    /// The bytes that a get has asked for are here.
    pub(in crate::engine) fn loaded(&mut self, token: Token, payload: &[u8]) -> Result<(), String> {
        let Piece { len, memory: addr, near, .. } = *self.staging().piece(token);
        if payload.len() != len {
            return Err(format!("{} bytes for a get of {len}", payload.len()));
        }
        let reach = match (near, self.regions.reach(addr)) {
            (_, reach @ (Reach::Fabric | Reach::Staged)) => reach,
            (Near::Fabric { .. }, _) => Reach::Direct,
            (Near::Chunk, _) => match self.bouncing() {
                Some(bouncing) => {
                    bouncing.copies.reach(addr, len).map_err(|error| error.to_string())?
                }
                None => Reach::Direct,
            },
        };
        match self.store_at(Place { addr, reach }, payload) {
            Ok(()) => self.drop_segment(token),
            Err(error) => self.fail_piece(token, error),
        }
        Ok(())
    }

    /// An errand of ours is over: the peer may be asked for another.
    pub(in crate::engine) fn end_errand(&mut self, pe: Pe, token: Token) {
        if !std::mem::take(&mut self.staging().piece(token).counts) {
            return;
        }
        let Some(stream) = self.streams.find_mut(pe) else { return };
        let failed = stream.error.is_some();
        let link = stream.link().staged();
        link.errands -= 1;
        while let Some(next) = self.next_blocked(pe) {
            if failed {
                // It does not count, so this does not come back here.
                self.drop_segment(next);
                continue;
            }
            self.ask_peer(next);
            break;
        }
    }

    fn next_blocked(&mut self, pe: Pe) -> Option<Token> {
        let Self { streams, segments, .. } = self;
        let link = streams.find_mut(pe)?.link().staged();
        link.blocked.pop(segments).map(Token)
    }

    /// What a piece has, as it ends: chunk, message, and its place among the errands.
    pub(in crate::engine) fn leave_piece(&mut self, token: Token) {
        let segment = &mut self.segments[token.0];
        let (pe, stage) = (segment.pe, segment.stage);
        let message = std::mem::replace(&mut segment.message, NIL);
        if message != NIL {
            if stage == Stage::Sent {
                self.messages.forget_segment(message);
            } else {
                self.messages.give(message);
            }
        }
        self.leave_chunk(token);
        self.end_errand(pe, token);
    }

    pub(in crate::engine) fn leave_chunk(&mut self, token: Token) {
        self.staging().moved = self.watchdog.stamp();
        let piece = self.staging().piece(token);
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
