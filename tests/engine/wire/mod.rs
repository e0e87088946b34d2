//! The wire format under arbitrary fields and arbitrary bytes.

mod arbitrary;

use engine::atomic::{Atomic, AtomicOp, Width};
use engine::ids::Pe;
use engine::port::packet::{MAX_LONG_MESSAGE, MAX_MESSAGE};
use engine::wire::cookie::Cookie;
use engine::wire::marks::Marks;
use engine::wire::message::{
    Body, Frame, Head, MAX_EAGER, MAX_REASON, Message, Numbers, Sealing, Seq, Spot, Tag, VERSION,
    WireError, eager_in,
};
use engine::wire::seal::Seal;
use engine::wire::staged::{RECORD, Record};
use proptest::collection::vec;
use proptest::prelude::*;

use self::arbitrary::{NOWHERE, numbers, owned, record};

const SHARE: [u8; 16] = [3; 16];
const ADD: Atomic =
    Atomic { op: AtomicOp::SignalAdd, width: Width::Eight, float: false, operand: 5, compare: 0 };
const PLAIN: Numbers = Numbers { seq: Seq(7), ack: Seq(3), mark: 0, mask: 0 };

/// Bytes of a message from one PE to another, sealed in the job of a share.
fn sealed(share: [u8; 16], pes: (u16, u16), numbers: &Numbers, body: &Body<'_>) -> Vec<u8> {
    let (from, to) = (Pe(pes.0.into()), Pe(pes.1.into()));
    let seal = Seal::new(Cookie::of([share]), from);
    let receiver = seal.receiver(to);
    let sealing = Sealing { seal: &seal, from, receiver: &receiver };
    let mut frame = Frame::EMPTY;
    // What an earlier message left in the frame must not shine through.
    let noise = [0xa5; MAX_MESSAGE];
    let before = Body::PutSignal { at: NOWHERE, atomic: ADD, to: NOWHERE, payload: &noise };
    frame.encode(&sealing, numbers, &before);
    frame.encode(&sealing, numbers, body);
    // The bytes that a pull brings are sent from where they lie.
    let brought = if let Body::Pull(pull) = body { pull.brought } else { &[] };
    [frame.bytes(), brought].concat()
}

/// The head that a PE reads in a sealed message.
fn opened(share: [u8; 16], me: u16, bytes: &[u8]) -> Option<Head> {
    Seal::new(Cookie::of([share]), Pe(me.into())).open(bytes)
}

/// The bytes of a head before it is sealed.
fn head_bytes(head: Head) -> [u8; 16] {
    let low = u64::from(head.what) | u64::from(head.from.0) << 16 | u64::from(head.seq) << 32;
    let high = u64::from(head.ack) | u64::from(head.word) << 32;
    (u128::from(low) | u128::from(high) << 64).to_le_bytes()
}

/// As [`sealed`], before it is sealed.
fn plain(numbers: &Numbers, body: &Body<'_>) -> Vec<u8> {
    let mut bytes = sealed(SHARE, (0, 0), numbers, body);
    let head = opened(SHARE, 0, &bytes).unwrap();
    bytes[..16].copy_from_slice(&head_bytes(head));
    bytes
}

/// Decodes a message that is not sealed, and has no mask.
fn decode(bytes: &[u8]) -> Option<Result<Message<'_>, WireError>> {
    let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let head = Head::of(word(0)?, word(8)?);
    Some(Message::decode(head, head.word, bytes))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn messages_are_read_as_written(pes: (u16, u16), numbers in numbers(), owned in owned()) {
        let bytes = sealed(SHARE, pes, &numbers, &owned.body());
        let head = opened(SHARE, pes.1, &bytes).unwrap();
        let found = (head.from, head.seq, head.ack);
        prop_assert_eq!(found, (Pe(pes.0.into()), numbers.seq.low(), numbers.ack.low()));
        let message = Message::decode(head, head.word ^ numbers.mask, &bytes).unwrap();
        prop_assert_eq!(message.body, owned.body());
        prop_assert_eq!(message.mark, if owned.is_numbered() { numbers.mark } else { 0 });
    }

    #[test]
    fn records_are_read_as_written(record in record()) {
        prop_assert_eq!(Record::decode(&record.encode()), Some(record));
    }

    #[test]
    fn arbitrary_records_are_refused_or_read(bytes in vec(any::<u8>(), RECORD)) {
        let Some(record) = Record::decode(&bytes) else { return Ok(()) };
        prop_assert_eq!(Record::decode(&record.encode()), Some(record));
    }

    /// What is read has no other meaning: it is written as it was.
    #[test]
    fn changed_messages_are_refused_or_read(
        owned in owned(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        (code, word) in any::<(u8, u32)>(),
        len in proptest::option::of(0..300_usize),
    ) {
        let mut bytes = plain(&PLAIN, &owned.body());
        bytes[1] = if code & 1 == 0 { bytes[1] } else { code };
        if word & 1 != 0 {
            bytes[12..16].copy_from_slice(&word.to_le_bytes());
        }
        for (at, byte) in changes {
            *at.get_mut(&mut bytes[12..]) = byte;
        }
        if let Some(len) = len {
            bytes.resize(len, 0);
        }
        let Some(Ok(Message { mark, body })) = decode(&bytes) else { return Ok(()) };
        if matches!(body, Body::PutSignal { payload, .. } if payload.len() > MAX_EAGER) {
            return Ok(());
        }
        let again = plain(&Numbers { mark, ..PLAIN }, &body);
        prop_assert_eq!(&again[..], &bytes[..]);
    }

    #[test]
    fn arbitrary_bytes_are_refused_or_read(mut bytes in vec(any::<u8>(), 0..MAX_MESSAGE + 9), kind in 0_u8..16) {
        if let Some(first) = bytes.first_mut() {
            *first = VERSION | kind << 4;
        }
        let _ = decode(&bytes);
        let _ = opened(SHARE, 1, &bytes);
    }

    #[test]
    fn other_versions_are_refused(owned in owned(), version in 0_u8..16) {
        let mut bytes = plain(&PLAIN, &owned.body());
        bytes[0] = bytes[0] & 0xf0 | version;
        let read = decode(&bytes).unwrap();
        prop_assert!(version == VERSION || read == Err(WireError::Version(version)));
    }

    /// The PE that it is for reads a message, and no other process does, nor does it itself once a
    /// bit has changed.
    #[test]
    fn sealed_messages_are_noise_to_others(
        owned in owned(),
        (share, other) in any::<([u8; 16], [u8; 16])>(),
        (from, to, elsewhere) in any::<(u16, u16, u16)>(),
        bit in 0..48 * 8_usize,
    ) {
        let bytes = sealed(share, (from, to), &PLAIN, &owned.body());
        let head = opened(share, to, &bytes).unwrap();
        prop_assert_eq!((head.from, head.seq, head.ack), (Pe(from.into()), 7, 3));
        let is_read = |share, pe, bytes: &[u8]| opened(share, pe, bytes) == Some(head);
        prop_assert!(share == other || !is_read(other, to, &bytes));
        prop_assert!(to == elsewhere || !is_read(share, elsewhere, &bytes));
        let mut changed = bytes.clone();
        if bit < 8 * bytes.len().min(48) {
            changed[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(!is_read(share, to, &changed), "bit {} of {}", bit, bytes.len());
        }
        changed.clone_from(&bytes);
        if bytes.len() < 48 {
            changed.push(0);
            prop_assert!(!is_read(share, to, &changed), "longer than {}", bytes.len());
        }
    }

    /// Neither the pad over a message's head nor its sealed head fits another message.
    #[test]
    fn seen_messages_give_no_others(owned in owned(), other in owned()) {
        let (seen, wanted) = (owned.body(), other.body());
        let cover = |body: &Body<'_>| {
            let bytes = sealed(SHARE, (0, 1), &PLAIN, body);
            (bytes.len().min(48), bytes[16..bytes.len().min(48)].to_vec())
        };
        prop_assume!(cover(&seen) != cover(&wanted));
        let head_of = |body| opened(SHARE, 1, &sealed(SHARE, (0, 1), &PLAIN, body)).unwrap();
        let over = sealed(SHARE, (0, 1), &PLAIN, &seen);
        let mut forged = sealed(SHARE, (0, 1), &PLAIN, &wanted);
        forged[..16].copy_from_slice(&over[..16]);
        prop_assert_ne!(opened(SHARE, 1, &forged), Some(head_of(&seen)), "its head");
        let pad = over.iter().zip(head_bytes(head_of(&seen))).map(|(over, plain)| over ^ plain);
        let plain = head_bytes(head_of(&wanted));
        forged.iter_mut().zip(pad).zip(plain).for_each(|((byte, pad), plain)| *byte = pad ^ plain);
        prop_assert_ne!(opened(SHARE, 1, &forged), Some(head_of(&wanted)), "its pad");
    }

    #[test]
    fn marks_are_of_one_put(
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
fn unknown_operations_are_refused() {
    let (at, tag) = (NOWHERE, Tag(0));
    let fetch = Atomic { op: AtomicOp::Fetch, ..ADD };
    let bodies = [
        (false, Body::Word { at, atomic: ADD }),
        (true, Body::Fetch { at, atomic: fetch, place: 0 }),
        (false, Body::PutSignal { at, atomic: ADD, to: at, payload: &[] }),
        (false, Body::Beside { at, atomic: ADD, tag, segments: 1 }),
    ];
    for (code, (fetches, body)) in (0..=u8::MAX).flat_map(|code| bodies.map(|of| (code, of))) {
        let mut bytes = plain(&PLAIN, &body);
        bytes[1] = code;
        let op = AtomicOp::from_code(i32::from(code & 0x1f));
        let is_known = op.is_some_and(|op| op.fetches() == fetches) && code >> 5 & 3 < 3;
        let decoded = decode(&bytes).unwrap();
        assert_eq!(decoded.is_ok(), is_known, "{body:?}, code {code:#04x}");
    }
}

#[test]
fn signals_fit_inline_sends() {
    let at = Spot { slot: u32::MAX, offset: (1 << 48) - 1 };
    assert_eq!(plain(&PLAIN, &Body::Word { at, atomic: ADD }).len(), 32);
    let payload = [0xff; MAX_EAGER];
    let longest = Body::PutSignal { at, atomic: ADD, to: at, payload: &payload };
    assert_eq!(plain(&PLAIN, &longest).len(), MAX_MESSAGE);
}

#[test]
fn payloads_are_as_long_as_said() {
    let put = Body::PutSignal { at: NOWHERE, atomic: ADD, to: NOWHERE, payload: &[] };
    let is_read = |said: usize, has: usize| {
        let mut bytes = plain(&PLAIN, &put);
        bytes[36..40].copy_from_slice(&(said as u32).to_le_bytes());
        bytes.resize(bytes.len() + has, 7);
        decode(&bytes).unwrap().is_ok()
    };
    let most = eager_in(MAX_LONG_MESSAGE);
    for len in [0, 1, MAX_EAGER, MAX_EAGER + 1, most] {
        assert!(is_read(len, len), "{len}");
        assert!(!is_read(len + 1, len), "cut to {len}");
        assert!(!is_read(len, len + 1), "longer than {len}");
    }
    assert!(!is_read(most + 1, most + 1), "too long");
}

#[test]
fn refusals_are_cut_between_characters() {
    let cases = [
        ("x".repeat(MAX_REASON - 1), MAX_REASON - 1),
        ("x".repeat(MAX_REASON), MAX_REASON),
        ("x".repeat(MAX_REASON + 1), MAX_REASON),
        (format!("{}ä", "x".repeat(MAX_REASON - 1)), MAX_REASON - 1),
    ];
    for (why, fits) in cases {
        let bytes = plain(&PLAIN, &Body::Refusal { of: 9, why: &why });
        let told = Body::Refusal { of: 9, why: &why[..fits] };
        assert_eq!(decode(&bytes).unwrap().unwrap().body, told);
    }
}
