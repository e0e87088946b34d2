//! The wire format's properties, for arbitrary fields and arbitrary bytes.

mod arbitrary;

use engine::atomic::{Atomic, AtomicOp, Width};
use engine::ids::Pe;
use engine::port::Addressing;
use engine::wire::cookie::Cookie;
use engine::wire::marks::Marks;
use engine::wire::message::{
    Body, LongPacket, MAX_EAGER, MAX_LONG_MESSAGE, MAX_MESSAGE, Message, Packet, PlainMessage,
    RequestId, Spot, Tag, VERSION, WireError, eager_in,
};
use engine::wire::rails::Rails;
use engine::wire::seal::Seal;
use engine::wire::staged::{Exposure, Keys, MAX_PAYLOAD, Staged};
use engine::wire::window::Seq;
use proptest::collection::vec;
use proptest::prelude::*;

use self::arbitrary::*;

fn encode((from, seq, ack): (u16, u32, u32), body: Body<'_>) -> LongPacket {
    // What an earlier message left in the packet must not shine through.
    let mut packet = LongPacket::EMPTY;
    packet.fill(&[0xa5; MAX_LONG_MESSAGE]);
    let (from, seq, ack) = (Pe(from.into()), Seq(seq), Seq(ack));
    Message { from, seq, ack, behind: 0, body }.encode(&mut packet);
    packet
}

/// The bytes that mean nothing in a message of this kind: the receiver refuses any but zeros.
fn reserved(kind: u8) -> &'static [usize] {
    match kind {
        1 => &[1, 12, 13, 14, 15],
        3 => &[45, 46, 47],
        4 => &[1],
        6 => &[38, 39],
        8 => &[1, 36, 37, 38, 39],
        12 => &[1, 28, 29, 30, 31],
        15 => &[1, 35, 36, 37, 38, 39],
        7.. => &[1],
        _ => &[],
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_was_encoded_is_decoded((head, owned) in message()) {
        let packet = encode(head, owned.body());
        let message = Message::decode(packet.bytes()).unwrap();
        prop_assert_eq!(message.body, owned.body());
        prop_assert_eq!(PlainMessage::decode(packet.bytes()), as_plain(&message));
        prop_assert_eq!((message.from, message.seq, message.ack), (Pe(head.0.into()), Seq(head.1), Seq(head.2)));
        let len = match owned.body() {
            Body::Ack | Body::AckRequest => 16,
            Body::Reply { .. } => 24,
            Body::Rails(Rails::RailIs { address, .. } | Rails::Probe { address, .. }) => {
                40 + address.len()
            }
            Body::Rails(_) => 40,
            Body::Atomic { .. } => 32,
            Body::Fetch { .. } => 48,
            Body::CountedSignal { .. } => 40,
            Body::PutSignal { payload, .. } => 48 + payload.len(),
            Body::PutSignalHead { .. } => 48,
            Body::Staged(staged) => match staged {
                Staged::Put { payload, .. } => 24 + payload.len(),
                Staged::Pull { brought, .. } => 56 + brought.map_or(0, <[u8]>::len),
                Staged::Pulled { .. } | Staged::Release { .. } => 24,
                Staged::Ask { .. } => 32,
                Staged::Exposed { .. } => 48,
                Staged::Loaded { payload, .. } => 24 + payload.len(),
                Staged::Refused { why, .. } => 24 + why.len(),
                Staged::Keys(keys) => 40 + keys.keys.len(),
            },
        };
        prop_assert_eq!(packet.bytes().len(), len);
    }

    #[test]
    fn a_payload_behind_its_head_is_read_as_one_piece(
        head: (u16, u32, u32),
        (at, atomic, to) in (spot(), atomic(false), spot()),
        payload in payload(),
    ) {
        let len = payload.len();
        let mut packet = Packet::EMPTY;
        packet.fill(&[0xa5; MAX_MESSAGE]);
        let (from, seq, ack) = (Pe(head.0.into()), Seq(head.1), Seq(head.2));
        let body = Body::PutSignalHead { at, atomic, to, len };
        Message { from, seq, ack, behind: 0, body }.encode(&mut packet);
        let bytes = [packet.bytes(), &payload].concat();
        let whole = encode(head, Body::PutSignal { at, atomic, to, payload: &payload });
        prop_assert_eq!(&bytes[..], whole.bytes());
        prop_assert!(Message::decode(packet.bytes()).is_err() || len == 0, "no payload");
    }

    #[test]
    fn only_what_brings_data_is_long((head, owned) in message(), byte: u8, len in MAX_MESSAGE + 1..=MAX_LONG_MESSAGE) {
        let mut bytes = encode(head, owned.body()).bytes().to_vec();
        prop_assume!(!matches!(owned, Owned::PutSignal { .. } | Owned::Pull { .. }));
        prop_assume!(!matches!(owned.body(), Body::Staged(Staged::Pull { len: told, .. }) if told as usize == len - 56));
        bytes.resize(len, byte);
        prop_assert!(Message::decode(&bytes).is_err());
    }

    #[test]
    fn numbers_change_nothing_else((before, owned) in message(), seq: u32, ack: u32) {
        let mut packet = encode(before, owned.body());
        packet.number(Seq(seq), Seq(ack));
        let direct = encode((before.0, seq, ack), owned.body());
        prop_assert_eq!(packet.bytes(), direct.bytes());
    }

    /// What a request comes behind is in its bytes 22 and 23, and nowhere else. The short way
    /// leaves it to the long one.
    #[test]
    fn a_request_says_what_it_comes_behind((head, owned) in message(), behind: u16) {
        use Body::{Atomic, CountedSignal, Fetch, PutSignal};
        let body = owned.body();
        let is_request = matches!(body, Atomic { .. } | CountedSignal { .. } | Fetch { .. } | PutSignal { .. })
            || matches!(body, Body::Staged(Staged::Put { .. } | Staged::Pull { .. } | Staged::Ask { .. }));
        if !is_request {
            return Ok(());
        }
        let (free, mut packet) = (encode(head, body), LongPacket::EMPTY);
        let message = Message { behind, ..Message::decode(free.bytes()).unwrap() };
        message.encode(&mut packet);
        prop_assert_eq!(Message::decode(packet.bytes()), Ok(message));
        prop_assert_eq!(&packet.bytes()[22..24], behind.to_le_bytes());
        prop_assert_eq!((&packet.bytes()[..22], &packet.bytes()[24..]), (&free.bytes()[..22], &free.bytes()[24..]));
        let plain = PlainMessage::decode(packet.bytes());
        prop_assert_eq!(plain, as_plain(&message));
    }

    /// The PE that it is for reads a message that was sealed, and no other process does, nor does
    /// it itself once a bit has changed.
    #[test]
    fn a_sealed_message_is_noise_to_others(
        (head, owned) in message(),
        (share, other) in any::<([u8; 16], [u8; 16])>(),
        (to, elsewhere) in any::<(u16, u16)>(),
        bit in 0..48 * 8_usize,
    ) {
        let plain = encode(head, owned.body());
        let seal = |share, pe: u16| Seal::new(Cookie::of([share]), Pe(pe.into()));
        let mut packet = plain;
        let before = seal(share, head.0).close(Pe(to.into()), &mut packet);
        let sealed = packet;
        prop_assert_eq!(&sealed.bytes()[16..], &plain.bytes()[16..]);
        prop_assert_ne!(&sealed.bytes()[..16], &plain.bytes()[..16]);
        before.put_back(&mut packet);
        prop_assert_eq!(packet.bytes(), plain.bytes());
        let opens = |share, pe, mut packet: LongPacket| {
            seal(share, pe).open(&mut packet);
            packet.bytes()[..16] == plain.bytes()[..16]
        };
        prop_assert!(opens(share, to, sealed));
        prop_assert!(share == other || !opens(other, to, sealed));
        prop_assert!(to == elsewhere || !opens(share, elsewhere, sealed));
        // Of the words behind the head, whole ones are covered.
        let covered = (sealed.bytes().len() & !7).min(48);
        let mut bytes = sealed.bytes().to_vec();
        if bit < 8 * covered {
            bytes[bit / 8] ^= 1 << (bit % 8);
            packet.fill(&bytes);
            prop_assert!(!opens(share, to, packet), "bit {} of {}", bit, bytes.len());
        }
    }

    #[test]
    fn a_message_that_was_seen_gives_no_other((head, owned) in message(), (next, other) in message(), share in any::<[u8; 16]>()) {
        let seal = Seal::new(Cookie::of([share]), Pe(head.0.into()));
        let (seen, wanted) = (encode(head, owned.body()), encode(next, other.body()));
        let mut sealed = seen;
        seal.close(Pe(1), &mut sealed);
        let mut bytes = wanted.bytes().to_vec();
        let same = seen.bytes()[..48.min(seen.bytes().len())] == bytes[..48.min(bytes.len())];
        let opened = |bytes: &[u8]| {
            let mut packet = LongPacket::EMPTY;
            packet.fill(bytes);
            Seal::new(Cookie::of([share]), Pe(1)).open(&mut packet);
            packet.bytes()[..16].to_vec()
        };
        let pad = seen.bytes().iter().zip(sealed.bytes()).map(|(plain, over)| plain ^ over);
        bytes.iter_mut().zip(pad).take(16).for_each(|(byte, pad)| *byte ^= pad);
        prop_assert!(same || opened(&bytes) != wanted.bytes()[..16], "its pad");
        bytes[..16].copy_from_slice(&sealed.bytes()[..16]);
        prop_assert!(same || opened(&bytes) != seen.bytes()[..16] || bytes[16..] == seen.bytes()[16..], "its head");
    }

    #[test]
    fn a_mark_is_of_one_put(
        (share, other) in any::<([u8; 16], [u8; 16])>(),
        (from, to, tag) in any::<(u16, u16, u16)>(),
        (n_pes, bytes) in (2..=1_u32 << 16, prop_oneof![Just(4_u8), Just(8)]),
    ) {
        let (from, to) = (Pe(u32::from(from) % n_pes), Pe(u32::from(to) % n_pes));
        let marks = |share, me| Marks::new(Cookie::of([share]), me, n_pes, bytes);
        let mark = marks(share, from).of_mine(to, Tag(tag));
        let receiver = marks(share, to);
        prop_assert_eq!(receiver.named(mark), (from, usize::from(tag % 16)));
        prop_assert!(receiver.is_of(mark, from, Tag(tag)));
        prop_assert!(bytes == 8 || mark <= u64::from(u32::MAX));
        // Where the fabric carries four bytes, few are left to tell one put from another in a job
        // as large as may be.
        if bytes == 8 {
            prop_assert!(!receiver.is_of(mark ^ 1 << 63, from, Tag(tag)));
            prop_assert!(!receiver.is_of(mark, from, Tag(tag ^ 16)), "another use of its slot");
            prop_assert!(share == other || !marks(other, to).is_of(mark, from, Tag(tag)));
            prop_assert!(!marks(share, Pe(to.0 + 1)).is_of(mark, from, Tag(tag)), "another receiver");
        }
    }

    #[test]
    fn other_lengths_are_refused((head, owned) in message(), byte: u8) {
        let packet = encode(head, owned.body());
        // A message that ends with its payload says with its length how long that is.
        let open = match owned {
            Owned::Put { .. } => Some((25, MAX_MESSAGE)),
            Owned::Loaded { .. } => Some((25, MAX_MESSAGE)),
            Owned::Refused { .. } => Some((24, MAX_MESSAGE)),
            Owned::Keys { .. } => Some((48, MAX_MESSAGE)),
            Owned::RailIs { .. } | Owned::Probe { .. } => Some((40, MAX_MESSAGE)),
            _ => None,
        };
        // One that brings what it tells of may also bring nothing.
        let bare = match owned.body() {
            Body::Staged(Staged::Pull { len: 1, brought: None, .. }) => return Ok(()),
            Body::Staged(Staged::Pull { brought: Some(_), .. }) => 56,
            _ => 0,
        };
        for len in (0..packet.bytes().len()).filter(|len| *len == 0 || *len != bare) {
            if open.is_none_or(|(least, _)| len < least) {
                let cut = &packet.bytes()[..len];
                prop_assert!(Message::decode(cut).is_err(), "cut to {}", len);
                prop_assert_eq!(PlainMessage::decode(cut), None, "cut to {}", len);
            }
        }
        let mut longer = packet.bytes().to_vec();
        longer.resize(open.map_or(longer.len(), |(_, most)| most) + 1, byte);
        prop_assert!(Message::decode(&longer).is_err());
        prop_assert_eq!(PlainMessage::decode(&longer), None);
    }

    #[test]
    fn other_versions_are_refused((head, owned) in message(), first: u8) {
        let mut bytes = encode(head, owned.body()).bytes().to_vec();
        bytes[0] = first;
        // There are 16 kinds, so each is one.
        if first & 0xf != VERSION {
            prop_assert!(Message::decode(&bytes).is_err());
        }
    }

    /// Bytes without a meaning leave room for one only if nobody may fill them.
    #[test]
    fn reserved_bytes_are_zero((head, owned) in message(), byte in 1u8.., pick: prop::sample::Index) {
        let mut bytes = encode(head, owned.body()).bytes().to_vec();
        let kind = bytes[0] >> 4;
        let reserved = reserved(kind);
        prop_assert!(reserved.iter().all(|at| bytes[*at] == 0));
        if !reserved.is_empty() {
            bytes[*pick.get(reserved)] = byte;
            prop_assert_eq!(Message::decode(&bytes), Err(WireError::Reserved { kind }));
        }
    }

    #[test]
    fn arbitrary_bytes_are_refused_or_understood(
        mut bytes in vec(any::<u8>(), 0..MAX_MESSAGE + 9),
        kind in 0u8..16,
        len in proptest::option::weighted(0.8, proptest::sample::select(vec![16usize, 24, 32, 40, 48, 60])),
        fits: bool,
        zeros: bool,
    ) {
        // Pure noise hardly ever gets past the first byte, so most of it is made to.
        if let Some(len) = len {
            bytes.resize(len, 0x5a);
            bytes[0] = VERSION | kind << 4;
            if fits && len >= 48 {
                bytes[36..40].copy_from_slice(&(len as u32 - 48).to_le_bytes());
            }
            for at in reserved(kind).iter().filter(|at| zeros && **at < len) {
                bytes[*at] = 0;
            }
        }
        let plain = PlainMessage::decode(&bytes);
        let Ok(message) = Message::decode(&bytes) else {
            prop_assert_eq!(plain, None);
            return Ok(());
        };
        prop_assert_eq!(plain, as_plain(&message));
        let mut again = LongPacket::EMPTY;
        message.encode(&mut again);
        prop_assert_eq!(again.bytes(), &bytes[..]);
        prop_assert!(message.from.0 < 1 << 16);
    }
}

#[test]
fn every_share_changes_the_cookie() {
    let shares = [*b"0123456789abcdef", [7; 16], *b"fedcba9876543210"];
    let cookie = Cookie::of(shares);
    for pe in 0..3 {
        for bit in 0..8 * 16 {
            let mut others = shares;
            others[pe][bit / 8] ^= 1 << (bit % 8);
            assert_ne!(Cookie::of(others), cookie);
        }
    }
    assert_eq!(format!("{cookie:?}"), "Cookie", "it is not for logs");
}

#[test]
fn every_operation_code_is_either_its_own_or_refused() {
    for code in 0..=u8::MAX {
        for (kind, len) in [(2u8, 32), (3, 48), (5, 48), (6, 40)] {
            let mut bytes = vec![0; len];
            if kind == 6 {
                bytes[32] = 1;
            }
            bytes[0] = VERSION | kind << 4;
            bytes[1] = code;
            let op = AtomicOp::from_code(i32::from(code & 0x1f));
            let known = op.is_some_and(|op| op.fetches() == (kind == 3)) && code >> 5 & 3 < 3;
            let decoded = Message::decode(&bytes);
            assert_eq!(decoded.is_ok(), known, "kind {kind}, code {code:#04x}");
        }
    }
}

#[test]
fn sizes_are_what_inline_sends_were_sized_for() {
    let add = Atomic {
        op: AtomicOp::SignalAdd,
        width: Width::Eight,
        float: false,
        operand: u64::MAX,
        compare: 0,
    };
    let at = Spot { slot: u32::MAX, offset: u64::MAX };
    let signal = encode((u16::MAX, u32::MAX, u32::MAX), Body::Atomic { at, atomic: add });
    assert_eq!(signal.bytes().len(), 32);
    let payload = [0xff; MAX_EAGER];
    let longest = Body::PutSignal { at, atomic: add, to: at, payload: &payload };
    assert_eq!(encode((0, 0, 0), longest).bytes().len(), MAX_MESSAGE);
}

const ADD: Atomic =
    Atomic { op: AtomicOp::SignalAdd, width: Width::Eight, float: false, operand: 5, compare: 0 };

#[test]
fn a_payload_is_as_long_as_its_message_says_and_fits() {
    let at = Spot { slot: 1, offset: 8 };
    let put = encode((1, 2, 3), Body::PutSignal { at, atomic: ADD, to: at, payload: &[] });
    let read = |said: usize, has: usize| {
        let mut bytes = put.bytes().to_vec();
        bytes[36..40].copy_from_slice(&(said as u32).to_le_bytes());
        bytes.resize(bytes.len() + has, 7);
        let decoded = Message::decode(&bytes).is_ok();
        (decoded, PlainMessage::decode(&bytes).is_some())
    };
    let most = eager_in(MAX_LONG_MESSAGE);
    for len in [0, 1, MAX_EAGER, MAX_EAGER + 1, most] {
        assert_eq!(read(len, len), (true, true), "{len}");
        assert_eq!(read(len + 1, len), (false, false), "cut to {len}");
        assert_eq!(read(len, len + 1), (false, false), "longer than {len}");
    }
    assert_eq!(read(most + 1, most + 1), (false, false), "too long");
}

#[test]
fn nobody_asks_for_no_bytes() {
    let request_id = RequestId { slot: 1, seq: Seq(2) };
    let to = Spot { slot: 1, offset: 8 };
    let from = Exposure { slot: 1, stamp: 2, offset: 8 };
    for (len, sound) in [(0, false), (1, true)] {
        let pull = Staged::Pull { to, from, len, request_id, brought: None };
        for staged in [pull, Staged::Ask { from: to, len, request_id }] {
            let packet = encode((1, 2, 3), Body::Staged(staged));
            let decoded = Message::decode(packet.bytes());
            assert_eq!(decoded.is_ok(), sound, "{staged:?}");
            assert!(sound || matches!(decoded, Err(WireError::Length { .. })), "{decoded:?}");
        }
    }
}

#[test]
fn keys_are_of_rails_that_there_are() {
    let read = |first: u8, rails: u8| {
        let keys = &[7; 16];
        let keys = Keys {
            slot: 1,
            stamp: 2,
            base: 64,
            addressing: Addressing::Offset,
            first,
            rails,
            keys,
        };
        let packet = encode((1, 2, 3), Body::Staged(Staged::Keys(keys)));
        Message::decode(packet.bytes()).map(|_| ())
    };
    for (first, rails) in [(0, 2), (1, 3), (253, 255)] {
        assert_eq!(read(first, rails), Ok(()), "{first} of {rails}");
        assert!(matches!(read(first, rails - 1), Err(WireError::Reserved { .. })), "{first}");
    }
}

#[test]
fn a_refusal_is_cut_between_characters() {
    let cases = [
        ("x".repeat(MAX_PAYLOAD - 1), MAX_PAYLOAD - 1),
        ("x".repeat(MAX_PAYLOAD), MAX_PAYLOAD),
        ("x".repeat(MAX_PAYLOAD + 1), MAX_PAYLOAD),
        (format!("{}ä", "x".repeat(MAX_PAYLOAD - 1)), MAX_PAYLOAD - 1),
    ];
    let request_id = RequestId { slot: 1, seq: Seq(2) };
    for (why, fits) in cases {
        let packet = encode((1, 2, 3), Body::Staged(Staged::Refused { request_id, why: &why }));
        let told = Body::Staged(Staged::Refused { request_id, why: &why[..fits] });
        assert_eq!(Message::decode(packet.bytes()).unwrap().body, told);
    }
}
