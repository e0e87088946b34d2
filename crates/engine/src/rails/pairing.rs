//! Pairs of local and remote rails, chosen so that senders do not meet on one rail of a receiver.

use crate::ids::{Pe, RailId};
use crate::wire::handshake::{Addresses, RailAddress};

/// The local rail of the first segment to a peer; later ones take turns.
///
/// Senders that start together towards one receiver begin on different rails, and so does one
/// sender towards several receivers.
pub(crate) fn first_rail(me: Pe, peer: Pe, rails: u8) -> RailId {
    RailId((me.0.wrapping_add(peer.0) % u32::from(rails)) as u8)
}

/// The rail of a peer that a local rail sends to, among those on the same fabric.
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
    let rank = local[..rail.index()].iter().filter(|other| other.fabric == fabric).count();
    let turn = me.index() / local.len();
    RailId(shared[(rank + turn) % shared.len()] as u8)
}

/// Whether a local rail leads to a peer: the peer has a rail on the same fabric, or no two rails of
/// both share a fabric (routed networks give each subnet a fabric of its own). If other rails share
/// one, the peer is not on this rail's network.
pub fn leads(local: &[RailAddress], rail: RailId, peer: &[RailAddress]) -> bool {
    let shares = |rail: &RailAddress| peer.iter().any(|other| other.fabric == rail.fabric);
    local.get(rail.index()).is_some_and(shares) || !local.iter().any(shares)
}

/// The peers' rails that send to a local rail and are not in `known`, which has for each peer the
/// rail that the local one sends to. In the order of PEs and rails.
///
/// A peer's host lane is on the device of its first rail and chooses for itself: NICs that have to
/// know each other know devices.
pub fn senders<'a>(
    local: &[RailAddress],
    rail: RailId,
    peers: &'a [Addresses],
    known: &[RailId],
) -> impl Iterator<Item = &'a RailAddress> {
    peers.iter().zip(known).enumerate().flat_map(move |(pe, (Addresses(peer), known))| {
        let pe = Pe(pe as u32);
        let host = remote_rail(pe, &peer[..1], RailId(0), local) == rail;
        (0..peer.len()).map(|at| RailId(at as u8)).filter_map(move |theirs| {
            let sends = remote_rail(pe, peer, theirs, local) == rail || theirs.0 == 0 && host;
            (sends && theirs != *known).then(|| &peer[theirs.index()])
        })
    })
}
