//! Messages with arbitrary fields.

use engine::atomic::{Atomic, AtomicOp, Width};
use engine::ids::{Pe, RailId};
use engine::port::Addressing;
use engine::wire::message::{
    Body, MAX_EAGER, MAX_LONG_MESSAGE, Message, PlainMessage, RequestId, Spot, Tag, eager_in,
};
use engine::wire::rails::{MAX_TOLD_ADDRESS, Rails};
use engine::wire::staged::{Exposure, KEYS_PER_MESSAGE, Keys, MAX_PAYLOAD, Staged, most_brought};
use engine::wire::window::Seq;
use proptest::collection::vec;
use proptest::prelude::*;

/// A body that owns its payload.
#[derive(Clone, Debug)]
pub(crate) enum Owned {
    Plain(Body<'static>),
    PutSignal { at: Spot, atomic: Atomic, to: Spot, payload: Vec<u8> },
    Put { to: Spot, payload: Vec<u8> },
    Pull { to: Spot, from: Exposure, request_id: RequestId, brought: Vec<u8> },
    Loaded { request_id: RequestId, payload: Vec<u8> },
    Refused { request_id: RequestId, why: String },
    RailIs { rail: RailId, generation: u32, cause: u16, address: Vec<u8> },
    Probe { rail: RailId, remote: RailId, number: u32, address: Vec<u8> },
    Keys { slot: u32, stamp: u64, base: u64, virtually: bool, first: u8, beyond: u8, keys: Vec<u8> },
}

impl Owned {
    pub(crate) fn body(&self) -> Body<'_> {
        match self {
            Owned::Plain(body) => *body,
            Owned::PutSignal { at, atomic, to, payload } => {
                Body::PutSignal { at: *at, atomic: *atomic, to: *to, payload }
            }
            Owned::Put { to, payload } => Body::Staged(Staged::Put { to: *to, payload }),
            Owned::Pull { to, from, request_id, brought } => Body::Staged(Staged::Pull {
                to: *to,
                from: *from,
                len: brought.len() as u32,
                request_id: *request_id,
                brought: Some(brought),
            }),
            Owned::Loaded { request_id, payload } => {
                Body::Staged(Staged::Loaded { request_id: *request_id, payload })
            }
            Owned::Refused { request_id, why } => {
                Body::Staged(Staged::Refused { request_id: *request_id, why })
            }
            Owned::RailIs { rail, generation, cause, address } => Body::Rails(Rails::RailIs {
                rail: *rail,
                generation: *generation,
                cause: Pe((*cause).into()),
                address,
            }),
            Owned::Probe { rail, remote, number, address } => {
                Body::Rails(Rails::Probe { rail: *rail, remote: *remote, number: *number, address })
            }
            Owned::Keys { slot, stamp, base, virtually, first, beyond, keys } => {
                let addressing = if *virtually { Addressing::Virtual } else { Addressing::Offset };
                let rails = first + (keys.len() / 8) as u8 + beyond;
                let (slot, stamp, base, first) = (*slot, *stamp, *base, *first);
                let keys = Keys { slot, stamp, base, addressing, first, rails, keys };
                Body::Staged(Staged::Keys(keys))
            }
        }
    }
}

/// What the fast path must read of a message: the same, and nothing of other kinds.
pub(crate) fn as_plain<'a>(message: &Message<'a>) -> Option<PlainMessage<'a>> {
    if message.behind != 0 {
        return None;
    }
    let nowhere = Spot { slot: 0, offset: 0 };
    let (at, atomic, to, payload) = match message.body {
        Body::Atomic { at, atomic } => (at, atomic, nowhere, &[][..]),
        Body::PutSignal { at, atomic, to, payload } => (at, atomic, to, payload),
        _ => return None,
    };
    let Message { from, seq, ack, .. } = *message;
    Some(PlainMessage { from, seq, ack, at, atomic, to, payload })
}

pub(crate) fn spot() -> impl Strategy<Value = Spot> {
    (any::<u32>(), 0..1u64 << 48).prop_map(|(slot, offset)| Spot { slot, offset })
}

pub(crate) fn atomic(fetches: bool) -> impl Strategy<Value = Atomic> {
    let ops: Vec<AtomicOp> =
        AtomicOp::ALL.into_iter().filter(|op| op.fetches() == fetches).collect();
    let op = proptest::sample::select(ops);
    let width = proptest::sample::select(Width::ALL.to_vec());
    (op, width, any::<bool>(), any::<u64>(), any::<u64>()).prop_map(
        move |(op, width, float, operand, compare)| {
            let compare = if fetches { compare } else { 0 };
            Atomic { op, width, float, operand, compare }
        },
    )
}

pub(crate) fn request_id(seq: u32) -> impl Strategy<Value = RequestId> {
    any::<u32>().prop_map(move |slot| RequestId { slot, seq: Seq(seq) })
}

pub(crate) fn payload() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        9 => vec(any::<u8>(), 0..=MAX_EAGER),
        1 => vec(any::<u8>(), MAX_EAGER..=eager_in(MAX_LONG_MESSAGE)),
    ]
}

pub(crate) fn body(seq: u32) -> impl Strategy<Value = Owned> {
    prop_oneof![
        Just(Owned::Plain(Body::Ack)),
        Just(Owned::Plain(Body::AckRequest)),
        (spot(), atomic(false)).prop_map(|(at, atomic)| Owned::Plain(Body::Atomic { at, atomic })),
        (spot(), atomic(true), request_id(seq), 0u8..16).prop_map(
            |(at, atomic, request_id, place)| {
                Owned::Plain(Body::Fetch { at, atomic, request_id, place })
            }
        ),
        (request_id(seq), any::<u64>())
            .prop_map(|(request_id, value)| Owned::Plain(Body::Reply { request_id, value })),
        (spot(), atomic(false), spot(), payload())
            .prop_map(|(at, atomic, to, payload)| Owned::PutSignal { at, atomic, to, payload }),
        (spot(), atomic(false), any::<u16>(), any::<u32>()).prop_map(
            |(at, atomic, tag, segments)| {
                Owned::Plain(Body::CountedSignal { at, atomic, tag: Tag(tag), segments })
            }
        ),
        staged(seq),
        rails(),
    ]
}

pub(crate) fn rails() -> impl Strategy<Value = Owned> {
    let plain = |rails| Owned::Plain(Body::Rails(rails));
    let rail = || any::<u8>().prop_map(RailId);
    let number = any::<u32>;
    let key = any::<u64>;
    prop_oneof![
        proptest::sample::select(vec![Rails::Ping, Rails::Pong]).prop_map(plain),
        (rail(), number())
            .prop_map(move |(rail, generation)| plain(Rails::Reset { rail, generation })),
        (rail(), number())
            .prop_map(move |(rail, generation)| plain(Rails::Heard { rail, generation })),
        (any::<u32>().prop_flat_map(request_id), any::<u8>())
            .prop_map(move |(request_id, place)| plain(Rails::ReplyAgain { request_id, place })),
        (rail(), rail(), number(), vec(any::<u8>(), 0..=MAX_TOLD_ADDRESS)).prop_map(
            |(rail, remote, number, address)| Owned::Probe { rail, remote, number, address }
        ),
        (rail(), number()).prop_map(move |(rail, number)| plain(Rails::Probed { rail, number })),
        (rail(), key(), rail()).prop_map(move |(rail, key, wanted)| plain(Rails::KeyWanted {
            rail,
            key,
            wanted
        })),
        (rail(), key(), rail(), any::<Option<u64>>()).prop_map(
            move |(rail, key, wanted, found)| plain(Rails::KeyIs { rail, key, wanted, found })
        ),
        (rail(), number(), any::<u16>(), vec(any::<u8>(), 0..=MAX_TOLD_ADDRESS)).prop_map(
            |(rail, generation, cause, address)| Owned::RailIs { rail, generation, cause, address }
        ),
    ]
}

pub(crate) fn exposure() -> impl Strategy<Value = Exposure> {
    any::<(u32, u64, u64)>().prop_map(|(slot, stamp, offset)| Exposure { slot, stamp, offset })
}

pub(crate) fn staged(seq: u32) -> impl Strategy<Value = Owned> {
    let plain = |staged| Owned::Plain(Body::Staged(staged));
    let request_id = || request_id(seq);
    // Of a request that the message answers.
    let answered = || any::<u32>().prop_flat_map(self::request_id);
    let payload = || vec(any::<u8>(), 1..=MAX_PAYLOAD);
    prop_oneof![
        (spot(), payload()).prop_map(|(to, payload)| Owned::Put { to, payload }),
        (spot(), exposure(), 1..=u32::MAX, request_id()).prop_map(
            move |(to, from, len, request_id)| {
                plain(Staged::Pull { to, from, len, request_id, brought: None })
            }
        ),
        (spot(), exposure(), request_id(), vec(any::<u8>(), 1..=most_brought(MAX_LONG_MESSAGE)))
            .prop_map(|(to, from, request_id, brought)| Owned::Pull {
                to,
                from,
                request_id,
                brought
            }),
        answered().prop_map(move |request_id| plain(Staged::Pulled { request_id })),
        (spot(), 1..=u32::MAX, request_id())
            .prop_map(move |(from, len, request_id)| plain(Staged::Ask { from, len, request_id })),
        (answered(), payload())
            .prop_map(|(request_id, payload)| Owned::Loaded { request_id, payload }),
        (answered(), exposure())
            .prop_map(move |(request_id, from)| plain(Staged::Exposed { request_id, from })),
        (answered(), "[ -~]{0,232}")
            .prop_map(|(request_id, why)| Owned::Refused { request_id, why }),
        answered().prop_map(move |request_id| plain(Staged::Release { request_id })),
        (any::<(u32, u64, u64, bool)>(), 0u8..32, 0u8..4, 1..=KEYS_PER_MESSAGE).prop_flat_map(
            |((slot, stamp, base, virtually), first, beyond, n)| {
                vec(any::<u8>(), 8 * n).prop_map(move |keys| Owned::Keys {
                    slot,
                    stamp,
                    base,
                    virtually,
                    first,
                    beyond,
                    keys,
                })
            }
        ),
    ]
}

pub(crate) fn head() -> impl Strategy<Value = (u16, u32, u32)> {
    any::<(u16, u32, u32)>()
}

pub(crate) fn message() -> impl Strategy<Value = ((u16, u32, u32), Owned)> {
    head().prop_flat_map(|(from, seq, ack)| {
        body(seq).prop_map(move |owned| ((from, seq, ack), owned))
    })
}
