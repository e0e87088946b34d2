//! A fair queue by peer: what waits, peer by peer, and whose turn it is.
//!
//! What waits for one peer stays in its order; peers take turns. There are two ways to take.
//!
//! # By need
//! Where what is waited for is counted, as bounce buffers are, a peer has a *need*: how many must
//! be free besides the one that it is to have. [`FairQueue::first`] names the peer whose turn it is
//! among those whose need is met. The others are not looked at. A peer's need changes with what it
//! has itself, and [`FairQueue::need`] says so: nothing that others do costs it anything.
//!
//! # By trial
//! Where only a trial tells whether there is room, a [`Walk`] tries a few peers in each progress
//! iteration, whose answers it is told by [`FairQueue::tried`]. Half of them are those whose turns
//! are next, in order. If these are all refused, the other half are others further behind: it may
//! be the former alone that are refused.
//!
//! Nobody loses its turn by being refused, as long as nobody else was served. So a place that
//! becomes free is offered first to whoever has waited for longest, whenever and however seldom
//! that is: no rhythm of callers, or of the fabric, gives each place to the same peer. When another
//! one is served, what was refused before it in the same walk had its turn, and goes behind. Each
//! time that any peer is served, a peer that waits comes nearer by one place at least, or has been
//! served itself; so it is served after at most as many as there are peers in the queue.
//!
//! Of those further behind each walk takes the next ones, from as if drawn a few places on: at a
//! fixed pace, places that become free at one of their own may never find the only peer that takes
//! them.
//!
//! # Cost
//! Nothing here walks through peers or items: each call takes a few steps, however many wait. What
//! was taken leaves its place for what comes next, so that nothing is allocated as soon as there
//! has been as much at a time.

use crate::ids::Pe;
#[cfg(any(test, feature = "audit"))]
use crate::state::discrepancy::{Discrepancy, same};
use crate::state::pe_map::PeMap;

const NIL: u32 = u32::MAX;

/// Peers tried in a walk.
pub(crate) const TRIES: usize = 8;

const NEXT: usize = TRIES / 2;

/// What is kept of a peer beside what waits for it.
pub(crate) trait Kept: Default {
    /// Whether it is to be kept though nothing waits.
    fn lasts(&self) -> bool {
        false
    }
}

impl Kept for () {}

/// See the module.
#[derive(Debug)]
pub(crate) struct FairQueue<T, K = ()> {
    /// Where a peer is in `peers`.
    places: PeMap<u32>,
    peers: Vec<Peer<K>>,
    /// The first free place there, each names the next one.
    free_peer: u32,
    items: Vec<Item<T>>,
    free_item: u32,
    /// The turns of peers for which something waits, by need.
    rings: Vec<Ring>,
    len: usize,
    waiting: usize,
    turns: u64,
    walks: u64,
    /// What is as if drawn.
    drawn: u32,
    /// The peer that is tried next of those further behind. [`NIL`] is the first.
    cursor: u32,
    #[cfg(test)]
    looked: std::cell::Cell<usize>,
}

#[derive(Debug)]
struct Item<T> {
    item: Option<T>,
    next: u32,
}

#[derive(Debug)]
struct Peer<K> {
    pe: Pe,
    /// What waits for it: the first, the last, and how many.
    head: u32,
    tail: u32,
    count: u32,
    need: u32,
    /// Its number among all iterations: who has the lowest is next.
    turn: u64,
    walk: u64,
    /// The peers before and behind it in its ring; behind a free place the next free one.
    before: u32,
    behind: u32,
    kept: K,
}

#[derive(Clone, Copy, Debug)]
struct Ring {
    head: u32,
    tail: u32,
}

/// A walk through some of the peers: see [`FairQueue::walk`].
#[derive(Debug)]
pub(crate) struct Walk {
    number: u64,
    left: usize,
    /// Of those whose turns are next, how many have been refused since somebody was served.
    refused: usize,
}

impl<T, K> Default for FairQueue<T, K> {
    fn default() -> Self {
        Self {
            places: PeMap::default(),
            peers: Vec::new(),
            free_peer: NIL,
            items: Vec::new(),
            free_item: NIL,
            rings: Vec::new(),
            len: 0,
            waiting: 0,
            turns: 0,
            walks: 0,
            drawn: 0,
            cursor: NIL,
            #[cfg(test)]
            looked: std::cell::Cell::new(0),
        }
    }
}

impl<T, K: Kept> FairQueue<T, K> {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn len_of(&self, pe: Pe) -> usize {
        self.find(pe).map_or(0, |peer| peer.count as usize)
    }

    pub(crate) fn has(&self, pe: Pe) -> bool {
        self.len_of(pe) != 0
    }

    pub(crate) fn push(&mut self, pe: Pe, item: T) {
        let at = self.place(pe);
        let item = self.store(item);
        let peer = &mut self.peers[at as usize];
        let last = std::mem::replace(&mut peer.tail, item);
        peer.count += 1;
        self.len += 1;
        match last {
            NIL => {
                peer.head = item;
                peer.turn = self.turns;
                self.turns += 1;
                self.waiting += 1;
                self.channel(at);
            }
            last => self.items[last as usize].next = item,
        }
    }

    pub(crate) fn push_to_all(&mut self, mut make: impl FnMut(&T) -> Option<T>) {
        for at in 0..self.peers.len() {
            let Peer { pe, tail, .. } = self.peers[at];
            let last = self.items.get(tail as usize).and_then(|last| last.item.as_ref());
            if let Some(item) = last.and_then(&mut make) {
                self.push(pe, item);
            }
        }
    }

    pub(crate) fn front(&self, pe: Pe) -> Option<&T> {
        self.item(self.find(pe)?.head)
    }

    pub(crate) fn front_mut(&mut self, pe: Pe) -> Option<&mut T> {
        let head = self.find(pe)?.head;
        self.items.get_mut(head as usize)?.item.as_mut()
    }

    pub(crate) fn back(&self, pe: Pe) -> Option<&T> {
        self.item(self.find(pe)?.tail)
    }

    pub(crate) fn pop(&mut self, pe: Pe) -> Option<T> {
        let at = *self.places.get(&pe)?;
        let peer = &mut self.peers[at as usize];
        let taken = peer.head;
        let item = self.items.get_mut(taken as usize)?;
        let (popped, next) = (item.item.take()?, std::mem::replace(&mut item.next, self.free_item));
        self.free_item = taken;
        peer.head = next;
        peer.count -= 1;
        self.len -= 1;
        if next == NIL {
            peer.tail = NIL;
            self.waiting -= 1;
            self.unlink(at);
            self.give(at);
        }
        Some(popped)
    }

    pub(crate) fn kept(&self, pe: Pe) -> Option<&K> {
        self.find(pe).map(|peer| &peer.kept)
    }

    pub(crate) fn kept_mut(&mut self, pe: Pe) -> Option<&mut K> {
        let at = *self.places.get(&pe)?;
        Some(&mut self.peers[at as usize].kept)
    }

    pub(crate) fn need(&mut self, pe: Pe, change: impl FnOnce(&mut K) -> u32) {
        let at = self.place(pe);
        let peer = &mut self.peers[at as usize];
        let need = change(&mut peer.kept);
        if peer.count == 0 {
            peer.need = need;
            self.give(at);
        } else if peer.need != need {
            self.unlink(at);
            self.peers[at as usize].need = need;
            self.channel(at);
        }
    }

    pub(crate) fn first(&self, free: usize) -> Option<Pe> {
        let met = self.rings.iter().take(free);
        let firsts = met.filter_map(|ring| self.peers.get(ring.head as usize));
        #[cfg(test)]
        let firsts = firsts.inspect(|_| self.looked.set(self.looked.get() + 1));
        firsts.min_by_key(|peer| peer.turn).map(|peer| peer.pe)
    }

    pub(crate) fn turn_over(&mut self, pe: Pe) {
        let Some(at) = self.places.get(&pe).copied() else { return };
        if self.peers[at as usize].count == 0 {
            return;
        }
        self.unlink(at);
        self.peers[at as usize].turn = self.turns;
        self.turns += 1;
        self.channel(at);
    }

    pub(crate) fn walk(&mut self) -> Walk {
        self.walks += 1;
        if self.waiting > TRIES {
            // A linear congruential generator of full period (Numerical Recipes, 3rd edition,
            // section 7.1); its upper bits are the random ones.
            self.drawn = self.drawn.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let skipped = self.from(self.cursor).nth((self.drawn >> 30) as usize);
            self.cursor = skipped.unwrap_or(NIL);
        }
        Walk { number: self.walks, left: self.waiting.min(TRIES), refused: 0 }
    }

    pub(crate) fn next(&mut self, walk: &mut Walk) -> Option<Pe> {
        walk.left = walk.left.checked_sub(1)?;
        let head = self.rings.first()?.head;
        let is_new = |at: &u32| self.peers[*at as usize].walk != walk.number;
        let at = if walk.refused < NEXT {
            self.from(head).find(is_new)?
        } else {
            // Round the ring, from where the last walk has stopped.
            let behind = self.from(self.cursor).find(is_new);
            behind.or_else(|| self.from(head).find(is_new))?
        };
        self.peers[at as usize].walk = walk.number;
        Some(self.peers[at as usize].pe)
    }

    pub(crate) fn tried(&mut self, walk: &mut Walk, pe: Pe, served: bool) {
        let at = self.places.get(&pe).copied().filter(|at| self.peers[*at as usize].count != 0);
        if !served {
            if walk.refused < NEXT {
                walk.refused += 1;
            } else if let Some(at) = at {
                self.cursor = self.peers[at as usize].behind;
            }
            return;
        }
        // It is they who were refused, and not everybody.
        for _ in 0..std::mem::take(&mut walk.refused) {
            let Some(head) = self.rings.first().map(|ring| ring.head) else { break };
            let Some(peer) = self.peers.get(head as usize) else { break };
            if peer.walk != walk.number || peer.pe == pe {
                break;
            }
            self.turn_over(peer.pe);
        }
        self.turn_over(pe);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Pe, &T)> {
        self.peers.iter().flat_map(|peer| {
            let item = |at: u32| self.items.get(at as usize);
            let mut at = peer.head;
            std::iter::from_fn(move || {
                let Item { item, next } = item(at)?;
                at = *next;
                item.as_ref().map(|item| (peer.pe, item))
            })
        })
    }

    pub(crate) fn peers(&self) -> impl Iterator<Item = (Pe, usize, &K)> {
        self.places.values().map(|at| {
            let peer = &self.peers[*at as usize];
            (peer.pe, peer.count as usize, &peer.kept)
        })
    }

    #[cfg(test)]
    pub(crate) fn looked(&self) -> usize {
        self.looked.get()
    }

    #[cfg(any(test, feature = "audit"))]
    pub(crate) fn audit(&self, what: &'static str) -> Result<(), Discrepancy> {
        same(what, self.len, self.iter().count())?;
        for peer in self.places.values().map(|at| &self.peers[*at as usize]) {
            let listed = self.iter().filter(|(pe, _)| *pe == peer.pe).count();
            same(what, peer.count as usize, listed).map_err(|differs| differs.of(peer.pe))?;
        }
        let waits = |at: &&u32| self.peers[**at as usize].count != 0;
        same("peers in a queue", self.waiting, self.places.values().filter(waits).count())?;
        let turns = self.rings.iter().map(|ring| self.from(ring.head).count()).sum();
        same("turns of peers", self.waiting, turns)
    }

    fn find(&self, pe: Pe) -> Option<&Peer<K>> {
        self.places.get(&pe).map(|at| &self.peers[*at as usize])
    }

    fn item(&self, at: u32) -> Option<&T> {
        self.items.get(at as usize)?.item.as_ref()
    }

    fn from(&self, at: u32) -> impl Iterator<Item = u32> {
        let next = |at: &u32| Some(self.peers[*at as usize].behind).filter(|at| *at != NIL);
        let peers = std::iter::successors(Some(at).filter(|at| *at != NIL), next);
        #[cfg(test)]
        let peers = peers.inspect(|_| self.looked.set(self.looked.get() + 1));
        peers
    }

    fn place(&mut self, pe: Pe) -> u32 {
        if let Some(at) = self.places.get(&pe) {
            return *at;
        }
        let peer = Peer {
            pe,
            head: NIL,
            tail: NIL,
            count: 0,
            need: 0,
            turn: 0,
            walk: 0,
            before: NIL,
            behind: NIL,
            kept: K::default(),
        };
        let at = match self.peers.get_mut(self.free_peer as usize) {
            Some(place) => {
                let next = place.behind;
                *place = peer;
                std::mem::replace(&mut self.free_peer, next)
            }
            None => {
                self.peers.push(peer);
                self.peers.len() as u32 - 1
            }
        };
        self.places.insert(pe, at);
        at
    }

    fn give(&mut self, at: u32) {
        let peer = &mut self.peers[at as usize];
        if peer.count == 0 && !peer.kept.lasts() {
            self.places.remove(&peer.pe);
            peer.behind = self.free_peer;
            self.free_peer = at;
        }
    }

    fn store(&mut self, item: T) -> u32 {
        let item = Item { item: Some(item), next: NIL };
        match self.items.get_mut(self.free_item as usize) {
            Some(place) => {
                let next = place.next;
                *place = item;
                std::mem::replace(&mut self.free_item, next)
            }
            None => {
                self.items.push(item);
                self.items.len() as u32 - 1
            }
        }
    }

    /// Puts a peer into the ring of its need: at the end, or at the head if its turn comes before
    /// all there. Whoever is before it there goes first, though its turn may be later: they are few
    /// that come back so, as many as have something to give back.
    fn channel(&mut self, at: u32) {
        let Peer { need, turn, .. } = self.peers[at as usize];
        let need = need as usize;
        if self.rings.len() <= need {
            self.rings.resize(need + 1, Ring { head: NIL, tail: NIL });
        }
        let Ring { head, tail } = self.rings[need];
        let goes_first = self.peers.get(head as usize).is_some_and(|peer| turn < peer.turn);
        let (before, behind) = if goes_first { (NIL, head) } else { (tail, NIL) };
        let peer = &mut self.peers[at as usize];
        (peer.before, peer.behind) = (before, behind);
        self.join(need, before, at);
        self.join(need, at, behind);
    }

    fn unlink(&mut self, at: u32) {
        let Peer { need, before, behind, .. } = self.peers[at as usize];
        if self.cursor == at {
            self.cursor = behind;
        }
        self.join(need as usize, before, behind);
    }

    fn join(&mut self, ring: usize, before: u32, behind: u32) {
        match self.peers.get_mut(before as usize) {
            Some(peer) => peer.behind = behind,
            None => self.rings[ring].head = behind,
        }
        match self.peers.get_mut(behind as usize) {
            Some(peer) => peer.before = before,
            None => self.rings[ring].tail = before,
        }
    }
}

#[cfg(test)]
mod tests;
