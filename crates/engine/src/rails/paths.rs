//! Paths of a lane to its peers: for each peer and local rail, the remote rail and its address.

use std::collections::HashMap;

use crate::ids::{Pe, RailId};
use crate::port::PeerAddr;
use crate::wire::handle::RailKey;

/// The far end of a local rail towards one peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Path {
    /// The address of the remote rail, in the local rail's address table.
    pub to: PeerAddr,
    /// The remote rail; it selects the key in the peer's memory handle.
    pub remote: RailId,
}

/// The place of a path among those that were laid out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PathId(u32);

const NOWHERE: u32 = u32::MAX;

/// A path with what the lane needs to use it and to go on to the next. A connection keeps a copy of
/// the one that its next segment takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hop {
    pub(crate) to: PeerAddr,
    pub(crate) rail: RailId,
    /// The same as an index, so that who looks tables up by it and stores it as well needs no
    /// register for both.
    pub(crate) at: u32,
    /// The remote rail, and the place of its key in the peer's handles.
    pub(crate) remote_key: RailKey,
    /// Whether there is no other path to the peer.
    is_only: bool,
    /// The path to the same peer over the next local rail, round and round.
    next: PathId,
}

/// The far ends of one local rail, by PE.
#[derive(Clone, Debug)]
pub(crate) enum FarEnds {
    /// Addresses that rise by the same step from PE to PE, and the same remote rail at all: what
    /// address tables give that were filled in the order of PEs. They take no memory by PE.
    Even {
        /// PE 0's.
        first: PeerAddr,
        /// From one PE to the next, modulo 2^64.
        step: u64,
        /// Of every PE.
        remote: RailId,
    },
    /// Whatever they are.
    Each(Box<[Path]>),
}

impl FarEnds {
    fn column(paths: &[Path], at: usize, every: usize) -> Self {
        let column = || paths.iter().skip(at).step_by(every).copied();
        let (first, second) = (column().next(), column().nth(1));
        let Some(Path { to: first, remote }) = first else { return Self::Each(Box::default()) };
        let step = second.map_or(0, |second| second.to.0.wrapping_sub(first.0));
        let even = Self::Even { first, step, remote };
        let is_even = column().enumerate().all(|(pe, path)| even.get(Pe(pe as u32)) == path);
        if is_even { even } else { Self::Each(column().collect()) }
    }

    #[inline]
    pub(crate) fn get(&self, pe: Pe) -> Path {
        match self {
            Self::Even { first, step, remote } => {
                let to = first.0.wrapping_add(step.wrapping_mul(pe.0.into()));
                Path { to: PeerAddr(to), remote: *remote }
            }
            Self::Each(paths) => paths[pe.index()],
        }
    }
}

/// The addresses of one endpoint of each peer for each local rail, which do not change.
#[derive(Debug)]
pub(crate) struct AddressTable(Box<[FarEnds]>);

impl AddressTable {
    pub(crate) fn new(addresses: &[PeerAddr], rails: usize) -> Self {
        let path = |to: &PeerAddr| Path { to: *to, remote: RailId(0) };
        let paths: Vec<Path> = addresses.iter().map(path).collect();
        Self((0..rails).map(|rail| FarEnds::column(&paths, rail, rails)).collect())
    }

    pub(crate) fn get(&self, pe: Pe, rail: RailId) -> Option<PeerAddr> {
        match self.0.get(rail.index())? {
            FarEnds::Each(paths) if paths.len() <= pe.index() => None,
            ends => Some(ends.get(pe).to),
        }
    }
}

/// The local rails that lead to each PE.
#[derive(Clone, Debug)]
pub(crate) struct RailsTo {
    all: u32,
    /// Of the PEs that not all of them lead to, those that do; one at least.
    partly: HashMap<Pe, u32>,
}

impl RailsTo {
    pub(crate) fn all(rails: usize) -> Self {
        Self { all: u32::MAX >> (32 - rails.min(32)), partly: HashMap::new() }
    }

    #[inline]
    pub(crate) fn of(&self, pe: Pe) -> u32 {
        if self.partly.is_empty() {
            return self.all;
        }
        self.partly.get(&pe).copied().unwrap_or(self.all)
    }
}

/// The paths of a lane: one per peer and local rail.
///
/// The paths to a peer are laid out, for the lane to go round and to change, once something is sent
/// to it. Before that a peer costs four bytes, and its addresses where those are not
/// [`FarEnds::Even`].
#[derive(Debug)]
pub struct PathTable {
    ends: Box<[FarEnds]>,
    n_pes: u32,
    reach: RailsTo,
    /// By PE, where its paths are in `hops`, or [`NOWHERE`].
    places: Box<[u32]>,
    /// The paths that were laid out, those to one PE together, by local rail. In the place of one
    /// that leads nowhere is a copy of one that does.
    hops: Vec<Hop>,
    /// For each PE whose paths were laid out, the local rails whose path is in service, a bit for
    /// each.
    in_service: Vec<u32>,
}

impl PathTable {
    /// `paths` holds, for each PE in turn, one path per local rail.
    ///
    /// # Panics
    /// If `paths` is not a multiple of `rails`, or `rails` is 0.
    pub fn new(paths: &[Path], rails: usize) -> Self {
        assert!(rails > 0 && paths.len() % rails == 0, "one path per PE and rail");
        let n_pes = paths.len() / rails;
        Self {
            ends: (0..rails).map(|rail| FarEnds::column(paths, rail, rails)).collect(),
            n_pes: n_pes as u32,
            reach: RailsTo::all(rails),
            places: vec![NOWHERE; n_pes].into(),
            hops: Vec::new(),
            in_service: Vec::new(),
        }
    }

    /// The table, with a path that leads nowhere: the others to the PE are used in its place. The
    /// last one stays. Before anything is sent.
    #[must_use]
    pub fn without(mut self, pe: Pe, rail: RailId) -> Self {
        debug_assert!(self.place(pe).is_none(), "the paths to {pe} are in use");
        let reach = self.reach.of(pe) & !(1 << rail.0);
        if reach != 0 {
            self.reach.partly.insert(pe, reach);
        }
        self
    }

    pub(crate) fn reach(&self) -> &RailsTo {
        &self.reach
    }

    /// Whether a local rail leads to a PE.
    pub fn leads(&self, pe: Pe, rail: RailId) -> bool {
        self.reach.of(pe) >> rail.0 & 1 != 0
    }

    /// PEs in the table.
    pub fn n_pes(&self) -> u32 {
        self.n_pes
    }

    fn rails(&self) -> usize {
        self.ends.len()
    }

    /// The address that a local rail sends to for a PE; both exist.
    pub fn address(&self, pe: Pe, rail: RailId) -> PeerAddr {
        self.get(pe, rail).to
    }

    #[inline]
    fn place(&self, pe: Pe) -> Option<usize> {
        self.places.get(pe.index()).filter(|place| **place != NOWHERE).map(|place| *place as usize)
    }

    #[cold]
    pub(crate) fn last_far_rail(&self, pe: Pe) -> RailId {
        let far = self.ends.iter().map(|ends| ends.get(pe).remote.0);
        RailId(far.max().unwrap_or(0))
    }

    /// The path of a local rail to a PE; both exist. That of another if it does not lead there. It
    /// goes on to the next only if the PE's paths were laid out before.
    #[inline]
    pub(crate) fn get(&self, pe: Pe, rail: RailId) -> Hop {
        match self.place(pe) {
            Some(first) => self.hops[first + rail.index()],
            None => self.hop(pe, rail, NOWHERE),
        }
    }

    #[cold]
    pub(crate) fn lay_out(&mut self, pe: Pe) -> usize {
        if let Some(first) = self.place(pe) {
            return first;
        }
        let first = self.hops.len();
        for rail in 0..self.rails() {
            let hop = self.hop(pe, RailId(rail as u8), first as u32);
            self.hops.push(hop);
        }
        self.in_service.push(self.reach.of(pe));
        self.places[pe.index()] = first as u32;
        first
    }

    /// The path of a local rail to a PE, or of the next one that leads there, as it is at first;
    /// the PE's paths are laid out from this place on.
    fn hop(&self, pe: Pe, rail: RailId, first: u32) -> Hop {
        let reach = self.reach.of(pe);
        let rail =
            if reach >> rail.0 & 1 != 0 { rail.index() } else { self.after(rail.index(), reach) };
        let Path { to, remote } = self.ends[rail].get(pe);
        let next = if first == NOWHERE { NOWHERE } else { first + self.after(rail, reach) as u32 };
        Hop {
            to,
            rail: RailId(rail as u8),
            at: rail as u32,
            remote_key: RailKey::of(remote),
            is_only: self.rails() == 1,
            next: PathId(next),
        }
    }

    fn after(&self, rail: usize, bits: u32) -> usize {
        let mut after = (1..=self.rails()).map(|step| (rail + step) % self.rails());
        after.find(|next| bits >> next & 1 != 0).unwrap_or(rail)
    }

    pub(crate) fn set_address(&mut self, pe: Pe, rail: RailId, to: PeerAddr) {
        let first = self.lay_out(pe);
        let hops = &mut self.hops[first..first + self.ends.len()];
        hops.iter_mut().filter(|hop| hop.rail == rail).for_each(|hop| hop.to = to);
    }

    #[inline]
    pub(crate) fn in_service(&self, pe: Pe) -> u32 {
        match self.place(pe) {
            Some(first) => self.in_service[first / self.rails()],
            None => self.reach.of(pe),
        }
    }

    #[inline]
    pub(crate) fn is_out(&self, pe: Pe, rail: RailId) -> bool {
        self.in_service(pe) >> rail.0 & 1 == 0
    }

    pub(crate) fn serve(&mut self, pe: Pe, in_service: u32) {
        let (first, rails) = (self.lay_out(pe), self.rails());
        self.in_service[first / rails] = in_service;
        for rail in 0..rails {
            let next = self.after(rail, in_service);
            self.hops[first + rail].next = PathId((first + next) as u32);
        }
    }

    #[inline(always)]
    pub(crate) fn advance(&self, hop: &mut Hop) {
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

    fn table() -> PathTable {
        let path = |at: u64| Path { to: PeerAddr(at), remote: RailId(0) };
        PathTable::new(&(0..6).map(path).collect::<Vec<_>>(), 3)
    }

    fn ring(table: &mut PathTable, pe: Pe, rail: u8) -> [u64; 3] {
        let at_first = table.get(pe, RailId(rail));
        table.lay_out(pe);
        assert_eq!(at_first.to, table.get(pe, RailId(rail)).to, "laid out or not");
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
        let mut two = table().without(Pe(1), RailId(0));
        assert_eq!(ring(&mut two, Pe(0), 0), [0, 1, 2]);
        assert_eq!(ring(&mut two, Pe(1), 0), [4, 5, 4], "the next one in its place");
        assert_eq!(ring(&mut two, Pe(1), 2), [5, 4, 5]);
        assert!(!two.leads(Pe(1), RailId(0)) && two.leads(Pe(0), RailId(0)));
        let mut one = table().without(Pe(1), RailId(0)).without(Pe(1), RailId(1));
        assert_eq!(ring(&mut one, Pe(1), 0), [5, 5, 5]);
        one.set_address(Pe(1), RailId(2), PeerAddr(9));
        assert_eq!(ring(&mut one, Pe(1), 1), [9, 9, 9], "wherever it is");
        let one = table().without(Pe(1), RailId(0)).without(Pe(1), RailId(1));
        let mut last = one.without(Pe(1), RailId(2));
        assert_eq!(
            (last.reach().of(Pe(1)), ring(&mut last, Pe(1), 0)),
            (4, [5, 5, 5]),
            "the last one"
        );
    }

    #[test]
    fn paths_that_are_out_of_service_are_passed_over() {
        let mut table = table();
        table.serve(Pe(1), 0b101);
        assert_eq!(ring(&mut table, Pe(1), 0), [3, 5, 3]);
        assert_eq!(ring(&mut table, Pe(0), 0), [0, 1, 2], "another PE's");
        assert!(table.is_out(Pe(1), RailId(1)) && !table.is_out(Pe(0), RailId(1)));
        table.serve(Pe(1), 0b111);
        assert_eq!(ring(&mut table, Pe(1), 0), [3, 4, 5]);
    }

    #[test]
    fn addresses_that_rise_evenly_take_no_room() {
        let path = |to: u64, remote: u8| Path { to: PeerAddr(to), remote: RailId(remote) };
        let even = [path(7, 1), path(9, 1), path(11, 1)];
        let uneven = [path(7, 1), path(9, 1), path(12, 1)];
        let other = [path(7, 1), path(9, 1), path(11, 0)];
        let wraps = [path(u64::MAX, 1), path(1, 1), path(3, 1)];
        for (paths, is_even) in [(even, true), (uneven, false), (other, false), (wraps, true)] {
            let ends = FarEnds::column(&paths, 0, 1);
            assert_eq!(matches!(ends, FarEnds::Even { .. }), is_even, "{paths:?}");
            let all: Vec<Path> = (0..3).map(|pe| ends.get(Pe(pe))).collect();
            assert_eq!(all, paths);
        }
    }
}
