//! Blocked peers: those for whom the fabric has no room at present, as while a connection is made,
//! though it may have room for others.
//!
//! What is to go to such a peer over the rail leaves the rail's queue and waits by itself, in its
//! order. Each iteration tries the first segment of a few blocked peers, in turn. So what is for
//! others does not wait behind it, and a fabric that has no room for anybody is asked a few times
//! only.
//!
//! # Why nothing stays without a doorbell
//! A write that was to ring for those before it may find itself here. It is tried again until the
//! fabric takes it, as at the front of the rail's queue, and always with the doorbell.

use crate::ids::{Pe, RailId, WrId};
use crate::port::Port;
use crate::posting::Core;
use crate::posting::transmit::dispatch::Left;
use crate::posting::transmit::doorbell::Doorbell;
use crate::state::connection::Connection;
use crate::state::segment::Stage;

impl<P: Port> Core<P> {
    /// Whether what is to go to a peer over a rail waits for that peer.
    #[inline]
    pub(in crate::posting) fn is_blocked(&self, pe: Pe, rail: RailId) -> bool {
        let state = &self.transmit.rails[rail.index()];
        state.has_blocked()
            && self.peers.find(pe).is_some_and(Connection::has_blocked)
            && state.blocked.has(pe)
    }

    /// Lets a segment that is under way wait for its peer.
    #[cold]
    pub(in crate::posting) fn block(&mut self, wr_id: WrId, rail: RailId) {
        let segment = &mut self.transmit.segments[wr_id.0];
        segment.stage = Stage::Ready;
        let pe = segment.pe;
        let Some(connection) = self.peers.find_mut(pe) else { return };
        connection.block();
        self.transmit.ready += 1;
        let state = &mut self.transmit.rails[rail.index()];
        state.counters.queued += 1;
        // It rings for them.
        state.unrung = 0;
        state.blocked.push(pe, wr_id.0);
    }

    /// Tries again what waits for some of a rail's blocked peers. Whether any left.
    #[cold]
    pub(in crate::posting) fn retry_blocked(&mut self, rail: RailId) -> bool {
        let mut any = false;
        let mut walk = self.transmit.rails[rail.index()].blocked.walk();
        while let Some(pe) = self.transmit.rails[rail.index()].blocked.next(&mut walk) {
            let served = self.post_blocked(pe, rail);
            self.transmit.rails[rail.index()].blocked.tried(&mut walk, pe, served);
            any |= served;
        }
        any
    }

    fn post_blocked(&mut self, pe: Pe, rail: RailId) -> bool {
        let mut moved = false;
        while let Some(index) = self.transmit.rails[rail.index()].blocked.front(pe) {
            let wr_id = WrId(*index);
            let failed = self.peers.check(pe).is_err();
            let left = if failed { None } else { Some(self.launch(wr_id, rail, Doorbell::Ring)) };
            if matches!(left, Some(Left::NoRoom | Left::Again)) {
                break;
            }
            self.unblock(pe, rail);
            moved = true;
            self.left_queue(wr_id, rail, left);
        }
        moved
    }

    pub(crate) fn unblock(&mut self, pe: Pe, rail: RailId) -> Option<WrId> {
        let index = self.transmit.rails[rail.index()].blocked.pop(pe)?;
        if let Some(connection) = self.peers.find_mut(pe) {
            connection.unblock();
        }
        self.transmit.ready -= 1;
        Some(WrId(index))
    }
}
