//! Bounce buffers of one direction, and the transfers that wait for one.
//!
//! # Shares
//! A buffer comes back when its peer has read it; a peer that has stopped returns none. So a peer
//! takes another buffer only while it holds less than eight times what is free, and the last one
//! only while it holds none. Where there are fewer than [`SHARED_FROM`] buffers, whoever is first
//! has the next one. Peers take turns, one buffer each.

use std::collections::VecDeque;

use crate::core::send::ATTEMPTS;

const SHARED_FROM: usize = 4;

/// Names a buffer among those of its direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Buffer(u16);

#[derive(Debug, Default)]
struct OfPeer {
    waiting: VecDeque<u32>,
    held: usize,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Pool {
    /// Offset of the first buffer in the bounce memory, and the length of each.
    first: usize,
    len: usize,
    count: usize,
    free: Vec<Buffer>,
    /// Peers with transfers that wait, in turn.
    ring: VecDeque<u32>,
    /// By peer.
    peers: Vec<OfPeer>,
}

impl Pool {
    /// `count` buffers of `len` bytes, from offset `first` on.
    pub(super) fn new(first: usize, len: usize, count: u16) -> Self {
        let free = (0..count).rev().map(Buffer).collect();
        let (ring, peers) = (VecDeque::new(), Vec::new());
        Self { first, len, count: count.into(), free, ring, peers }
    }

    fn peer(&mut self, at: u32) -> &mut OfPeer {
        let at = at as usize;
        if self.peers.len() <= at {
            self.peers.resize_with(at + 1, OfPeer::default);
        }
        &mut self.peers[at]
    }

    /// Offset of a buffer in the bounce memory.
    pub(super) fn offset(&self, Buffer(buffer): Buffer) -> usize {
        self.first + usize::from(buffer) * self.len
    }

    pub(super) fn is_waited_for(&self) -> bool {
        !self.ring.is_empty()
    }

    /// Has a transfer wait for a buffer.
    pub(super) fn wait(&mut self, at: u32, token: u32) {
        let peer = self.peer(at);
        peer.waiting.push_back(token);
        if peer.waiting.len() == 1 {
            self.ring.push_back(at);
        }
    }

    /// Takes a buffer for a peer, if it may have one now.
    pub(super) fn take(&mut self, at: u32) -> Option<Buffer> {
        let (free, count) = (self.free.len(), self.count);
        let peer = self.peer(at);
        let may = peer.held == 0 || count < SHARED_FROM || free > (peer.held / 8).max(1);
        if free == 0 || !may {
            return None;
        }
        peer.held += 1;
        self.free.pop()
    }

    /// Takes a buffer for the next transfer that may have one.
    pub(super) fn next(&mut self) -> Option<(u32, Buffer)> {
        for _ in 0..self.ring.len().min(ATTEMPTS as usize) {
            let at = self.ring.pop_front()?;
            let Some(buffer) = self.take(at) else {
                self.ring.push_back(at);
                continue;
            };
            let peer = self.peer(at);
            let token = peer.waiting.pop_front()?;
            if !peer.waiting.is_empty() {
                self.ring.push_back(at);
            }
            return Some((token, buffer));
        }
        None
    }

    /// Gives a peer's buffer back.
    pub(super) fn give(&mut self, at: u32, buffer: Buffer) {
        self.peer(at).held -= 1;
        self.free.push(buffer);
    }

    /// A transfer waits no longer.
    pub(super) fn withdraw(&mut self, at: u32, token: u32) {
        let peer = self.peer(at);
        peer.waiting.retain(|other| *other != token);
        if peer.waiting.is_empty() {
            self.ring.retain(|other| *other != at);
        }
    }

    /// Forgets what waits for a peer.
    pub(super) fn forget(&mut self, at: u32) {
        self.peer(at).waiting.clear();
        self.ring.retain(|other| *other != at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(count: u16, peers: &[u32]) -> Pool {
        let mut pool = Pool::new(0, 1024, count);
        peers.iter().for_each(|at| pool.wait(*at, *at));
        pool
    }

    fn given(pool: &mut Pool) -> Vec<u32> {
        std::iter::from_fn(|| pool.next()).map(|(token, _)| token).collect()
    }

    #[test]
    fn peers_take_turns() {
        let mut pool = waiting(100, &[1, 1, 1, 2, 2, 3]);
        assert_eq!(given(&mut pool), [1, 2, 3, 1, 2, 1]);
        assert!(!pool.is_waited_for());
    }

    #[test]
    fn stopped_peer_leaves_buffers_to_others() {
        for (count, most) in [(1, 1), (3, 3), (4, 3), (8, 7), (16, 15), (18, 16), (64, 57)] {
            let mut pool = waiting(count, &[1; 300]);
            assert_eq!(given(&mut pool).len(), most, "of {count}");
            pool.wait(2, 2);
            assert_eq!(given(&mut pool).contains(&2), count > 3, "of {count}");
        }
    }

    #[test]
    fn forgotten_peer_waits_no_longer() {
        let mut pool = waiting(4, &[1, 2, 1, 3]);
        pool.forget(1);
        assert_eq!(given(&mut pool), [2, 3]);
    }
}
