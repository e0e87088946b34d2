//! The plan of NICs that a PE opens, with reasons.

use std::fmt;

use super::address::PciAddress;
use super::choice::choose;
use super::distance::{Distance, Topology};

/// Source of the decision about a PE's NICs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decided {
    /// The user has named them.
    Named,
    /// The host, which was offered all of them and knows its own settings about NICs.
    Host,
    /// Distance from the PE's GPU, and the other PEs of this machine.
    Near,
    /// None: the locations of the NICs or the GPU are unknown, so all are used.
    Unknown,
}

/// NICs that a PE opens, in rail order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NicPlan {
    pub decided: Decided,
    /// The NICs, as indices into the list given, with the distance from the PE's GPU if known.
    pub nics: Vec<(usize, Option<Distance>)>,
    /// The others, nearest first, for the case that none of these opens; empty if the user has
    /// named NICs.
    pub spare: Vec<usize>,
    /// An unused NIC that is nearer than all used ones, with its distance.
    pub passed_over: Option<(usize, Distance)>,
}

#[derive(Clone, Copy, Debug)]
pub struct NicInputs<'a> {
    /// Address of each NIC.
    pub nics: &'a [Option<PciAddress>],
    /// Addresses of the GPUs of this machine's PEs, in PE order.
    pub gpus: &'a [Option<PciAddress>],
    /// Index of this PE in `gpus`.
    pub me: usize,
    /// Whether the user has named the NICs to use.
    pub named: bool,
    /// NICs picked by the host; empty if it left that to the transport.
    pub picked: &'a [usize],
}

impl NicPlan {
    /// Chooses at most `most` NICs: those that the user has named, in that order; else those that
    /// the host has picked, nearest first; else the PE's share of the nearest NICs.
    pub fn make(topology: &Topology, known: &NicInputs<'_>, most: usize) -> Self {
        let NicInputs { nics, gpus, me, named, picked } = *known;
        let ranking = choose(topology, nics, gpus, me);
        let distance = |nic: usize| ranking.iter().find(|choice| choice.nic == nic)?.distance;
        let with_distance = |nic: usize| (nic, distance(nic));
        // An index out of range sorts first, and is refused when it is opened.
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
