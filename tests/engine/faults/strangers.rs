//! Strangers: they reach the ports of rails, and have read along, but know nothing of the job's
//! key.

use engine::atomic::AtomicOp;
use engine::ids::{Pe, RailId};
use engine::wire::cookie::Cookie;
use engine::wire::immediate::ImmediateCodec;
use engine::wire::message::{Body, Numbers, RegionAddr, Seq, Tag};
use engine::wire::seal::Seal;
use sim_fabric::FakeFabric;

use crate::forge::{ahead, atomic, sealed};
use crate::job::{FIRST_REGION, Shape};
use crate::race::Random;

/// One thing that somebody sends to a rail of the job: noise, what would be right with another key,
/// or a message that was there before, as it was, to another PE, or altered.
pub(super) fn send(fabric: &FakeFabric, random: &mut Random, shape: &Shape) {
    let pe = |random: &mut Random| Pe(random.below(shape.n_pes as usize) as u32);
    let (to, from) = (pe(random), pe(random));
    let rail = RailId(random.below(shape.rails.into()) as u8);
    let others = Cookie::of([[1 + random.below(200) as u8; 16]]);
    let heard = fabric.overheard();
    match random.below(8) {
        0 => fabric.break_message(to, rail, [265, 125, 104, 22][random.below(4)]),
        1 => fabric.forge_immediate_data(to, rail, random.below(usize::MAX) as u64),
        2 => {
            let codec = ImmediateCodec::new(others, from, shape.n_pes, shape.immediate_bytes);
            fabric.forge_immediate_data(to, rail, codec.encode(to, Tag::FIRST));
        }
        3 => fabric.forge_message(to, rail, &first((from, to), others, random)),
        _ if heard.is_empty() => {
            let noise: Vec<u8> = (0..random.below(256)).map(|_| random.below(256) as u8).collect();
            fabric.forge_message(to, rail, &noise);
        }
        how => {
            let (its, _, mut bytes) = heard[random.below(heard.len())].clone();
            match how {
                4 => {}
                5 => return fabric.forge_message(to, rail, &bytes),
                6 => {
                    let (_, _, other) = &heard[random.below(heard.len())];
                    let len = bytes.len().min(other.len()).min(16);
                    bytes[..len].copy_from_slice(&other[..len]);
                }
                _ => {
                    let at = random.below(bytes.len().min(48));
                    bytes[at] ^= 1 << random.below(8);
                }
            }
            fabric.forge_message(its, rail, &bytes);
        }
    }
}

/// One of the first messages between two PEs, sealed with a key.
fn first((from, to): (Pe, Pe), cookie: Cookie, random: &mut Random) -> Vec<u8> {
    let (seq, ack) = (ahead(random.below(8) as u64), Seq::FIRST);
    let at = RegionAddr { slot: FIRST_REGION, offset: 8 * random.below(100) as u64 };
    let body = Body::Word { at, atomic: atomic(AtomicOp::Set, u64::MAX) };
    let mask = |seal: &Seal| seal.mask(from, to, seq.high());
    sealed((from.0, to.0), cookie, |seal| Numbers { seq, ack, mark: 0, mask: mask(seal) }, &body)
}
