//! Strangers, who reach every rail and have read along: what they send has no effect.

use engine::atomic::{Atomic, AtomicOp, Width};
use engine::ids::{Pe, RailId};
use engine::wire::cookie::Cookie;
use engine::wire::marks::Marks;
use engine::wire::message::{Body, Message, Packet, Spot, Tag};
use engine::wire::seal::Seal;
use engine::wire::window::Seq;
use sim_fabric::FakeFabric;

use crate::job::{FIRST_REGION, Random, Shape};

pub(super) fn send(fabric: &FakeFabric, random: &mut Random, shape: &Shape) {
    let n_pes = shape.n_pes as usize;
    let (to, from) = (Pe(random.below(n_pes) as u32), Pe(random.below(n_pes) as u32));
    let rail = RailId(random.below(shape.rails.into()) as u8);
    let others = Cookie::of([[1 + random.below(200) as u8; 16]]);
    match random.below(7) {
        0 => fabric.break_message(to, rail, [265, 125, 104, 22][random.below(4)]),
        1 => {
            let bytes: Vec<u8> = (0..random.below(80)).map(|_| random.below(256) as u8).collect();
            fabric.forge_message(to, rail, &bytes);
            fabric.forge_control(to, rail, &bytes[..bytes.len().min(60)]);
        }
        2 => fabric.forge_message(to, rail, first(from, random).bytes()),
        3 => {
            let mut packet = first(from, random);
            Seal::new(others, from).close(to, &mut packet);
            fabric.forge_message(to, rail, packet.bytes());
        }
        4 => fabric.forge_immediate_data(to, rail, random.below(usize::MAX) as u64),
        5 => {
            let marks = Marks::new(others, from, shape.n_pes, 8);
            fabric.forge_immediate_data(to, rail, marks.of_mine(to, Tag::FIRST));
            fabric.forge_immediate_data(
                to,
                rail,
                u64::from(from.0) << 16 | u64::from(Tag::FIRST.0),
            );
        }
        _ => {
            let heard = fabric.overheard();
            let Some((pe, rail, mut bytes)) =
                (!heard.is_empty()).then(|| heard[random.below(heard.len())].clone())
            else {
                return;
            };
            let elsewhere = Pe((pe.0 + 1) % shape.n_pes);
            fabric.forge_message(elsewhere, rail, &bytes);
            let covered = bytes.len().min(48) & !7;
            if covered > 0 {
                bytes[random.below(covered)] ^= 1 << random.below(8);
                fabric.forge_message(pe, rail, &bytes);
            }
        }
    }
}

fn first(from: Pe, random: &mut Random) -> Packet {
    let (op, width) = (AtomicOp::Set, Width::Eight);
    let atomic = Atomic { op, width, float: false, operand: u64::MAX, compare: 0 };
    let at = Spot { slot: FIRST_REGION, offset: 8 * random.below(100) as u64 };
    let (seq, ack) =
        (Seq((u32::MAX - 99).wrapping_add(random.below(8) as u32)), Seq(u32::MAX - 99));
    let mut packet = Packet::EMPTY;
    Message { from, seq, ack, behind: 0, body: Body::Atomic { at, atomic } }.encode(&mut packet);
    packet
}
