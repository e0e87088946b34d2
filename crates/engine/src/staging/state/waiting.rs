//! The queue for the bounce buffers of one direction: who waits, peer by peer, and how many bounce
//! buffers each peer holds.
//!
//! # Shares
//! A bounce buffer comes back when its peer has read it, or answered; one that has stopped never
//! does. So a peer may have another bounce buffer while it holds less than eight times what is
//! free, and the last one only while it holds none. Where there are fewer than [`SHARED_FROM`]
//! bounce buffers, whoever is first has the next one: half of them is too much to keep back.
//!
//! Peers take turns, one bounce buffer each; what waits for the same peer stays in its order. A
//! peer without a share is not looked at until it gives a bounce buffer back, or there are enough
//! for it.

use crate::ids::{Pe, WrId};
use crate::request::Touched;
use crate::staging::state::Listed;
use crate::staging::state::role::Role;
#[cfg(any(test, feature = "audit"))]
use crate::state::discrepancy::{Discrepancy, same};
use crate::state::fair_queue::{FairQueue, Kept};
use crate::state::regions::Place;
use crate::wire::staged::Exposure;
use crate::wire::window::Seq;

const SHARED_FROM: usize = 4;

/// What a peer has asked for, until it has a bounce buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) pe: Pe,
    pub(crate) role: Role,
    pub(crate) place: Place,
    /// For a pull of several puts: of which; the place means nothing then.
    pub(crate) listed: Listed,
    pub(crate) len: usize,
    /// For a pull: what is to be read.
    pub(crate) from: Exposure,
    /// Likewise: it is copied behind all requests of the peer before this number.
    pub(crate) mark: Option<Seq>,
}

/// Who waits for a bounce buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Waiter {
    /// A fragment of ours.
    Mine(WrId),
    /// A request of a peer.
    Peer(Wanted),
}

/// Who waits for the bounce buffers of one direction.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    queue: FairQueue<Waiter, OfPeer>,
    bounces: usize,
}

#[derive(Debug, Default)]
struct OfPeer {
    /// Of those who wait, those that the peer has asked for. It has no more under way than a bound,
    /// if it keeps the rules.
    asked: u32,
    held: usize,
}

impl Kept for OfPeer {
    fn lasts(&self) -> bool {
        self.held != 0
    }
}

impl OfPeer {
    /// How many bounce buffers must be free besides the one that the peer gets next, where there
    /// are so many.
    fn need(&self, bounces: usize) -> u32 {
        match self.held {
            0 => 0,
            _ if bounces < SHARED_FROM => 0,
            // Less than eight times what is free, which is two at least.
            held => (held / 8).max(1) as u32,
        }
    }
}

impl Waiting {
    pub(crate) fn share(&mut self, bounces: usize) {
        debug_assert!(
            self.queue.peers().all(|(_, _, of_peer)| of_peer.held == 0),
            "none is held before"
        );
        self.bounces = bounces;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(crate) fn push(&mut self, pe: Pe, waiter: Waiter) {
        self.queue.push(pe, waiter);
        if let (Waiter::Peer(_), Some(of_peer)) = (waiter, self.queue.kept_mut(pe)) {
            of_peer.asked += 1;
        }
    }

    pub(crate) fn memory(&self) -> impl Iterator<Item = Touched> + '_ {
        self.queue.iter().filter_map(|(_, waiter)| match waiter {
            Waiter::Mine(_) => None,
            Waiter::Peer(Wanted { pe, place, len, .. }) => {
                let what = "put or get of the peer";
                Some(Touched { what, pe: *pe, memory: (place.addr, *len) })
            }
        })
    }

    pub(crate) fn asked_by(&self, pe: Pe) -> u32 {
        self.queue.kept(pe).map_or(0, |of_peer| of_peer.asked)
    }

    /// The peer whose turn it is where so many bounce buffers are free, and who waits for it; none
    /// if no peer may have one of these.
    pub(crate) fn first(&self, free: usize) -> Option<(Pe, Waiter)> {
        let pe = self.queue.first(free)?;
        Some((pe, *self.queue.front(pe)?))
    }

    pub(crate) fn pop(&mut self, pe: Pe) {
        // What is kept of the peer may go with the last one.
        if let (Some(Waiter::Peer(_)), Some(of_peer)) =
            (self.queue.front(pe).copied(), self.queue.kept_mut(pe))
        {
            of_peer.asked -= 1;
        }
        self.queue.pop(pe);
        self.queue.turn_over(pe);
    }

    pub(crate) fn forget(&mut self, pe: Pe) -> impl Iterator<Item = Waiter> {
        if let Some(of_peer) = self.queue.kept_mut(pe) {
            of_peer.asked = 0;
        }
        std::iter::from_fn(move || self.queue.pop(pe))
    }

    /// How many fragments of this lane's wait, where a peer is known to hold `bounces`.
    #[cfg(any(test, feature = "audit"))]
    pub(in crate::staging) fn audit(
        &self,
        bounces: impl Fn(Pe) -> usize,
    ) -> Result<usize, Discrepancy> {
        self.queue.audit("those who wait for bounce buffers")?;
        let is_theirs = |waiter: &Waiter| matches!(waiter, Waiter::Peer(_));
        let mut mine = self.queue.len();
        for (pe, _, OfPeer { asked, held }) in self.queue.peers() {
            let theirs = self.queue.iter().filter(|(of, waiter)| *of == pe && is_theirs(waiter));
            let theirs = theirs.count();
            mine -= theirs;
            same("requests that wait for bounce buffers", *asked as usize, theirs)
                .and_then(|()| same("bounce buffers that it holds", *held, bounces(pe)))
                .map_err(|differs| differs.of(pe))?;
        }
        Ok(mine)
    }

    pub(crate) fn hold(&mut self, pe: Pe) {
        let bounces = self.bounces;
        self.queue.need(pe, |of_peer| {
            of_peer.held += 1;
            of_peer.need(bounces)
        });
    }

    pub(crate) fn let_go(&mut self, pe: Pe) {
        let bounces = self.bounces;
        self.queue.need(pe, |of_peer| {
            debug_assert!(of_peer.held > 0, "a bounce buffer is let go once");
            of_peer.held -= 1;
            of_peer.need(bounces)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::copies::Reach;
    use crate::wire::message::RequestId;

    fn give(waiting: &mut Waiting, free: &mut usize, bounces: usize) -> Vec<u32> {
        let mut given = Vec::new();
        waiting.bounces = bounces;
        while let Some((pe, _)) = waiting.first(*free) {
            waiting.pop(pe);
            waiting.hold(pe);
            *free -= 1;
            given.push(pe.0);
        }
        given
    }

    fn waiting(peers: &[u32]) -> Waiting {
        let mut waiting = Waiting::default();
        for (number, pe) in peers.iter().enumerate() {
            waiting.push(Pe(*pe), Waiter::Mine(WrId(number as u32)));
        }
        waiting
    }

    #[test]
    fn peers_take_turns_and_keep_their_order() {
        let mut waiting = waiting(&[1, 1, 1, 2, 2, 3]);
        assert_eq!(give(&mut waiting, &mut 100, 100), [1, 2, 3, 1, 2, 1]);
        assert!(waiting.is_empty() && waiting.first(100).is_none());
    }

    #[test]
    fn a_peer_leaves_some_bounce_buffers_to_others() {
        for (bounces, most) in
            [(1, 1), (3, 3), (4, 3), (8, 7), (16, 15), (18, 16), (64, 57), (256, 228)]
        {
            let mut waiting = waiting(&[1; 300]);
            let mut free = bounces;
            assert_eq!(give(&mut waiting, &mut free, bounces).len(), most, "of {bounces}");
            waiting.push(Pe(2), Waiter::Mine(WrId(0)));
            assert_eq!(
                !give(&mut waiting, &mut free, bounces).is_empty(),
                bounces > 3,
                "of {bounces}"
            );
            waiting.let_go(Pe(1));
            free += 1;
            let next = give(&mut waiting, &mut free, bounces);
            assert!(next.iter().all(|pe| *pe == 1), "of {bounces}");
        }
    }

    #[test]
    fn who_may_have_no_bounce_buffer_is_not_looked_at() {
        let peers: Vec<u32> = (1..1000).collect();
        let mut waiting = waiting(&peers);
        waiting.share(16);
        (0..1000).for_each(|_| assert!(waiting.first(0).is_none()));
        assert_eq!(waiting.queue.looked(), 0);
        (1..999).for_each(|pe| waiting.hold(Pe(pe)));
        assert_eq!(waiting.first(1).map(|(pe, _)| pe), Some(Pe(999)), "who holds none");
        waiting.hold(Pe(999));
        let before = waiting.queue.looked();
        (0..1000).for_each(|_| assert!(waiting.first(1).is_none()));
        assert_eq!(waiting.queue.looked(), before);
        assert_eq!(waiting.first(2).map(|(pe, _)| pe), Some(Pe(1)));
        waiting.let_go(Pe(500));
        assert_eq!(waiting.first(1).map(|(pe, _)| pe), Some(Pe(500)), "it has given one back");
    }

    #[test]
    fn only_what_a_peer_has_asked_for_counts_for_it() {
        let pe = Pe(1);
        let request_id = RequestId { slot: 0, seq: Seq(0) };
        let place = Place { addr: 0, reach: Reach::Staged };
        let from = Exposure { slot: 0, stamp: 0, offset: 0 };
        let role = Role::Ask(request_id);
        let wanted =
            Wanted { pe, role, place, listed: Listed::default(), len: 8, from, mark: None };
        let mut waiting = waiting(&[1, 2]);
        for asked in 0..3 {
            assert_eq!((waiting.asked_by(pe), waiting.asked_by(Pe(2))), (asked, 0));
            waiting.push(pe, Waiter::Peer(wanted));
        }
        waiting.pop(pe);
        assert_eq!(waiting.asked_by(pe), 3, "that one was ours");
        waiting.pop(Pe(2));
        waiting.pop(pe);
        assert_eq!(waiting.asked_by(pe), 2);
        assert_eq!(waiting.forget(pe).count(), 2);
        assert_eq!(waiting.asked_by(pe), 0);
    }

    #[test]
    fn who_waits_for_one_that_is_given_up_goes_and_nobody_else() {
        let mut waiting = waiting(&[1, 2, 1, 3]);
        assert_eq!(waiting.forget(Pe(1)).count(), 2);
        assert_eq!(waiting.forget(Pe(1)).count(), 0);
        assert_eq!(give(&mut waiting, &mut 100, 100), [2, 3]);
    }
}
