//! How a lane reaches its peers: for each peer and local rail, the remote rail and its address.

use crate::engine::ids::{Pe, RailId};
use crate::engine::port::PeerAddr;
use crate::engine::wire::handle::RailKey;

/// The far end of a local rail towards one peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Path {
    /// The address of the remote rail, in the local rail's address table.
    pub to: PeerAddr,
    /// The remote rail; it selects the key in the peer's memory handle.
    pub remote: RailId,
}

/// The rail of every PE at which atomics on its memory arrive.
pub const TARGET_RAIL: RailId = RailId(0);

/// How atomics for one PE go: by a local rail to the PE's [`TARGET_RAIL`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicPath {
    /// The local rail.
    pub rail: RailId,
    /// The address of the PE's rail, in the local rail's address table.
    pub to: PeerAddr,
}

/// The place of a path in its table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::engine) struct PathId(u32);

/// A path with what the lane needs to use it and to go on to the next. A stream keeps a copy of the one
/// that its next segment takes.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Hop {
    /// The address of the remote rail.
    pub(in crate::engine) to: PeerAddr,
    /// The local rail.
    pub(in crate::engine) rail: RailId,
    /// The remote rail, and the place of its key in the peer's handles.
    pub(in crate::engine) remote: RailKey,
    /// Whether there is no other path to the peer.
    is_only: bool,
    /// The path to the same peer over the next local rail, round and round.
    next: PathId,
}

/// The paths of a lane: one per peer and local rail.
#[derive(Debug)]
pub struct PathTable {
    /// In the place of a path that leads nowhere is a copy of one that does.
    hops: Box<[Hop]>,
    /// The local rails that lead to each PE, a bit for each; one at least. Empty where all lead to all.
    reach: Box<[u32]>,
    /// Those of them whose path is in service. Empty as long as all are.
    in_service: Box<[u32]>,
    rails: u32,
}

impl PathTable {
    /// `paths` holds, for each PE in turn, one path per local rail.
    ///
    /// # Panics
    /// If `paths` is not a multiple of `rails`, or `rails` is 0.
    pub fn new(paths: Vec<Path>, rails: usize) -> Self {
        assert!(rails > 0 && paths.len() % rails == 0, "one path per PE and rail");
        let hop = |(at, path): (usize, Path)| {
            let rail = at % rails;
            let next = at - rail + (rail + 1) % rails;
            let next = PathId(next as u32);
            Hop {
                to: path.to,
                rail: RailId(rail as u8),
                remote: RailKey::of(path.remote),
                is_only: rails == 1,
                next,
            }
        };
        let hops: Box<[Hop]> = paths.into_iter().enumerate().map(hop).collect();
        Self { hops, reach: Box::default(), in_service: Box::default(), rails: rails as u32 }
    }

    /// The table, with a path that leads nowhere: the others to the PE are used in its place. The last one
    /// stays.
    #[must_use]
    pub fn without(mut self, pe: Pe, rail: RailId) -> Self {
        let reach = self.reach(pe) & !(1 << rail.0);
        if reach == 0 {
            return self;
        }
        if self.reach.is_empty() {
            self.reach = vec![self.all(); self.n_pes() as usize].into();
        }
        self.reach[pe.index()] = reach;
        self.link(pe, reach);
        let first = pe.index() * self.rails as usize;
        for rail in (0..self.rails as usize).filter(|rail| reach >> rail & 1 == 0) {
            let mut hop = self.hops[first + rail];
            self.advance(&mut hop);
            self.hops[first + rail] = hop;
        }
        self
    }

    /// The local rails that lead to a PE, a bit for each.
    #[inline]
    pub(in crate::engine) fn reach(&self, pe: Pe) -> u32 {
        self.reach.get(pe.index()).copied().unwrap_or(self.all())
    }

    /// All local rails, a bit for each.
    #[inline]
    fn all(&self) -> u32 {
        u32::MAX >> (32 - self.rails.min(32))
    }

    /// Whether a local rail leads to a PE.
    pub fn leads(&self, pe: Pe, rail: RailId) -> bool {
        self.reach(pe) >> rail.0 & 1 != 0
    }

    /// PEs in the table.
    pub fn n_pes(&self) -> u32 {
        self.hops.len() as u32 / self.rails
    }

    /// The address that a local rail sends to for a PE; both exist.
    pub fn address(&self, pe: Pe, rail: RailId) -> PeerAddr {
        self.get(pe, rail).to
    }

    /// The path of a local rail to a PE; both exist. That of another if it does not lead there.
    #[inline]
    pub(in crate::engine) fn get(&self, pe: Pe, rail: RailId) -> Hop {
        self.hops[pe.index() * self.rails as usize + rail.index()]
    }

    /// A rail of the peer has another address now.
    pub(in crate::engine) fn set_address(&mut self, pe: Pe, rail: RailId, to: PeerAddr) {
        let first = pe.index() * self.rails as usize;
        let hops = &mut self.hops[first..first + self.rails as usize];
        hops.iter_mut().filter(|hop| hop.rail == rail).for_each(|hop| hop.to = to);
    }

    /// The local rails whose path to a PE is in service, a bit for each; one at least.
    #[inline]
    pub(in crate::engine) fn in_service(&self, pe: Pe) -> u32 {
        self.in_service.get(pe.index()).copied().unwrap_or_else(|| self.reach(pe))
    }

    /// Whether a local rail's path to a PE is out of service.
    #[inline]
    pub(in crate::engine) fn is_out(&self, pe: Pe, rail: RailId) -> bool {
        self.in_service(pe) >> rail.0 & 1 == 0
    }

    /// These paths to a PE are in service from here on, a bit for each local rail; one at least.
    pub(in crate::engine) fn serve(&mut self, pe: Pe, in_service: u32) {
        if self.in_service.is_empty() {
            self.in_service = (0..self.n_pes()).map(|pe| self.reach(Pe(pe))).collect();
        }
        self.in_service[pe.index()] = in_service;
        self.link(pe, in_service);
    }

    /// From each path to the peer, [`PathTable::advance`] goes on to the next of those whose rail has
    /// its bit set. There is one at least.
    fn link(&mut self, pe: Pe, in_service: u32) {
        let (first, rails) = (pe.index() * self.rails as usize, self.rails as usize);
        for rail in 0..rails {
            let after = (1..=rails).map(|step| (rail + step) % rails);
            let next = after.into_iter().find(|next| in_service >> next & 1 != 0).unwrap_or(rail);
            self.hops[first + rail].next = PathId((first + next) as u32);
        }
    }

    /// Goes on from a path to the same peer's over the next rail.
    #[inline(always)]
    pub(in crate::engine) fn advance(&self, hop: &mut Hop) {
        if hop.is_only {
            return;
        }
        if let Some(next) = self.hops.get(hop.next.0 as usize) {
            *hop = *next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two PEs and three local rails; the address tells which path it is.
    fn table() -> PathTable {
        let path = |at: u64| Path { to: PeerAddr(at), remote: RailId(0) };
        PathTable::new((0..6).map(path).collect(), 3)
    }

    fn ring(table: &PathTable, pe: Pe, rail: u8) -> [u64; 3] {
        let mut hop = table.get(pe, RailId(rail));
        std::array::from_fn(|_| {
            let to = hop.to.0;
            assert_eq!(to, table.address(pe, hop.rail).0, "a rail and its own address");
            table.advance(&mut hop);
            to
        })
    }

    #[test]
    fn paths_that_lead_nowhere_are_replaced_by_the_others() {
        let table = table().without(Pe(1), RailId(0));
        assert_eq!(ring(&table, Pe(0), 0), [0, 1, 2]);
        assert_eq!(ring(&table, Pe(1), 0), [4, 5, 4], "the next one in its place");
        assert_eq!(ring(&table, Pe(1), 2), [5, 4, 5]);
        assert!(!table.leads(Pe(1), RailId(0)) && table.leads(Pe(0), RailId(0)));
        let mut table = table.without(Pe(1), RailId(1));
        assert_eq!(ring(&table, Pe(1), 0), [5, 5, 5]);
        table.set_address(Pe(1), RailId(2), PeerAddr(9));
        assert_eq!(ring(&table, Pe(1), 1), [9, 9, 9], "wherever it is");
        let table = table.without(Pe(1), RailId(2));
        assert_eq!((table.reach(Pe(1)), ring(&table, Pe(1), 0)), (4, [9, 9, 9]), "the last one");
    }
}
