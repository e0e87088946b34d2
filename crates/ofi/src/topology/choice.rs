use super::address::PciAddress;
use super::distance::{Distance, Topology};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RankedNic {
    /// Index into the list given.
    pub nic: usize,
    /// Distance from the PE's GPU, if known.
    pub distance: Option<Distance>,
    /// Whether it is in this PE's share of the nearest NICs.
    pub own: bool,
}

/// Ranks the NICs for one of the PEs of this host, the one with index `me` among `gpus`: its share
/// of the nearest ones, then the others by distance.
///
/// PEs with the same nearest NICs share them: each gets an equal part, or, if there are fewer NICs
/// than PEs, they are dealt out in turn. So no NIC is idle while two PEs begin with the same one.
/// The rankings of a host's PEs are consistent if all get the same lists.
///
/// If a PE's GPU, or the location of the NICs, is unknown, all NICs are equally near.
pub fn choose(
    topology: &Topology,
    nics: &[Option<PciAddress>],
    gpus: &[Option<PciAddress>],
    me: usize,
) -> Vec<RankedNic> {
    let distances = |gpu: Option<PciAddress>| -> Vec<Option<Distance>> {
        let to = |nic: &Option<PciAddress>| topology.distance(gpu?, (*nic)?);
        nics.iter().map(to).collect()
    };
    let mine = distances(gpus.get(me).copied().flatten());
    let near = nearest(&mine);
    // PEs that share these NICs, before and after this one.
    let shares = |gpu: &Option<PciAddress>| nearest(&distances(*gpu)) == near;
    let before = gpus.iter().take(me).filter(|gpu| shares(gpu)).count();
    let after = gpus.iter().skip(me + 1).filter(|gpu| shares(gpu)).count();
    let own = share(&near, before, before + 1 + after);

    let mut ranking: Vec<RankedNic> = (0..nics.len())
        .map(|nic| RankedNic { nic, distance: mine[nic], own: own.contains(&nic) })
        .collect();
    // Unknown distances last. Equal distances start from the PE's own position, cyclically: PEs
    // whose own NICs fail do not all use the first.
    let turn = own.first().copied().unwrap_or(0);
    let round = |nic: usize| (nic + nics.len() - turn) % nics.len().max(1);
    ranking.sort_by_key(|choice| {
        (!choice.own, choice.distance.is_none(), choice.distance, round(choice.nic))
    });
    ranking
}

fn nearest(distances: &[Option<Distance>]) -> Vec<usize> {
    let least = distances.iter().flatten().min();
    let is_near = |nic: &usize| least.is_none() || distances[*nic].as_ref() == least;
    (0..distances.len()).filter(is_near).collect()
}

fn share(near: &[usize], at: usize, count: usize) -> Vec<usize> {
    if near.is_empty() {
        return Vec::new();
    }
    if near.len() < count {
        return vec![near[at % near.len()]];
    }
    // Parts differ by at most one.
    let start = |at: usize| at * near.len() / count;
    near[start(at)..start(at + 1)].to_vec()
}
