//! Messages between lanes. The first byte of an input is the kind, among those of the target; head
//! and body follow, as they are before the head is sealed.

use engine::atomic::{Atomic, AtomicOp, Width};
use engine::ids::Pe;
use engine::port::packet::MAX_MESSAGE;
use engine::wire::cookie::Cookie;
use engine::wire::message::{
    Body, Frame, HEAD, MAP_BYTES, MAX_EAGER, Message, Numbers, RegionAddr, SealContext, Seq, Tag,
    VERSION,
};
use engine::wire::probe::{probe, prober};
use engine::wire::seal::Seal;
use engine::wire::staging::{
    GetId, Pull, PullSource, PullTarget as To, RECORD as RECORD_BYTES, WireRecord,
};
use sim_fabric::SHARE;

use crate::{Target, part};

pub(crate) const PLAIN: Target = Target {
    name: "message-plain",
    short: 300,
    run: |input| read(input, |kind| kind % 8),
    seeds: || written(|kind| kind < 8),
};

pub(crate) const STAGED: Target = Target {
    name: "message-staged",
    short: 200,
    run: |input| read(input, |kind| 8 + kind % 8),
    seeds: || written(|kind| kind >= 8),
};

pub(crate) const RECORD: Target = Target {
    name: "staged-record",
    short: 300,
    run: |input| {
        let bytes: [u8; RECORD_BYTES] = part(input, 0);
        if let Some(record) = WireRecord::decode(&bytes) {
            assert_eq!(record.encode(), bytes, "{record:?}");
        }
    },
    seeds: || [None, Some(signal())].map(|signal| record(signal).encode().to_vec()).to_vec(),
};

fn read(input: &[u8], kind_of: impl FnOnce(u8) -> u8) {
    let Some((kind, bytes)) = input.split_first() else { return };
    let mut bytes = bytes.to_vec();
    if let Some(first) = bytes.first_mut() {
        *first = VERSION | kind_of(*kind) << 4;
    }
    let seal = Seal::new(Cookie::of([SHARE]), Pe(0));
    let sealed = close(&seal, Pe(0), &bytes, 0);
    if let Some((from, rail)) = prober(&seal, &sealed) {
        let seal = Seal::new(Cookie::of([SHARE]), from);
        assert_eq!(probe(&seal, Pe(0), rail).bytes(), sealed, "{from} {rail}");
    }
    let Some(head) = seal.open(&sealed) else { return assert!(bytes.len() < HEAD) };
    assert_eq!(open(&seal, &sealed, 0), bytes, "a sealed head opens to itself");
    let Ok(message) = Message::decode(head, head.word, &sealed) else { return };
    let tail = match message.body {
        Body::PutSignal { payload, .. } if payload.len() > MAX_EAGER => {
            // Its sender writes the head alone.
            return assert!(sealed.ends_with(payload));
        }
        Body::Pull(pull) => pull.payload,
        _ => &[],
    };
    let (seq, ack) = (Seq(head.seq.into()), Seq(head.ack.into()));
    let numbers = Numbers { seq, ack, mark: message.mark, mask: 0 };
    let again = frame(&seal, head.from, Pe(0), &numbers, &message.body);
    assert_eq!([again.bytes(), tail].concat(), sealed, "{message:?}");
}

/// Seals a message whose head is in the clear, and masks the head's word.
pub(crate) fn close(seal: &Seal, to: Pe, bytes: &[u8], mask: u32) -> Vec<u8> {
    let mut sealed = bytes.to_vec();
    if bytes.len() >= HEAD {
        let mut covered: [u8; MAX_MESSAGE] = part(bytes, 0);
        for (byte, mask) in covered[12..HEAD].iter_mut().zip(mask.to_le_bytes()) {
            *byte ^= mask;
        }
        seal.close(&seal.receiver(to), &mut covered, bytes.len());
        sealed[..HEAD].copy_from_slice(&covered[..HEAD]);
    }
    sealed
}

/// The inverse of [`close`], at the receiver.
fn open(seal: &Seal, bytes: &[u8], mask: u32) -> Vec<u8> {
    let head = seal.open(bytes).unwrap();
    let low =
        u64::from(head.kind_and_code) | u64::from(head.from.0) << 16 | u64::from(head.seq) << 32;
    let high = u64::from(head.ack) | u64::from(head.word ^ mask) << 32;
    [&low.to_le_bytes(), &high.to_le_bytes(), &bytes[HEAD..]].concat()
}

pub(crate) fn frame(seal: &Seal, from: Pe, to: Pe, numbers: &Numbers, body: &Body<'_>) -> Frame {
    let mut frame = Frame::EMPTY;
    frame.encode(&SealContext { seal, from, receiver: &seal.receiver(to) }, numbers, body);
    frame
}

fn written(wanted: impl Fn(u8) -> bool) -> Vec<Vec<u8>> {
    let all = bodies().into_iter().map(|body| in_the_clear(&body));
    let of_kind = all.filter(|bytes| wanted(bytes[0] >> 4));
    of_kind.map(|bytes| [&[bytes[0] >> 4], &bytes[..]].concat()).collect()
}

/// The first message of PE 1 to PE 0, before its head is sealed.
fn in_the_clear(body: &Body<'_>) -> Vec<u8> {
    let seal = Seal::new(Cookie::of([SHARE]), Pe(0));
    let numbers = Numbers { seq: Seq::FIRST, ack: Seq::FIRST, mark: 0, mask: 0 };
    open(&seal, frame(&seal, Pe(1), Pe(0), &numbers, body).bytes(), 0)
}

/// The first region of a table.
const REGION: u32 = 1 << 20;

fn atomic(op: AtomicOp) -> Atomic {
    Atomic { op, width: Width::Eight, float: false, operand: 3, compare: 0 }
}

fn signal() -> (RegionAddr, Atomic) {
    (RegionAddr { region: REGION, offset: 128 }, atomic(AtomicOp::SignalAdd))
}

fn record(signal: Option<(RegionAddr, Atomic)>) -> WireRecord {
    let to = RegionAddr { region: REGION, offset: 64 };
    WireRecord { to, len: 100, offset: 0, signal, is_ordered: false }
}

fn bodies() -> Vec<Body<'static>> {
    let at = RegionAddr { region: REGION, offset: 64 };
    let add = atomic(AtomicOp::Add);
    let of = Seq::FIRST.low();
    let get = GetId { number: 0, low: of };
    let keys = PullSource::Fabric(4096, &[1; 16]);
    let pull =
        |target, len, source, carried| Body::Pull(Pull { target, len, source, payload: carried });
    vec![
        Body::Ack(None),
        Body::Ack(Some(&[0x0f; MAP_BYTES])),
        Body::AckRequest,
        Body::Word { addr: at, atomic: add },
        Body::Fetch { addr: at, atomic: atomic(AtomicOp::FetchAdd), reply_slot: 2 },
        Body::Reply { reply_slot: 0, low: of, value: 9 },
        Body::PutSignal { addr: at, atomic: add, to: at, payload: b"payload" },
        Body::CountedSignal { addr: at, atomic: add, tag: Tag::FIRST, segments: 2 },
        Body::Refusal { low: of, why: "it is not there" },
        Body::InlinePut { to: at, payload: b"payload" },
        Body::GetRequest { from: at, len: 100, get: 0, more: &[] },
        Body::GetRequest { from: at, len: 100, get: 0, more: &[8, 0, 0, 0, 100, 0] },
        pull(To::One(record(None)), 100, keys, &[]),
        pull(To::One(record(Some(signal()))), 100, PullSource::Bounce(0), &[]),
        pull(To::List(2), 500, keys, &[]),
        pull(To::Get(get), 100, keys, &[]),
        pull(To::Get(get), 100, PullSource::Bounce(64), &[]),
        Body::GetReply { get, payload: b"payload" },
    ]
}
