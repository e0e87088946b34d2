//! Messages with arbitrary fields.

use engine::atomic::{Atomic, AtomicOp, Width};
use engine::port::packet::MAX_LONG_MESSAGE;
use engine::wire::message::{
    Body, FETCHES, MAP_BYTES, MAX_EAGER, MAX_REASON, Numbers, Seq, Spot, Tag,
};
use engine::wire::staged::{
    Get, MAX_PAYLOAD, MOST_KEYS, Pull, Record, Source, Target, most_brought,
};
use proptest::array::uniform;
use proptest::collection::vec;
use proptest::prelude::*;

pub(super) const NOWHERE: Spot = Spot { slot: 0, offset: 0 };

/// A body that owns its bytes.
#[derive(Clone, Debug)]
pub(super) enum Owned {
    Plain(Body<'static>),
    Ack(Box<[u8; MAP_BYTES]>),
    PutSignal(Spot, Atomic, Spot, Vec<u8>),
    Refusal(u32, String),
    StagedPut(Spot, Vec<u8>),
    Loaded(Get, Vec<u8>),
    Pull { target: Target, len: u32, at: u64, keys: Option<Vec<u8>>, brought: Vec<u8> },
}

impl Owned {
    pub(super) fn body(&self) -> Body<'_> {
        match self {
            Self::Plain(body) => *body,
            Self::Ack(map) => Body::Ack(Some(map)),
            Self::PutSignal(at, atomic, to, payload) => {
                Body::PutSignal { at: *at, atomic: *atomic, to: *to, payload }
            }
            Self::Refusal(of, why) => Body::Refusal { of: *of, why },
            Self::StagedPut(to, payload) => Body::StagedPut { to: *to, payload },
            Self::Loaded(get, payload) => Body::Loaded { get: *get, payload },
            Self::Pull { target, len, at, keys, brought } => {
                let source = match keys {
                    Some(keys) => Source::Fabric(*at, keys),
                    None => Source::Bounce(*at),
                };
                Body::Pull(Pull { target: *target, len: *len, source, brought })
            }
        }
    }

    /// Whether the message has a number of its own, and so a mark.
    pub(super) fn is_numbered(&self) -> bool {
        let plain =
            matches!(self, Self::Plain(Body::Ack(_) | Body::AckRequest | Body::Reply { .. }));
        !plain && !matches!(self, Self::Ack(_) | Self::Refusal(..))
    }
}

fn spot() -> impl Strategy<Value = Spot> {
    (any::<u32>(), 0..1_u64 << 48).prop_map(|(slot, offset)| Spot { slot, offset })
}

fn atomic(fetches: bool) -> impl Strategy<Value = Atomic> {
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

fn get() -> impl Strategy<Value = Get> {
    any::<(u32, u32)>().prop_map(|(number, of)| Get { number, of })
}

/// A signal with a word whose offset a record has in full.
fn signal() -> impl Strategy<Value = Option<(Spot, Atomic)>> {
    let at = any::<(u32, u64)>().prop_map(|(slot, offset)| Spot { slot, offset });
    proptest::option::of((at, atomic(false)))
}

pub(super) fn record() -> impl Strategy<Value = Record> {
    let to = any::<(u32, u64)>().prop_map(|(slot, offset)| Spot { slot, offset });
    (to, any::<(u32, u32, bool)>(), signal()).prop_map(|(to, (len, at, behind), signal)| Record {
        to,
        len,
        at,
        signal,
        behind,
    })
}

fn pull() -> impl Strategy<Value = Owned> {
    let bytes = (1..=u32::MAX, any::<u64>(), proptest::option::of(0..=MOST_KEYS), 0..3000_usize);
    let target = (spot(), signal(), get(), 0..3_u8, 2..u16::MAX);
    (bytes, target).prop_flat_map(|((len, at, keys, brought), (to, signal, get, kind, count))| {
        // What is in bounce memory is brought by nobody.
        let most = keys.map_or(0, |keys| most_brought(MAX_LONG_MESSAGE, keys));
        let brought = brought.min(most);
        let len = if brought == 0 { len } else { brought as u32 };
        let record = Record { to, len, at: 0, signal, behind: false };
        let target = [Target::One(record), Target::List(count), Target::Get(get)][kind as usize];
        let bytes = |len: usize| vec(any::<u8>(), len);
        let keys = (bytes(8 * keys.unwrap_or(0)), Just(keys.is_some()));
        (keys, bytes(brought)).prop_map(move |((keys, has_keys), brought)| {
            let keys = has_keys.then_some(keys);
            Owned::Pull { target, len, at, keys, brought }
        })
    })
}

pub(super) fn owned() -> impl Strategy<Value = Owned> {
    let bytes = |most: usize| vec(any::<u8>(), 1..=most);
    prop_oneof![
        Just(Owned::Plain(Body::Ack(None))),
        Just(Owned::Plain(Body::AckRequest)),
        uniform::<_, MAP_BYTES>(any::<u8>()).prop_map(|map| Owned::Ack(Box::new(map))),
        (spot(), atomic(false)).prop_map(|(at, atomic)| Owned::Plain(Body::Word { at, atomic })),
        (spot(), atomic(true), 0..FETCHES as u8)
            .prop_map(|(at, atomic, place)| Owned::Plain(Body::Fetch { at, atomic, place })),
        any::<(u32, u32, u64)>().prop_map(|(place, of, value)| Owned::Plain(Body::Reply {
            place,
            of,
            value
        })),
        (spot(), atomic(false), any::<(u32, u64)>(), vec(any::<u8>(), 0..=MAX_EAGER)).prop_map(
            |(at, atomic, (slot, offset), payload)| {
                Owned::PutSignal(at, atomic, Spot { slot, offset }, payload)
            }
        ),
        (spot(), atomic(false), any::<u16>(), 1..=u32::MAX).prop_map(
            |(at, atomic, tag, segments)| {
                Owned::Plain(Body::Beside { at, atomic, tag: Tag(tag), segments })
            }
        ),
        (any::<u32>(), "[ -~]{0,232}").prop_map(|(of, why)| {
            assert!(why.len() <= MAX_REASON);
            Owned::Refusal(of, why)
        }),
        (spot(), bytes(MAX_PAYLOAD)).prop_map(|(to, payload)| Owned::StagedPut(to, payload)),
        (spot(), 1..=u32::MAX, any::<u32>()).prop_map(|(from, len, get)| Owned::Plain(Body::Ask {
            from,
            len,
            get
        })),
        (get(), bytes(MAX_PAYLOAD)).prop_map(|(get, payload)| Owned::Loaded(get, payload)),
        pull(),
    ]
}

pub(super) fn numbers() -> impl Strategy<Value = Numbers> {
    any::<(u64, u64, u16, u32)>().prop_map(|(seq, ack, mark, mask)| Numbers {
        seq: Seq(seq),
        ack: Seq(ack),
        mark,
        mask,
    })
}
