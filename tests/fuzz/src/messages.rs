//! Messages between lanes. The first byte of an input is the kind of the message, among those of
//! the target.

use engine::atomic::{Atomic, AtomicOp, Width};
use engine::ids::{Pe, RailId};
use engine::port::Addressing;
use engine::wire::message::{
    Body, LongPacket, Message, Packet, PlainMessage, RequestId, Spot, Tag, VERSION,
};
use engine::wire::rails::Rails;
use engine::wire::staged::{Exposure, Keys, Staged};
use engine::wire::window::Seq;

use crate::Target;

pub(crate) const PLAIN: Target = Target {
    name: "message-plain",
    short: 200,
    run: |input| read(input, |kind, bytes| set(bytes, 0, VERSION | (kind % 7) << 4)),
    seeds: || written(|body| !matches!(body, Body::Rails(_) | Body::Staged(_))),
};

pub(crate) const RAILS: Target = Target {
    name: "message-rails",
    run: |input| {
        read(input, |kind, bytes| {
            set(bytes, 0, VERSION);
            set(bytes, 1, kind % 16);
        })
    },
    seeds: || written(|body| matches!(body, Body::Rails(_))),
    ..PLAIN
};

pub(crate) const STAGED: Target = Target {
    name: "message-staged",
    run: |input| read(input, |kind, bytes| set(bytes, 0, VERSION | (7 + kind % 9) << 4)),
    seeds: || written(|body| matches!(body, Body::Staged(_))),
    ..PLAIN
};

fn set(bytes: &mut [u8], at: usize, value: u8) {
    if let Some(byte) = bytes.get_mut(at) {
        *byte = value;
    }
}

fn read(input: &[u8], head: impl FnOnce(u8, &mut [u8])) {
    let Some((kind, bytes)) = input.split_first() else { return };
    let mut bytes = bytes.to_vec();
    head(*kind, &mut bytes);
    let plain = PlainMessage::decode(&bytes);
    let Ok(message) = Message::decode(&bytes) else {
        return assert_eq!(plain, None, "the short way refuses what the long one does");
    };
    assert!(message.from.0 < 1 << 16);
    if let Some(plain) = plain {
        let (of_plain, of_message) = ((plain.from, plain.seq), (message.from, message.seq));
        assert_eq!((of_plain, plain.ack), (of_message, message.ack));
    }
    let mut again = LongPacket::EMPTY;
    message.encode(&mut again);
    assert_eq!(again.bytes(), bytes, "{message:?}");
}

fn written(wanted: impl Fn(&Body<'_>) -> bool) -> Vec<Vec<u8>> {
    let seq = Seq(u32::MAX - 99);
    bodies(seq).iter().filter(|body| wanted(body)).map(|body| packet(body, seq)).collect()
}

fn packet(body: &Body<'_>, seq: Seq) -> Vec<u8> {
    let mut packet = Packet::EMPTY;
    let has_number = !matches!(body, Body::Rails(_));
    let seq = if has_number { seq } else { Seq(0) };
    let message = Message { from: Pe(1), seq, ack: Seq(u32::MAX - 99), behind: 0, body: *body };
    message.encode(&mut packet);
    let kind = match body {
        Body::Rails(_) => packet.bytes()[1],
        Body::Staged(_) => (packet.bytes()[0] >> 4) - 7,
        _ => packet.bytes()[0] >> 4,
    };
    [&[kind], packet.bytes()].concat()
}

pub(crate) fn bodies(seq: Seq) -> Vec<Body<'static>> {
    // The first region of a table, as its handle names it.
    let at = Spot { slot: 1 << 20, offset: 64 };
    let (width, float) = (Width::Eight, false);
    let atomic = |op| Atomic { op, width, float, operand: 3, compare: 0 };
    let add = atomic(AtomicOp::Add);
    let request_id = RequestId { slot: 1, seq };
    let from = Exposure { slot: 1, stamp: 2, offset: 8 };
    let (rail, generation, number, key) = (RailId(0), 1, 7, 1);
    let (wanted, address) = (RailId(1), &[1, 0, 0, 0, 0, 0, 0, 0]);
    let keys = Keys {
        slot: 1,
        stamp: 2,
        base: 4096,
        addressing: Addressing::Offset,
        first: 0,
        rails: 2,
        keys: &[1; 16],
    };
    let rails = [
        Rails::Ping,
        Rails::Pong,
        Rails::Reset { rail, generation },
        Rails::RailIs { rail, generation, cause: Pe(0), address },
        Rails::Heard { rail, generation },
        Rails::ReplyAgain { request_id, place: 3 },
        Rails::Probe { rail, remote: wanted, number, address },
        Rails::Probed { rail, number },
        Rails::KeyWanted { rail, key, wanted },
        Rails::KeyIs { rail, key, wanted, found: Some(2) },
        Rails::KeyIs { rail, key, wanted, found: None },
    ];
    let staged = [
        Staged::Put { to: at, payload: b"payload" },
        Staged::Pull { to: at, from, len: 100, request_id, brought: None },
        Staged::Pull { to: at, from, len: 7, request_id, brought: Some(b"payload") },
        Staged::Pulled { request_id },
        Staged::Ask { from: at, len: 100, request_id },
        Staged::Loaded { request_id, payload: b"payload" },
        Staged::Exposed { request_id, from },
        Staged::Refused { request_id, why: "it is not there" },
        Staged::Release { request_id },
        Staged::Keys(keys),
    ];
    let plain = [
        Body::Ack,
        Body::AckRequest,
        Body::Atomic { at, atomic: add },
        Body::Fetch { at, atomic: atomic(AtomicOp::FetchAdd), request_id, place: 2 },
        Body::Reply { request_id, value: 9 },
        Body::PutSignal { at, atomic: add, to: at, payload: b"payload" },
        Body::CountedSignal { at, atomic: add, tag: Tag(1), segments: 2 },
    ];
    let rails = rails.map(Body::Rails);
    plain.into_iter().chain(staged.map(Body::Staged)).chain(rails).collect()
}
