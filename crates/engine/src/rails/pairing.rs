//! Pairs of local and remote rails, chosen so that senders do not meet on one rail of a receiver.

use crate::ids::{Pe, RailId};
use crate::wire::handshake::{Addresses, RailAddress};

/// Returns the local rail of the first segment to a peer; later ones take turns.
///
/// Senders that start together towards one receiver begin on different rails, and so does one
/// sender towards several receivers.
pub(crate) fn first_rail(me: Pe, peer: Pe, rails: u8) -> RailId {
    RailId((me.0.wrapping_add(peer.0) % u32::from(rails)) as u8)
}

/// Returns the rail of a peer that a local rail sends to, among those on the same fabric.
///
/// The choice advances by one for every full round of senders, so that senders whose local rails
/// are in step are out of step at the receiver. If the peer has no rail on the same fabric, rails
/// are paired by position; [`leads`] tells whether that makes sense.
pub fn remote_rail(me: Pe, local: &[RailAddress], rail: RailId, peer: &[RailAddress]) -> RailId {
    let fabric = local[rail.index()].fabric;
    let shared: Vec<usize> = (0..peer.len()).filter(|at| peer[*at].fabric == fabric).collect();
    if shared.is_empty() {
        return RailId((rail.index() % peer.len()) as u8);
    }
    // By rank, so that two local rails on one fabric choose different rails of the peer.
    let rank = local[..rail.index()].iter().filter(|other| other.fabric == fabric).count();
    let turn = me.index() / local.len();
    RailId(shared[(rank + turn) % shared.len()] as u8)
}

/// Returns true if a local rail leads to a peer: the peer has a rail on the same fabric, or no two
/// rails of both share a fabric (routed networks give each subnet a fabric of its own). If other
/// rails share one, the peer is not on this rail's network.
pub fn leads(local: &[RailAddress], rail: RailId, peer: &[RailAddress]) -> bool {
    let shares = |rail: &RailAddress| peer.iter().any(|other| other.fabric == rail.fabric);
    local.get(rail.index()).is_some_and(shares) || !local.iter().any(shares)
}

/// Iterates over the peers' rails that send to a local rail and are not in `known`, which has for
/// each peer the rail that the local one sends to. In the order of PEs and rails.
pub fn senders<'a>(
    local: &[RailAddress],
    rail: RailId,
    peers: &'a [Addresses],
    known: &[RailId],
) -> impl Iterator<Item = &'a RailAddress> {
    peers.iter().zip(known).enumerate().flat_map(move |(pe, (Addresses(peer), known))| {
        let pe = Pe(pe as u32);
        // A peer's host lane is on the device of its first rail and chooses for itself, and NICs
        // that have to know each other know devices.
        let host = remote_rail(pe, &peer[..1], RailId(0), local) == rail;
        (0..peer.len()).map(|at| RailId(at as u8)).filter_map(move |theirs| {
            let sends = remote_rail(pe, peer, theirs, local) == rail || theirs.0 == 0 && host;
            (sends && theirs != *known).then(|| &peer[theirs.index()])
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rails(fabrics: &[u64]) -> Vec<RailAddress> {
        let rail =
            |fabric: &u64| RailAddress { fabric: *fabric, address: vec![1], name: String::new() };
        fabrics.iter().map(rail).collect()
    }

    #[test]
    fn senders_spread_over_rails() {
        for n in 1..=8u8 {
            let all = rails(&vec![1; usize::from(n)]);
            let count = || vec![0; usize::from(n)];
            // The first segment of each sender, and those of senders that happen to use the same
            // local rail at one moment.
            let (mut first, mut in_step) = (count(), count());
            for me in (0..u32::from(n) * u32::from(n)).map(Pe) {
                let remote = |local| remote_rail(me, &all, local, &all).index();
                first[remote(first_rail(me, Pe(5), n))] += 1;
                in_step[remote(RailId(0))] += 1;
                let mut own: Vec<usize> = (0..n).map(|local| remote(RailId(local))).collect();
                own.sort_unstable();
                assert!(own.into_iter().eq(0..usize::from(n)), "rails of one sender differ");
            }
            let even = vec![u32::from(n); usize::from(n)];
            assert_eq!((first, in_step), (even.clone(), even));
        }
    }

    #[test]
    fn rails_to_other_fabrics_lead_nowhere() {
        let (local, peer) = (rails(&[1, 2, 3]), rails(&[3, 1]));
        let leading = |local: &[RailAddress], peer: &[RailAddress]| -> Vec<bool> {
            (0..local.len()).map(|at| leads(local, RailId(at as u8), peer)).collect()
        };
        assert_eq!(leading(&local, &peer), [true, false, true]);
        assert_eq!(leading(&peer, &local), [true, true]);
        assert_eq!(leading(&local, &rails(&[7, 8])), [true, true, true], "routed, perhaps");
        assert!(!leads(&local, RailId(3), &peer), "it does not exist");
    }

    #[test]
    fn rails_stay_on_their_fabric() {
        let local = rails(&[1, 2]);
        let peer = rails(&[2, 1, 2]);
        for me in 0..4 {
            assert_eq!(remote_rail(Pe(me), &local, RailId(0), &peer), RailId(1));
            assert_eq!(peer[remote_rail(Pe(me), &local, RailId(1), &peer).index()].fabric, 2);
        }
        let elsewhere = rails(&[8, 9]);
        assert_eq!(remote_rail(Pe(1), &local, RailId(0), &elsewhere), RailId(0));
        assert_eq!(remote_rail(Pe(1), &local, RailId(1), &elsewhere), RailId(1));
        assert_eq!(remote_rail(Pe(1), &local, RailId(1), &elsewhere[..1]), RailId(0));
    }

    #[test]
    fn unknown_senders_are_listed() {
        let local = rails(&[7, 7]);
        let peer = |pe: u8| {
            let rail = |at| RailAddress { fabric: 7, address: vec![pe, at], name: String::new() };
            Addresses((0..3).map(rail).collect())
        };
        let peers: Vec<Addresses> = (0..4).map(peer).collect();
        let heard = |rail: u8, known: [u8; 4]| -> Vec<[u8; 2]> {
            let known = known.map(RailId);
            let senders = senders(&local, RailId(rail), &peers, &known);
            senders.map(|rail| [rail.address[0], rail.address[1]]).collect()
        };
        // By PE: rails 0 to 2 of PEs 0 to 2 send to ours 0, 1, 0, those of PE 3 to 1, 0, 1; host
        // lanes of PEs 0 and 2 send to 0, those of PEs 1 and 3 to 1.
        assert_eq!(heard(0, [0; 4]), [[0, 2], [1, 2], [2, 2], [3, 1]]);
        assert_eq!(heard(0, [2, 2, 2, 1]), [[0, 0], [1, 0], [2, 0]]);
        assert_eq!(heard(1, [1, 1, 1, 0]), [[1, 0], [3, 2]]);
        assert_eq!(heard(1, [1, 0, 1, 2]), [[1, 1], [3, 0]]);
    }
}
