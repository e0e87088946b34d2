//! Strangers: they reach the ports of rails, and have read along, but know nothing of the job's
//! key.

use engine::ids::{Pe, RailId};
use sim_fabric::FakeFabric;

use crate::job::{Random, Shape};

/// One thing that somebody sends to a rail of the job: noise, or a message that was there before,
/// as it was, to another PE, or altered.
pub(super) fn send(fabric: &FakeFabric, random: &mut Random, shape: &Shape) {
    let to = Pe(random.below(shape.n_pes as usize) as u32);
    let rail = RailId(random.below(shape.rails.into()) as u8);
    let heard = fabric.overheard();
    if heard.is_empty() || random.below(4) == 0 {
        let noise: Vec<u8> = (0..random.below(256)).map(|_| random.below(256) as u8).collect();
        return fabric.forge_message(to, rail, &noise);
    }
    let (its, _, mut bytes) = heard[random.below(heard.len())].clone();
    match random.below(4) {
        0 => fabric.forge_message(its, rail, &bytes),
        1 => fabric.forge_message(to, rail, &bytes),
        2 => {
            let (_, _, other) = &heard[random.below(heard.len())];
            let len = bytes.len().min(other.len()).min(16);
            bytes[..len].copy_from_slice(&other[..len]);
            fabric.forge_message(its, rail, &bytes);
        }
        _ => {
            let at = random.below(bytes.len().min(48));
            bytes[at] ^= 1 << random.below(8);
            fabric.forge_message(its, rail, &bytes);
        }
    }
}
