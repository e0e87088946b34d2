//! Paths of a lane to its peers: for each peer and local rail, the remote rail and its address.

use std::collections::HashMap;

use crate::ids::{Pe, RailId};
use crate::port::PeerAddr;
use crate::rails::pairing::first_rail;
use crate::segments::Account;
use crate::wire::handle::RailKey;

/// The remote end of a local rail towards one peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Path {
    /// Address of the remote rail, in the local rail's address table.
    pub to: PeerAddr,
    /// The remote rail, which selects the key in the peer's handles.
    pub remote: RailId,
}

/// A path to a peer in use, with what the fast path needs of it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PeerPath {
    pub(crate) to: PeerAddr,
    pub(crate) rail: RailId,
    /// The remote rail and the position of its key in handles.
    pub(crate) remote: RailKey,
    /// Index of the peer's next path, round and round.
    pub(crate) next: u32,
    /// Account of plain segments over the path that no group counts.
    pub(crate) account: Account,
}

/// The remote ends of one local rail, by PE.
#[derive(Clone, Debug)]
enum RemoteEnds {
    /// Addresses that rise by one step from PE to PE, and one remote rail, as address vectors
    /// return them that were filled in PE order. Takes no memory per PE.
    Even {
        first: PeerAddr,
        step: u64,
        remote: RailId,
    },
    Each(Box<[Path]>),
}

impl RemoteEnds {
    /// Makes the ends of a rail from every `every`th path of a list, from `at` on.
    fn column(paths: &[Path], at: usize, every: usize) -> Self {
        let column = || paths.iter().skip(at).step_by(every).copied();
        let Some(Path { to: first, remote }) = column().next() else {
            return Self::Each(Box::default());
        };
        let step = column().nth(1).map_or(0, |second| second.to.0.wrapping_sub(first.0));
        let even = Self::Even { first, step, remote };
        let is_even = column().enumerate().all(|(pe, path)| even.get(Pe(pe as u32)) == path);
        if is_even { even } else { Self::Each(column().collect()) }
    }

    fn get(&self, pe: Pe) -> Path {
        match self {
            Self::Even { first, step, remote } => {
                let to = first.0.wrapping_add(step.wrapping_mul(pe.0.into()));
                Path { to: PeerAddr(to), remote: *remote }
            }
            Self::Each(paths) => paths[pe.index()],
        }
    }
}

#[derive(Debug)]
pub struct PathTable {
    ends: Box<[RemoteEnds]>,
    n_pes: u32,
    /// PEs to which not all local rails lead: one bit for each rail that does, at least one.
    partial: HashMap<Pe, u32>,
}

impl PathTable {
    /// Creates a table from `paths`, which holds for each PE in turn one path per local rail.
    ///
    /// # Panics
    /// If `paths` is not a multiple of `rails`, or `rails` is 0.
    pub fn new(paths: &[Path], rails: usize) -> Self {
        assert!(rails > 0 && paths.len() % rails == 0, "one path per PE and rail");
        let ends = (0..rails).map(|rail| RemoteEnds::column(paths, rail, rails)).collect();
        Self { ends, n_pes: (paths.len() / rails) as u32, partial: HashMap::new() }
    }

    /// Removes a path that leads nowhere, unless it is the last one to the PE.
    #[must_use]
    pub fn without(mut self, pe: Pe, rail: RailId) -> Self {
        let left = self.leading(pe) & !(1 << rail.0);
        if left != 0 {
            self.partial.insert(pe, left);
        }
        self
    }

    /// Returns the local rails that lead to a PE, one bit each and at least one.
    fn leading(&self, pe: Pe) -> u32 {
        // At most 32 rails: a word has a bit for each.
        let all = u32::MAX >> (32 - self.ends.len().min(32));
        self.partial.get(&pe).copied().unwrap_or(all)
    }

    pub fn leads(&self, pe: Pe, rail: RailId) -> bool {
        self.leading(pe) >> rail.0 & 1 != 0
    }

    pub fn n_pes(&self) -> u32 {
        self.n_pes
    }

    /// Returns the address that a local rail sends to for a PE of the job.
    pub fn address(&self, pe: Pe, rail: RailId) -> PeerAddr {
        self.ends[rail.index()].get(pe).to
    }

    /// Returns the paths to a PE of the job over all rails that lead there, and the first to use.
    pub(crate) fn peer_paths(&self, me: Pe, pe: Pe) -> (Box<[PeerPath]>, PeerPath) {
        let rails: Vec<RailId> =
            (0..self.ends.len() as u8).map(RailId).filter(|rail| self.leads(pe, *rail)).collect();
        let count = rails.len() as u32;
        let path = |(index, rail): (u32, &RailId)| {
            let Path { to, remote } = self.ends[rail.index()].get(pe);
            let next = (index + 1) % count;
            let account = Account::new(pe, *rail);
            PeerPath { to, rail: *rail, remote: RailKey::of(remote), next, account }
        };
        let paths: Box<[PeerPath]> = (0..).zip(&rails).map(path).collect();
        let start = first_rail(me, pe, self.ends.len() as u8);
        // The rail that pairing wants may not lead there: the next one that does.
        let first = rails.iter().position(|rail| *rail >= start).unwrap_or(0);
        let first = paths[first];
        (paths, first)
    }
}
