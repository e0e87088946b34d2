//! What peers ask for about staged memory of this process. How it goes on from there is in
//! [`crate::engine::staging::pieces`], with the lane's own pieces.

use std::sync::Arc;

use log::error;

use crate::engine::ids::{Pe, Token};
use crate::engine::lane::Lane;
use crate::engine::messages::notes::{NO_TICKET, Note, What};
use crate::engine::port::{Direction, Port};
use crate::engine::staging::state::{ERRANDS, Errand, FOR_PEERS, Far, Near, Piece, Waiter, Wanted};
use crate::engine::state::batch::Batch;
use crate::engine::state::segment::{Kind, NIL, Stage};
use crate::engine::wire::message::{Spot, Ticket};
use crate::engine::wire::staged::{Exposure, KEYS_PER_MESSAGE, Keys, MAX_PAYLOAD, Staged};

impl<P: Port> Lane<P> {
    /// Carries out a request that has a number.
    pub(in crate::engine) fn asked_for(
        &mut self,
        pe: Pe,
        staged: &Staged<'_>,
    ) -> Result<(), String> {
        self.sync_regions();
        match *staged {
            Staged::Put { to, payload } => {
                let place = self.regions.locate(to, payload.len()).map_err(|e| e.to_string())?;
                self.store_at(place, payload).map_err(|e| e.to_string())
            }
            Staged::Pull { to, from, len, ticket } => {
                self.want(pe, Errand::Pull(ticket), to, from, len as usize, ticket);
                Ok(())
            }
            Staged::Ask { from, len, ticket } => {
                let nothing = Exposure { slot: 0, stamp: 0, offset: 0 };
                self.want(pe, Errand::Ask(ticket), from, nothing, len as usize, ticket);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Takes in an answer, or news of the peer's regions.
    pub(in crate::engine) fn told(&mut self, pe: Pe, staged: &Staged<'_>) -> Result<(), String> {
        match *staged {
            Staged::Put { .. } | Staged::Pull { .. } | Staged::Ask { .. } => {}
            Staged::Pulled { ticket } => {
                if let Some(token) = self.answered(pe, ticket) {
                    self.drop_segment(token);
                }
            }
            Staged::Exposed { ticket, from } => {
                if let Some(token) = self.answered(pe, ticket) {
                    self.exposed(token, from);
                }
            }
            Staged::Loaded { ticket, payload } => {
                if let Some(token) = self.answered(pe, ticket) {
                    return self.loaded(token, payload);
                }
            }
            Staged::Refused { ticket, why } => self.was_refused(pe, ticket, why),
            Staged::Release { ticket } => self.released(pe, ticket),
            Staged::Keys(keys) => self.learn_keys(pe, &keys),
        }
        Ok(())
    }

    /// A peer wants bytes stored or exposed.
    fn want(
        &mut self,
        pe: Pe,
        errand: Errand,
        spot: Spot,
        from: Exposure,
        len: usize,
        ticket: Ticket,
    ) {
        let place = match self.regions.locate(spot, len) {
            Ok(place) => place,
            Err(fault) => return self.refuse(pe, ticket, &fault.to_string()),
        };
        if let (Errand::Ask(_), true) = (errand, len <= MAX_PAYLOAD) {
            return self.note(pe, What::Loaded { ticket, from: place, len });
        }
        let most = self.bouncing().map_or(0, |bouncing| bouncing.bounce.chunk_len);
        if len > most {
            let why = format!("{len} bytes at once, and the bounce memory's chunks have {most}");
            return self.refuse(pe, ticket, &why);
        }
        let waiter = Waiter::Peer(Wanted { pe, errand, place, len, from });
        self.staging().waiting(errand.direction()).push_back(waiter);
        self.pump();
    }

    /// Gives what a peer wants a segment. None while all that were set aside are in use.
    pub(in crate::engine) fn enter_for_peer(&mut self, wanted: &Wanted) -> Option<Token> {
        let Wanted { pe, errand, place, len, from } = *wanted;
        if self.staging().for_peers >= FOR_PEERS {
            return None;
        }
        // It may be in the middle of a submission, to whose batch this does not belong.
        let submitted = self.segments.batches.enter(Batch::NONE);
        let token = self.segments.take();
        self.segments.batches.enter(submitted);
        let token = token?;
        let Some(path) = self.piece_path(pe) else {
            self.segments.give_unused(token);
            return None;
        };
        let rail = path.rail;
        self.staging().for_peers += 1;
        let segment = &mut self.segments[token.0];
        segment.pe = pe;
        segment.born = self.watchdog.stamp();
        segment.direction = Direction::Read;
        segment.kind = Kind::ForPeer;
        segment.stage = Stage::Staged;
        segment.message = NIL;
        segment.rail = rail;
        segment.transfer.len = len;
        let (near, far) = (Near::Chunk, Far::Exposed(from));
        *self.staging().piece(token) =
            Piece { errand, len, memory: place.addr, near, far, ..Piece::NONE };
        Some(token)
    }

    /// Gives the segment back.
    pub(in crate::engine) fn leave_for_peer(&mut self, token: Token) {
        self.leave_chunk(token);
        self.segments.give(token);
        self.staging().for_peers -= 1;
    }

    /// What a peer wanted is done, or cannot be.
    pub(in crate::engine) fn end_for_peer(&mut self, token: Token, answer: What) {
        let pe = self.segments[token.0].pe;
        self.leave_for_peer(token);
        self.note(pe, answer);
    }

    /// What a peer asked for is in a chunk, where it may be read until it says that it has been.
    pub(in crate::engine) fn expose(&mut self, token: Token, ticket: Ticket) {
        let pe = self.segments[token.0].pe;
        let chunk = self.staging().piece(token).chunk;
        let (Some(chunk), Some(bouncing)) = (chunk, self.bouncing()) else { return };
        let from = bouncing.exposure(chunk);
        self.tell_keys(pe, from);
        self.note(pe, What::Exposed { ticket, from });
        self.staging().lent.push(token);
    }

    /// A peer has read what was exposed to it.
    fn released(&mut self, pe: Pe, ticket: Ticket) {
        let Self { staging, segments, .. } = self;
        let Some(staging) = staging.as_deref_mut() else { return };
        let same = |token: &Token| {
            segments[token.0].pe == pe && staging.peek(*token).errand == Errand::Ask(ticket)
        };
        let Some(at) = staging.lent.iter().position(same) else { return };
        let token = staging.lent.swap_remove(at);
        self.leave_for_peer(token);
        self.pump();
    }

    /// Tells a peer the keys of a region of ours, unless it knows them.
    pub(in crate::engine) fn tell_keys(&mut self, pe: Pe, of: Exposure) {
        let Some(stream) = self.streams.find_mut(pe) else { return };
        if !stream.link().staged().exposures.tell(of.slot, of.stamp) {
            return;
        }
        let Some(view) = self.regions.named(of.slot, of.stamp) else { return };
        for first in (0..view.keys.len()).step_by(KEYS_PER_MESSAGE) {
            self.note(pe, What::Keys { view: Arc::clone(&view), first: first as u8 });
        }
    }

    fn learn_keys(&mut self, pe: Pe, keys: &Keys<'_>) {
        let Some(stream) = self.streams.find_mut(pe) else { return };
        let link = stream.link().staged();
        link.exposures.learn(keys);
        // Those that still lack theirs come back to the end.
        for _ in 0..link.keyless.len() {
            let Some(stream) = self.streams.find_mut(pe) else { return };
            let Some(token) = stream.link().staged().keyless.pop_front() else { return };
            self.next_part(token);
        }
    }

    /// A peer cannot do what this PE has asked for.
    #[cold]
    fn was_refused(&mut self, pe: Pe, ticket: Ticket, why: &str) {
        use crate::engine::error::EngineError::PeerRefused;
        let why = why.to_owned();
        match self.answered(pe, ticket) {
            Some(token) => {
                let segment = &self.segments[token.0];
                let (what, len) = (segment.what(), segment.transfer.len);
                self.fail_stream(pe, PeerRefused { what, pe, len, why });
                self.drop_segment(token);
            }
            None if ticket == NO_TICKET => {
                let what = "a put, signal or atomic";
                self.fail_stream(pe, PeerRefused { what, pe, len: 0, why });
            }
            None => {}
        }
    }

    /// Tells a peer that something cannot be done, and the user.
    pub(in crate::engine) fn refuse(&mut self, pe: Pe, ticket: Ticket, why: &str) {
        let refusal = self.refusal(pe, ticket, why);
        self.note(pe, refusal);
    }

    #[cold]
    pub(in crate::engine) fn refusal(&self, pe: Pe, ticket: Ticket, why: &str) -> What {
        error!(target: "TRANSPORT", "{pe} asks for something that cannot be done: {why}");
        What::Refused { ticket, why: why.into() }
    }

    /// Notes something for a peer.
    pub(in crate::engine) fn note(&mut self, pe: Pe, what: What) {
        self.notes.push_back(Note { pe, what });
    }
}

const _: () = assert!(ERRANDS <= FOR_PEERS);
