//! The wire format's properties, for arbitrary fields. Arbitrary bytes are for the fuzz targets.

use engine::wire::cookie::Cookie;
use engine::wire::immediate::ImmediateCodec;
use engine::wire::message::{
    Frame, HEAD, Head, MAX_REASON, Message, Numbers, SealContext, VERSION, WireError,
};
use engine::wire::seal::Seal;
use engine::wire::staging::{FURTHER_GET, MAX_GETS, MAX_KEYS, further_get, further_gets};
use proptest::prelude::*;

use crate::prelude::*;

const TO: RegionAddr = RegionAddr { region: u32::MAX, offset: (1 << 48) - 1 };
const AT: RegionAddr = RegionAddr { region: 0x0102_0304, offset: 0x0506_0708_090a };

/// Bytes of the further gets of the longest request.
const MOST_FURTHER: usize = (MAX_GETS - 1) * FURTHER_GET;

/// Calls back with a body of each kind and form, with fields that fill their places, and payloads
/// of the longest and the shortest length.
fn each_body(word: u64, mut with: impl FnMut(&Body<'_>)) {
    let low = word as u32 | 1;
    let bytes: [u8; MAX_PAYLOAD] = std::array::from_fn(|at| word.rotate_left(at as u32) as u8);
    let mut map = [0; MAP_BYTES];
    map[..32].copy_from_slice(&bytes[..32]);
    let (get, value) = (GetId { number: low, low: !low }, word);
    let bodies = [
        Body::Ack(None),
        Body::Ack(Some(&map)),
        Body::AckRequest,
        Body::Reply { reply_slot: low, low: !low, value },
        Body::Refusal { low, why: "" },
        Body::Refusal { low, why: &"~".repeat(MAX_REASON) },
        Body::GetRequest { from: AT, len: low, get: !low, more: &[] },
        Body::GetRequest { from: AT, len: low, get: !low, more: &[0x80; FURTHER_GET] },
        Body::GetRequest { from: AT, len: low, get: !low, more: &[0x80; MOST_FURTHER] },
        Body::GetReply { get, payload: &bytes },
        Body::GetReply { get, payload: &bytes[..1] },
        Body::InlinePut { to: AT, payload: &bytes },
        Body::InlinePut { to: AT, payload: &bytes[..1] },
    ];
    bodies.iter().for_each(&mut with);
    let (mut all, keys) = (Vec::new(), &bytes[..8 * MAX_KEYS]);
    for (op, width) in AtomicOp::ALL.into_iter().flat_map(|op| Width::ALL.map(|width| (op, width)))
    {
        let float = word & 1 != 0;
        if op.fetches() {
            let atomic = Atomic { op, width, float, operand: word, compare: !word };
            all.push(Body::Fetch { addr: AT, atomic, reply_slot: (word % 16) as u8 });
            continue;
        }
        let atomic = Atomic { op, width, float, operand: word, compare: 0 };
        all.push(Body::Word { addr: AT, atomic });
        for payload in [&bytes[..0], &bytes[..MAX_EAGER]] {
            all.push(Body::PutSignal { addr: AT, atomic, to: TO, payload });
        }
        all.push(Body::CountedSignal { addr: AT, atomic, tag: Tag(word as u16), segments: low });
        for signal in [None, Some((TO, atomic))] {
            let one = PullTarget::One(WireRecord {
                to: AT,
                len: low,
                offset: 0,
                signal,
                is_ordered: false,
            });
            for target in [one, PullTarget::List(low as u16 | 2), PullTarget::Get(get)] {
                for source in [PullSource::Bounce(word), PullSource::Fabric(word, keys)] {
                    all.push(Body::Pull(Pull { target, len: low, source, payload: &[] }));
                }
            }
        }
    }
    all.iter().for_each(with);
}

fn encode(seal: &Seal, from: Pe, to: Pe, numbers: &Numbers, body: &Body<'_>) -> Vec<u8> {
    let receiver = seal.receiver(to);
    let sealing = SealContext { seal, from, receiver: &receiver };
    let mut frame = Frame::EMPTY;
    let (at, payload) =
        (RegionAddr { region: u32::MAX, offset: u64::MAX >> 16 }, &[0xa5; MAX_EAGER]);
    let atomic = Atomic { operand: u64::MAX, ..ADD };
    frame.encode(&sealing, numbers, &Body::PutSignal { addr: at, atomic, to: at, payload });
    frame.encode(&sealing, numbers, body);
    frame.bytes().to_vec()
}

const ADD: Atomic =
    Atomic { op: AtomicOp::SignalAdd, width: Width::Eight, float: false, operand: 5, compare: 0 };

fn seal(share: [u8; 16], me: u16) -> Seal {
    Seal::new(Cookie::of([share]), Pe(me.into()))
}

/// Field values: all ones, all zeros, and halves that differ.
const WORDS: [u64; 4] = [u64::MAX, 0, 0x0123_4567_89ab_cdef, 0x8000_0000_0000_0001];

/// All that is written is read again, and no shorter or longer message of its kind.
#[test]
fn encoded_messages_decode() {
    let (me, to) = (Pe(0x1234), Pe(0xfedc));
    let (sender, receiver) = (seal([7; 16], 0x1234), seal([7; 16], 0xfedc));
    for word in WORDS {
        let (seq, ack, mark) = (Seq(word), Seq(word.rotate_left(16)), word as u16);
        let mask = sender.mask(me, to, seq.high());
        each_body(word, |body| {
            let bytes = encode(&sender, me, to, &Numbers { seq, ack, mark, mask }, body);
            assert!(bytes.len() <= MAX_MESSAGE, "{body:?}");
            let head = receiver.open(&bytes).unwrap();
            assert_eq!((head.from, head.seq, head.ack), (me, seq.low(), ack.low()), "{body:?}");
            let word = head.word ^ receiver.mask(me, to, seq.high());
            let message = Message::decode(head, word, &bytes).unwrap();
            assert_eq!(message.body, *body);
            let is_any_length = match body {
                Body::Refusal { .. } | Body::Ack(_) => true,
                Body::InlinePut { .. } | Body::GetReply { .. } => true,
                Body::GetRequest { .. } => true,
                // A pull may bring the bytes it is about, if they are as few.
                Body::Pull(pull) => pull.len as usize <= MAX_MESSAGE,
                _ => false,
            };
            for len in (HEAD..MAX_MESSAGE).filter(|len| *len != bytes.len()) {
                let mut other = bytes.clone();
                other.resize(len, 0);
                let is_read = Message::decode(head, word, &other).is_ok();
                assert!(!is_read || is_any_length, "{body:?}: {len}");
            }
            // Unused fields are zero, so that a later version may use them.
            for bit in 8 * HEAD..8 * bytes.len() {
                let mut changed = bytes.clone();
                changed[bit / 8] ^= 1 << (bit % 8);
                let Ok(read) = Message::decode(head, word, &changed) else { continue };
                let numbers = Numbers { seq, ack, mark: read.mark, mask };
                let again = encode(&sender, me, to, &numbers, &read.body);
                assert_eq!(again[HEAD..], changed[HEAD..], "bit {bit} of {body:?}");
            }
            for bit in (8..16).chain(16..48) {
                let kind_and_code = head.kind_and_code ^ (1_u64 << bit) as u16;
                let (head, word) =
                    (Head { kind_and_code, ..head }, word ^ (1_u64 << bit >> 16) as u32);
                let Ok(read) = Message::decode(head, word, &bytes) else { continue };
                let numbers = Numbers { seq, ack, mark: read.mark, mask };
                let again = receiver.open(&encode(&sender, me, to, &numbers, &read.body)).unwrap();
                let found = (again.kind_and_code, again.word ^ mask);
                assert_eq!(found, (kind_and_code, word), "bit {bit} of the head of {body:?}");
            }
            let is_numbered = !matches!(
                body,
                Body::Ack(_) | Body::AckRequest | Body::Reply { .. } | Body::Refusal { .. }
            );
            assert_eq!(message.mark, if is_numbered { mark } else { 0 }, "{body:?}");
        });
    }
}

/// Nor does a PE open one with a changed bit, or with the head of another message.
#[test]
fn sealed_messages_are_noise_to_others() {
    let numbers = Numbers { seq: Seq(7), ack: Seq(3), mark: 0, mask: 0 };
    let sender = seal([7; 16], 3);
    let [receiver, elsewhere, other_job] =
        [([7; 16], 5), ([7; 16], 6), ([8; 16], 5)].map(|(share, pe)| seal(share, pe));
    let opens = |seal: &Seal, bytes: &[u8]| seal.open(bytes).unwrap();
    let mut before: Option<Vec<u8>> = None;
    each_body(WORDS[2], |body| {
        let bytes = encode(&sender, Pe(3), Pe(5), &numbers, body);
        let head = opens(&receiver, &bytes);
        assert_ne!(opens(&other_job, &bytes), head, "another job's {body:?}");
        assert_ne!(opens(&elsewhere, &bytes), head, "another PE's {body:?}");
        for bit in 0..8 * bytes.len().min(48) {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(opens(&receiver, &changed), head, "bit {bit} of {body:?}");
        }
        // Bytes behind the covered ones are payload.
        let covered = |bytes: &[u8]| bytes[16..bytes.len().min(48)].to_vec();
        let other = before.replace(bytes.clone()).filter(|it| covered(it) != covered(&bytes));
        if let Some(other) = other {
            let mixed = [&bytes[..16], &other[16..]].concat();
            assert_ne!(opens(&receiver, &mixed), head, "the head of {body:?}");
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn marks_name_one_put(
        (share, other) in any::<([u8; 16], [u8; 16])>(),
        (from, to, tag) in any::<(u16, u16, u16)>(),
        (n_pes, bytes) in (2..=1_u32 << 16, prop_oneof![Just(4_u8), Just(8)]),
    ) {
        let (from, to) = (Pe(u32::from(from) % n_pes), Pe(u32::from(to) % n_pes));
        let codec = |share, me| ImmediateCodec::new(Cookie::of([share]), me, n_pes, bytes);
        let mark = codec(share, from).encode(to, Tag(tag));
        let receiver = codec(share, to);
        prop_assert_eq!(receiver.claimed_sender(mark), (from, usize::from(tag % 16)));
        prop_assert!(receiver.matches(mark, from, Tag(tag)));
        prop_assert!(bytes == 8 || mark <= u64::from(u32::MAX));
        // With four bytes few are left to tell one put from another.
        if bytes == 8 {
            prop_assert!(!receiver.matches(mark ^ 1 << 63, from, Tag(tag)));
            prop_assert!(!receiver.matches(mark, from, Tag(tag ^ 16)), "another use of its tag");
            prop_assert!(share == other || !codec(other, to).matches(mark, from, Tag(tag)));
            prop_assert!(!codec(share, Pe(to.0 + 1)).matches(mark, from, Tag(tag)), "another PE");
        }
    }
}

/// Decodes a message of a kind from its bytes, of which the head's are not looked at.
fn decode(kind: u8, code: u8, word: u32, bytes: &[u8]) -> Result<Message<'_>, WireError> {
    let what = u16::from(VERSION | kind << 4) | u16::from(code) << 8;
    let head = Head { kind_and_code: what, from: Pe(0), seq: 0, ack: 0, word };
    Message::decode(head, word, bytes)
}

#[test]
fn every_share_changes_cookie() {
    let shares = [*b"0123456789abcdef", [7; 16], *b"fedcba9876543210"];
    let cookie = Cookie::of(shares);
    for (pe, bit) in (0..3).flat_map(|pe| (0..8 * 16).map(move |bit| (pe, bit))) {
        let mut others = shares;
        others[pe][bit / 8] ^= 1 << (bit % 8);
        assert_ne!(Cookie::of(others), cookie);
    }
    assert_eq!(format!("{cookie:?}"), "Cookie", "it is not for logs");
}

#[test]
fn operation_codes_belong_to_their_kinds() {
    for code in 0..=u8::MAX {
        for (kind, len) in [(2, 32), (3, 48), (5, 48), (6, 40)] {
            let mut bytes = vec![0; len];
            if kind == 6 {
                bytes[32] = 1;
            }
            let op = AtomicOp::from_code(i32::from(code & 0x1f));
            let is_known = op.is_some_and(|op| op.fetches() == (kind == 3)) && code >> 5 & 3 < 3;
            let decoded = decode(kind, code, 0, &bytes);
            assert_eq!(decoded.is_ok(), is_known, "kind {kind}, code {code:#04x}");
        }
    }
}

/// A payload, and what a pull brings, fits its message; nobody asks for no bytes.
#[test]
fn further_gets_are_near_and_short() {
    let at = |distance: i64| RegionAddr { offset: AT.offset.wrapping_add_signed(distance), ..AT };
    for (from, len, fits) in [
        (at(0), 1, true),
        (at(-1), 0x100_0000, true),
        (at(i32::MAX.into()), 8, true),
        (at(i32::MIN.into()), 8, true),
        (at(0), 0, false),
        (at(0), 0x100_0001, false),
        (at(1 << 31), 8, false),
        (at(-(1 << 31) - 1), 8, false),
        (RegionAddr { region: AT.region + 1, ..AT }, 8, false),
    ] {
        let read = further_get(AT, from, len).map(|more| further_gets(AT, &more).collect());
        assert_eq!(read, fits.then(|| vec![(from, len)]));
    }
}

#[test]
fn messages_are_as_long_as_said() {
    // With a number at a place, and so many bytes in all.
    let read = |kind: u8, len: usize, at: usize, said: u32, keys: u8| {
        let mut bytes = vec![0; len];
        bytes[at..at + 4].copy_from_slice(&said.to_le_bytes());
        if kind == 10 {
            bytes[31] = keys;
        }
        let code = if kind == 5 { AtomicOp::Add as u8 } else { 0 };
        decode(kind, code, 0, &bytes).is_ok()
    };
    let put = |said: usize, has: usize| read(5, 48 + has, 36, said as u32, 0);
    let most = eager_in(MAX_LONG_MESSAGE);
    for len in [0, 1, MAX_EAGER, MAX_EAGER + 1, most] {
        assert!(put(len, len) && !put(len + 1, len) && !put(len, len + 1), "{len}");
    }
    assert!(!put(most + 1, most + 1));
    // A pull brings all or nothing, and has no more keys than fit a message.
    let pull = |len: u32, keys: u8, has: usize| read(10, 88 + has, 24, len, keys);
    let most = MAX_KEYS as u8;
    assert!(pull(9, 0, 0) && pull(9, 2, 16) && pull(9, 2, 25) && pull(9, most, 8 * MAX_KEYS));
    assert!(!pull(0, 0, 0) && !pull(9, 2, 15) && !pull(9, 2, 24) && !pull(9, 2, 26));
    assert!(!pull(9, most + 1, 8 * MAX_KEYS + 8));
    let longest = MAX_LONG_MESSAGE - 88;
    assert!(pull(longest as u32, 0, longest) && !pull(longest as u32 + 1, 0, longest + 1));
    assert!(read(9, 32, 24, 1, 0) && !read(9, 32, 24, 0, 0));
    assert!(decode(8, 0, 0, &[0; 24]).is_err() && decode(11, 0, 0, &[0; 24]).is_err());
}

#[test]
fn seals_of_a_job_stay() {
    let sender = seal(*b"0123456789abcdef", 3);
    let numbers = Numbers { seq: Seq::FIRST, ack: Seq(7), mark: 0, mask: 0 };
    for (len, head, body) in [
        (16, 0xe5e1_3406_c459_0169, Body::AckRequest),
        (32, 0x9109_2660_b49d_5b57, Body::Word { addr: AT, atomic: ADD }),
        (
            40,
            0x1ff7_e5ff_72c1_917f,
            Body::CountedSignal { addr: AT, atomic: ADD, tag: Tag(9), segments: 5 },
        ),
        (
            MAX_MESSAGE,
            0x52d0_dec2_22f7_b426,
            Body::PutSignal { addr: AT, atomic: ADD, to: TO, payload: &[7; MAX_EAGER] },
        ),
    ] {
        let bytes = encode(&sender, Pe(3), Pe(5), &numbers, &body);
        let found = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
        assert_eq!((bytes.len(), found), (len, head));
    }
    assert_eq!(sender.mask(Pe(3), Pe(5), 9), 0x8c1b_974e);
}

#[test]
fn refusals_are_cut_between_characters() {
    let sender = seal([1; 16], 0);
    let numbers = Numbers { seq: Seq(1), ack: Seq(1), mark: 0, mask: 0 };
    for (most, last) in [(MAX_REASON, "x"), (MAX_REASON - 1, "ä")] {
        let why = "x".repeat(most) + last;
        let bytes = encode(&sender, Pe(0), Pe(0), &numbers, &Body::Refusal { low: 1, why: &why });
        let head = sender.open(&bytes).unwrap();
        let told = Body::Refusal { low: 1, why: &why[..most] };
        assert_eq!(Message::decode(head, head.word, &bytes).unwrap().body, told);
    }
}
