//! Pools of bounce buffers, one per direction, with the transfers that wait for a buffer.
//!
//! # Fair shares
//! An outbound buffer comes back when its peer has executed its message, so a peer that has stopped
//! returns none. A peer therefore takes another buffer only while it holds less than eight times as
//! many as are free, and the last one only while it holds none. With fewer than [`SHARED_FROM`]
//! buffers the first to ask gets the next one. Peers take turns, one buffer each.

use std::collections::VecDeque;

use crate::core::send::ATTEMPTS;
use crate::ids::Pe;

const SHARED_FROM: usize = 4;

/// Index of a buffer in its pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct BounceBuffer(u16);

#[derive(Debug, Default)]
struct PeerBuffers {
    waiting: VecDeque<u32>,
    taken: usize,
}

#[derive(Debug)]
pub(super) struct Pool {
    /// Offset of the first buffer in the bounce memory, and the length of each, in bytes.
    first: usize,
    len: usize,
    count: usize,
    free: Vec<BounceBuffer>,
    /// Peers with waiting transfers, in turn.
    ring: VecDeque<Pe>,
    /// Indexed by peer.
    peers: Vec<PeerBuffers>,
}

impl Pool {
    pub(super) fn new(first: usize, len: usize, count: u16) -> Self {
        let free = (0..count).rev().map(BounceBuffer).collect();
        let (ring, peers) = (VecDeque::new(), Vec::new());
        Self { first, len, count: count.into(), free, ring, peers }
    }

    fn peer(&mut self, pe: Pe) -> &mut PeerBuffers {
        if self.peers.len() <= pe.index() {
            self.peers.resize_with(pe.index() + 1, PeerBuffers::default);
        }
        &mut self.peers[pe.index()]
    }

    pub(super) fn offset(&self, BounceBuffer(buffer): BounceBuffer) -> usize {
        self.first + usize::from(buffer) * self.len
    }

    pub(super) fn is_waited_for(&self) -> bool {
        !self.ring.is_empty()
    }

    /// Queues a transfer for a buffer.
    pub(super) fn wait(&mut self, pe: Pe, token: u32) {
        let peer = self.peer(pe);
        peer.waiting.push_back(token);
        if peer.waiting.len() == 1 {
            self.ring.push_back(pe);
        }
    }

    /// Takes a buffer for a peer if its share allows another one.
    pub(super) fn take(&mut self, pe: Pe) -> Option<BounceBuffer> {
        let (free, count) = (self.free.len(), self.count);
        let peer = self.peer(pe);
        // A peer without a buffer may have any: its first one makes progress possible.
        let is_allowed = peer.taken == 0 || count < SHARED_FROM || free > (peer.taken / 8).max(1);
        if !is_allowed {
            return None;
        }
        let buffer = self.free.pop()?;
        self.peer(pe).taken += 1;
        Some(buffer)
    }

    /// Takes a buffer for the next waiting transfer that `may` have one, and whose peer may. Tries
    /// a few peers.
    pub(super) fn next(
        &mut self,
        mut may: impl FnMut(Pe, u32) -> bool,
    ) -> Option<(u32, BounceBuffer)> {
        if self.free.is_empty() {
            return None;
        }
        for _ in 0..self.ring.len().min(ATTEMPTS as usize) {
            let pe = self.ring.pop_front()?;
            let first = self.peer(pe).waiting.front();
            let is_next = first.is_some_and(|token| may(pe, *token));
            let Some(buffer) = is_next.then(|| self.take(pe)).flatten() else {
                // Its first one waits, or the peer has its share: the others come first.
                self.ring.push_back(pe);
                continue;
            };
            let peer = self.peer(pe);
            let token = peer.waiting.pop_front()?;
            if !peer.waiting.is_empty() {
                // One buffer each, then the next peer.
                self.ring.push_back(pe);
            }
            return Some((token, buffer));
        }
        None
    }

    pub(super) fn release(&mut self, pe: Pe, buffer: BounceBuffer) {
        self.peer(pe).taken -= 1;
        self.free.push(buffer);
    }

    pub(super) fn withdraw(&mut self, pe: Pe, token: u32) {
        let peer = self.peer(pe);
        peer.waiting.retain(|other| *other != token);
        if peer.waiting.is_empty() {
            self.ring.retain(|other| *other != pe);
        }
    }

    /// Removes all transfers of a peer from the queue.
    pub(super) fn forget(&mut self, pe: Pe) {
        self.peer(pe).waiting.clear();
        self.ring.retain(|other| *other != pe);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(count: u16, peers: &[u32]) -> Pool {
        let mut pool = Pool::new(0, 1024, count);
        peers.iter().for_each(|pe| pool.wait(Pe(*pe), *pe));
        pool
    }

    fn given(pool: &mut Pool) -> Vec<u32> {
        std::iter::from_fn(|| pool.next(|_, _| true)).map(|(token, _)| token).collect()
    }

    #[test]
    fn peers_take_turns() {
        let mut pool = waiting(100, &[1, 1, 1, 2, 2, 3]);
        assert_eq!(given(&mut pool), [1, 2, 3, 1, 2, 1]);
        assert!(!pool.is_waited_for());
    }

    #[test]
    fn empty_pool_changes_no_turn() {
        let mut pool = waiting(4, &(0..13).collect::<Vec<_>>());
        assert_eq!(given(&mut pool), [0, 1, 2, 3]);
        pool.release(Pe(0), BounceBuffer(0));
        assert_eq!(given(&mut pool), [4]);
    }

    #[test]
    fn stopped_peer_leaves_buffers_to_others() {
        for (count, most) in [(1, 1), (3, 3), (4, 3), (8, 7), (16, 15), (18, 16), (64, 57)] {
            let mut pool = waiting(count, &[1; 300]);
            assert_eq!(given(&mut pool).len(), most, "of {count}");
            pool.wait(Pe(2), 2);
            assert_eq!(given(&mut pool).contains(&2), count > 3, "of {count}");
        }
    }

    #[test]
    fn forgotten_peer_waits_no_longer() {
        let mut pool = waiting(4, &[1, 2, 1, 3]);
        pool.forget(Pe(1));
        assert_eq!(given(&mut pool), [2, 3]);
    }

    #[test]
    fn withdrawn_transfer_leaves_others() {
        let mut pool = waiting(4, &[1, 2]);
        pool.wait(Pe(1), 7);
        pool.withdraw(Pe(1), 1);
        assert_eq!(given(&mut pool), [7, 2]);
    }
}
