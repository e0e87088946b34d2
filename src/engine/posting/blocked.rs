//! Blocked peers: those for whom the fabric has no room at present, as while a connection is made, though it may have
//! room for others.
//!
//! What is to go to such a peer over the rail leaves the rail's queue and waits by itself, in its order. Each turn
//! tries the first segment of a few blocked peers, in turn. So what is for others does not wait behind it, and a
//! fabric that has no room for anybody is asked no more than [`REFUSALS`] times.
//!
//! # Why nothing stays without a doorbell
//! A write that was to ring for those before it may find itself here. It is tried again until the fabric takes it, as
//! at the front of the rail's queue, and always with the doorbell.

use crate::engine::ids::{Pe, RailId, Token};
use crate::engine::port::Port;
use crate::engine::posting::dispatch::Left;
use crate::engine::posting::doorbell::Doorbell;
use crate::engine::posting::{Core, REFUSALS};
use crate::engine::state::segment::Stage;

impl<P: Port> Core<P> {
    /// Whether what is to go to a peer over a rail waits for that peer.
    #[inline]
    pub(super) fn is_blocked(&self, pe: Pe, rail: RailId) -> bool {
        self.rails[rail.index()].has_blocked()
            && self.streams.find(pe).is_some_and(|stream| stream.is_blocked(rail))
    }

    /// Lets a segment that is under way wait for its peer.
    #[cold]
    pub(super) fn block(&mut self, token: Token, rail: RailId) {
        let segment = &mut self.segments[token.0];
        segment.stage = Stage::Ready;
        let pe = segment.pe;
        let rails = self.rails.len();
        let Some(stream) = self.streams.find_mut(pe) else { return };
        let is_first = stream.block(&mut self.segments, token.0, (rail, rails));
        self.ready += 1;
        let state = &mut self.rails[rail.index()];
        state.counters.queued += 1;
        // It rings for them.
        state.unrung = 0;
        if is_first {
            state.blocked.push_back(pe);
        }
    }

    /// Tries again what waits for some of a rail's blocked peers. Whether any left.
    #[cold]
    pub(super) fn retry_blocked(&mut self, rail: RailId) -> bool {
        let (mut tried, mut served) = (0, 0);
        let mut any = false;
        for _ in 0..self.rails[rail.index()].blocked.len().min(REFUSALS) {
            let Some(pe) = self.rails[rail.index()].blocked.pop_front() else { break };
            let mut moved = false;
            if self.post_blocked(pe, rail, &mut moved) {
                self.rails[rail.index()].blocked.push_back(pe);
                tried += 1;
            }
            if moved {
                (served, any) = (tried, true);
            }
        }
        // The one behind the last that got something is first now.
        let blocked = &mut self.rails[rail.index()].blocked;
        if tried == blocked.len() {
            blocked.rotate_left(served);
        }
        any
    }

    /// Posts what waits for a peer, as far as it goes. Whether some still waits.
    fn post_blocked(&mut self, pe: Pe, rail: RailId, moved: &mut bool) -> bool {
        while let Some(index) = self.streams.find(pe).and_then(|stream| stream.first_blocked(rail))
        {
            let token = Token(index);
            let failed = self.check_stream(pe).is_err();
            let left = if failed { None } else { Some(self.launch(token, rail, Doorbell::Ring)) };
            if matches!(left, Some(Left::NoRoom | Left::Again)) {
                return true;
            }
            self.unblock(pe, rail);
            *moved = true;
            self.left_queue(token, rail, left);
        }
        false
    }

    /// Takes the first segment that waits for a peer, if any does.
    pub(in crate::engine) fn unblock(&mut self, pe: Pe, rail: RailId) -> Option<u32> {
        let stream = self.streams.find_mut(pe)?;
        let index = stream.unblock(&self.segments, rail)?;
        self.ready -= 1;
        Some(index)
    }

    /// Nothing waits for a peer over a rail any more: all of it was taken with [`Core::unblock`].
    pub(in crate::engine) fn forget_blocked(&mut self, pe: Pe, rail: RailId) {
        self.rails[rail.index()].blocked.retain(|other| *other != pe);
    }
}
