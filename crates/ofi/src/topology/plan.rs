//! The plan of NICs that a PE opens, with reasons.

use std::fmt;

use super::address::PciAddress;
use super::choice::choose;
use super::distance::{Distance, Topology};

/// Source of the decision about a PE's NICs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decided {
    /// The user, who has named them.
    Named,
    /// The host, which was offered all of them. It knows its own settings about NICs.
    Host,
    /// The distance to the PE's GPU, and the other PEs of this machine.
    Near,
    /// Nobody: where the NICs or the GPU are is not known, so all are used.
    Unknown,
}

/// The NICs that a PE opens, in the order in which they become rails.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Source of the decision.
    pub decided: Decided,
    /// The NICs, as indices into the list given, with the distance from the PE's GPU if known.
    pub nics: Vec<(usize, Option<Distance>)>,
    /// The others, nearest first, if none of these opens. None where the user has named them.
    pub spare: Vec<usize>,
    /// An unused NIC that is nearer than all used ones, with its distance.
    pub passed_over: Option<(usize, Distance)>,
}

/// Inputs for choosing a PE's NICs.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    /// Where each NIC is.
    pub nics: &'a [Option<PciAddress>],
    /// The GPUs of the PEs of this machine, in the order of PEs.
    pub gpus: &'a [Option<PciAddress>],
    /// This PE among them.
    pub me: usize,
    /// Whether the user has named the NICs that are to be used.
    pub named: bool,
    /// NICs picked by the host; empty if it left that to the transport.
    pub picked: &'a [usize],
}

impl Plan {
    /// Decides, for at most `most` NICs: what the user has named, in that order; else what the host
    /// has picked, the nearest first; else the PE's share of the nearest NICs.
    pub fn make(topology: &Topology, known: &Known<'_>, most: usize) -> Self {
        let Known { nics, gpus, me, named, picked } = *known;
        let ranking = choose(topology, nics, gpus, me);
        let distance = |nic: usize| ranking.iter().find(|choice| choice.nic == nic)?.distance;
        let with_distance = |nic: usize| (nic, distance(nic));
        // An index that is out of range stays first, and is refused when it is opened.
        let place = |nic: &usize| ranking.iter().position(|choice| choice.nic == *nic);
        let is_known = ranking.iter().any(|choice| choice.distance.is_some());
        let (decided, mut nics): (_, Vec<usize>) = if named {
            (Decided::Named, (0..nics.len()).collect())
        } else if !picked.is_empty() {
            let mut picked = picked.to_vec();
            if is_known {
                picked.sort_by_key(place);
            }
            (Decided::Host, picked)
        } else if is_known {
            let own = ranking.iter().filter(|choice| choice.own);
            (Decided::Near, own.map(|choice| choice.nic).collect())
        } else {
            (Decided::Unknown, (0..nics.len()).collect())
        };
        nics.truncate(most.max(1));
        let nearest = nics.iter().filter_map(|nic| distance(*nic)).min();
        let others = ranking.iter().filter(|choice| !nics.contains(&choice.nic));
        let passed = others.filter_map(|choice| Some((choice.nic, choice.distance?)));
        let passed_over = passed.min_by_key(|(_, distance)| *distance);
        let passed_over =
            passed_over.filter(|(_, distance)| nearest.is_some_and(|nearest| *distance < nearest));
        let others = ranking.iter().map(|choice| choice.nic).filter(|nic| !nics.contains(nic));
        let spare = others.filter(|_| !named).collect();
        Self { decided, spare, nics: nics.into_iter().map(with_distance).collect(), passed_over }
    }
}

impl fmt::Display for Decided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Named => "named by NVSHMEM_LIBFABRIC_DEVICES",
            Self::Host => "picked by NVSHMEM",
            Self::Near => "this PE's share of the nearest",
            Self::Unknown => "all there are",
        })
    }
}
