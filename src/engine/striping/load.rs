//! The paths of what goes out now rather than when a rail wants it, by load all the same; and the bytes that
//! each rail has ahead.

use crate::engine::error::EngineError;
use crate::engine::ids::{Pe, Token};
use crate::engine::lane::Lane;
use crate::engine::port::Port;
use crate::engine::request::Request;
use crate::engine::state::operation::OpId;
use crate::engine::state::paths::Hop;
use crate::engine::state::segment::{Kind, Segment, Stage};
use crate::engine::state::stream::Stream;

impl<P: Port> Lane<P> {
    /// The path of a put of `len` bytes that is to go by one rail, with what follows it.
    pub(in crate::engine) fn pinned_path(
        &mut self,
        pe: Pe,
        len: usize,
    ) -> Result<Hop, EngineError> {
        let next = self.stream_to(pe)?.next;
        if len < self.balance.weighed_from {
            return Ok(next);
        }
        let now = self.port.now();
        // Where all have much ahead, waiting for one would keep those behind it waiting too.
        let hop = self.pick(pe, len, len as u64, now);
        Ok(hop.unwrap_or_else(|| self.path_in_turn(pe, now)))
    }

    /// The path whose turn it is, as often as the rails' rates say.
    fn path_in_turn(&mut self, pe: Pe, now: u64) -> Hop {
        let usable = self.usable(pe);
        self.paths.get(pe, self.balance.next_in_turn(now, usable))
    }

    /// The rails that what goes to a peer may be given to now, a bit for each: those whose path to it is
    /// in service, and of these the ones that are not about to be closed, if there are any.
    pub(in crate::engine) fn usable(&self, pe: Pe) -> u32 {
        let reach = self.paths.reach(pe);
        let Some(health) = self.health.as_deref() else { return reach };
        let in_service = health.find(pe).map_or(reach, |peer| peer.in_service);
        let bit = |at: usize| u32::from(!self.rails[at].is_paused()) << at;
        let running = (0..self.rails.len()).fold(0, |bits, at| bits | bit(at));
        if in_service & running == 0 { in_service } else { in_service & running }
    }

    /// The path of what cannot wait for a rail, but is no short operation either: pieces of staged memory.
    pub(in crate::engine) fn piece_path(&mut self, pe: Pe) -> Option<Hop> {
        if self.balance.is_on() {
            let now = self.port.now();
            return Some(self.path_in_turn(pe, now));
        }
        let Self { streams, paths, .. } = self;
        let stream = streams.find_mut(pe)?;
        let next = stream.next;
        stream.rotate(paths);
        Some(next)
    }

    /// As [`Lane::weigh`], for the part of a piece that leaves now.
    pub(in crate::engine) fn weigh_part(&mut self, token: Token) {
        if self.balance.is_on() {
            let now = self.port.now();
            self.weigh(token, now);
        }
    }

    /// As [`Lane::submit`] of a put of one segment, by the path given. `number` is that of the ordered put,
    /// if it has one.
    pub(in crate::engine) fn submit_pinned(
        &mut self,
        request: &Request<'_>,
        hop: &Hop,
        number: Option<u32>,
        sent: &mut usize,
    ) -> Result<(), EngineError> {
        let pe = request.pe;
        self.check_stream(pe)?;
        let closed = self.streams.find(pe).is_some_and(Stream::is_closed);
        let weighed = !closed && request.len >= self.balance.weighed_from;
        let has_room = if weighed { self.bulks.has_cut_room() } else { self.has_transfer_room() };
        if request.len == 0 || !has_room {
            return Ok(());
        }
        let transfer = self.transfer(request, 0, request.len, hop)?;
        *sent = request.len;
        let data = number.unwrap_or(0);
        if weighed {
            let now = self.port.now();
            let kind = if number.is_some() { Kind::Ordered } else { Kind::Weighed };
            self.send_cut_as(kind, data, pe, hop, transfer, OpId::NONE, now);
        } else if let Some(token) = self.segments.take() {
            let kind = if number.is_some() { Kind::Ordered } else { Kind::Transfer };
            self.fill(token, pe, hop, transfer, OpId::NONE, kind);
            self.segments[token.0].data = data;
            self.set_out(token);
        }
        self.check_stream(pe)
    }

    /// Counts a segment's bytes among those that its rail has ahead.
    pub(in crate::engine) fn weigh(&mut self, token: Token, now: u64) {
        let rails = self.rails.len();
        let segment = &mut self.segments[token.0];
        let (rail, len) = (segment.rail, segment.transfer.len);
        segment.weighed = true;
        self.rails[rail.index()].counters.weighed += 1;
        if let Some(stream) = self.streams.find_mut(segment.pe) {
            stream.ahead(rails)[rail.index()] += len as u64;
        }
        self.balance.give(rail, len, now);
    }

    /// As [`Lane::unload`], of a segment that ends or, if it is a part of a piece, has ended. With a cut
    /// ends the use of its slot, too.
    pub(in crate::engine) fn unweigh(&mut self, token: Token, done: bool) {
        if std::mem::take(&mut self.segments[token.0].cut) {
            self.bulks.cuts -= 1;
            self.bulks.stirred = true;
        }
        self.unload(token, done);
    }

    /// Counts its bytes no longer among those that its rail has ahead, if they were. `done` says whether
    /// the rail has moved them.
    pub(in crate::engine) fn unload(&mut self, token: Token, done: bool) {
        let segment = &mut self.segments[token.0];
        if !std::mem::take(&mut segment.weighed) {
            return;
        }
        let (rail, len) = (segment.rail, segment.transfer.len);
        self.bulks.stirred = true;
        let rails = self.rails.len();
        if let Some(stream) = self.streams.find_mut(segment.pe) {
            stream.ahead(rails)[rail.index()] -= len as u64;
        }
        if done {
            let now = self.port.now();
            self.balance.done(rail, len, now);
        } else {
            self.balance.take_back(rail, len);
        }
    }

    /// As [`Lane::unweigh`] of a segment that has completed, before it is known whether there is one.
    pub(in crate::engine) fn unweigh_completed(&mut self, token: Token) {
        let posted = |segment: &Segment| segment.stage == Stage::Posted;
        if self.segments.away(token).is_some_and(posted) {
            self.unweigh(token, true);
        }
    }
}
