//! Atomics of the fabric while connecting: what this PE offers, and the paths they take.

use crate::job::error::JobError;
use crate::settings::Settings;
use engine::atomics::fabric::{AtomicPath, TARGET_RAIL};
use engine::ids::{Pe, RailId};
use engine::rails::pairing::{atomic_rail, remote_rail};
use engine::rails::paths::PathTable;
use engine::wire::handshake::{Addresses, RailAddress};
use engine::wire::offer::{Offer, Wish};
use ofi::{AtomicSupport, AtomicsChoice, OfiPort};

/// What this PE tells the others. Without rails it has nothing, and nobody connects.
pub(crate) fn offer(settings: &Settings, support: Option<&AtomicSupport>) -> Offer {
    let wish = match settings.atomics {
        AtomicsChoice::Auto => Wish::Auto,
        AtomicsChoice::Native => Wish::Native,
        AtomicsChoice::Target => Wish::Target,
    };
    match support {
        Some(support) => Offer { wish, hardware: support.hardware, lacks: support.lacks.clone() },
        None => Offer { wish, hardware: false, lacks: Some(String::from("it has no rails")) },
    }
}

/// The way of atomics to every PE: to one rail of it, which most local rails' paths do not lead to.
///
/// Where no path does, the address of that rail is inserted for atomics alone, and at the other end
/// that of the sender, since some providers look up the senders of what they receive.
pub(crate) fn paths(
    port: &mut OfiPort,
    proxy: &PathTable,
    me: Pe,
    mine: &[RailAddress],
    peers: &[Addresses],
) -> Result<Vec<AtomicPath>, JobError> {
    let mut paths = Vec::with_capacity(peers.len());
    for (pe, Addresses(theirs)) in peers.iter().enumerate() {
        let pe = Pe(pe as u32);
        let rail = atomic_rail(me, mine, theirs);
        let to = if remote_rail(me, mine, rail, theirs) == TARGET_RAIL {
            proxy.address(pe, rail)
        } else {
            insert(port, rail, &theirs[TARGET_RAIL.index()])?
        };
        paths.push(AtomicPath { rail, to });

        let sender = atomic_rail(pe, theirs, mine);
        if remote_rail(pe, theirs, sender, mine) != TARGET_RAIL {
            insert(port, TARGET_RAIL, &theirs[sender.index()])?;
        }
    }
    Ok(paths)
}

fn insert(
    port: &mut OfiPort,
    rail: RailId,
    theirs: &RailAddress,
) -> Result<engine::port::PeerAddr, JobError> {
    let inserted = port.insert(rail, &[theirs.address.as_slice()])?;
    let refused = || JobError::Collectives {
        what: String::from("the bootstrap has a PE without an address"),
    };
    inserted.first().copied().ok_or_else(refused)
}
