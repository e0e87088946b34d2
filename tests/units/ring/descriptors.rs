//! Descriptors: what the words of a slot mean.

use engine::ids::Pe;
use nvshmem_transport_libfabric::channel::ring::descriptor::{Descriptor, Place, RegionIndex};
use nvshmem_transport_libfabric::channel::ring::slots_log2;
use proptest::prelude::*;

use super::support::{Shared, descriptors, place};

const LAP: u64 = 1 << 63;

/// Words as they come, and words whose first bits are those of a descriptor: others are refused at
/// once.
fn words() -> impl Strategy<Value = [u64; 4]> {
    let some = |bits: u64| prop_oneof![Just(0), any::<u64>().prop_map(move |word| word & bits)];
    let near = (some(u64::MAX), (0u64..7, 0u64..64, any::<u32>()), some(u64::MAX), some(u64::MAX));
    prop_oneof![
        any::<[u64; 4]>(),
        near.prop_map(|(q0, (op, flags, bytes), q2, q3)| {
            [q0, op << 58 | flags << 48 | u64::from(bytes % 9), q2, q3]
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]

    #[test]
    fn rings_return_descriptors(all in proptest::collection::vec(descriptors(), 1..40)) {
        // A ring keeps 64 slots, which is less than they need when many have two.
        let shared = Shared::new(6);
        let mut ring = shared.consumer();
        let mut number = 0;
        for descriptor in &all {
            prop_assert!(!ring.has_next());
            number = shared.write(number, descriptor);
            prop_assert!(ring.has_next());
            let put = ring.take_put().map(Descriptor::from);
            prop_assert_eq!(put.is_some(), matches!(descriptor, Descriptor::Put { .. }));
            prop_assert_eq!(put.map(Ok).or_else(|| ring.take()), Some(Ok(*descriptor)));
            prop_assert_eq!(ring.taken(), number);
            prop_assert_eq!(ring.take(), None);
        }
    }

    #[test]
    fn taken_words_decode_alike(first in words(), second in words()) {
        let shared = Shared::new(6);
        let mut ring = shared.consumer();
        shared.store(0, first);
        shared.store(1, second);
        // The first lap is 1.
        let with_lap = |[q0, q1, q2, q3]: [u64; 4]| [q0, q1 | LAP, q2, q3 | LAP];
        let decoded = Descriptor::decode(with_lap(first), Some(with_lap(second)));
        prop_assert_eq!(ring.take(), Some(decoded));
        // What is no descriptor is one slot.
        let has_second = |descriptor: Descriptor| descriptor.encode().second.is_some();
        prop_assert_eq!(ring.taken(), 1 + u64::from(decoded.is_ok_and(has_second)));
    }

    #[test]
    fn changed_bits_change_descriptors(
        descriptor in descriptors(),
        word in 0usize..8,
        bit in 0u32..64,
    ) {
        let mut encoded = descriptor.encode();
        let slot = if word < 4 { Some(&mut encoded.first) } else { encoded.second.as_mut() };
        let Some(slot) = slot else { return Ok(()) };
        slot[word % 4] ^= 1 << bit;
        let is_lap = word % 2 == 1 && bit == 63;
        let decoded = Descriptor::decode(encoded.first, encoded.second);
        prop_assert_eq!(decoded == Ok(descriptor), is_lap);
    }
}

#[test]
fn empty_slot_is_no_descriptor() {
    let error = Descriptor::decode([0; 4], None).unwrap_err();
    assert!(error.to_string().contains("there is no such operation"), "{error}");
}

#[test]
fn put_has_documented_bits() {
    let put =
        Descriptor::Put { pe: Pe(0x1234), dst: place(1, 0x56), src: place(2, 0x78), bytes: 9 };
    let words = [1 << 40 | 0x56, 1 << 58 | 0x1234 << 32 | 9, 0, 2 << 40 | 0x78];
    assert_eq!(put.encode().first, words);
}

#[test]
fn places_end_with_their_fields() {
    assert_eq!(RegionIndex::new(255), None);
    let last = RegionIndex::new(254).unwrap();
    assert!(Place::new(last, (1 << 40) - 1).is_some());
    assert_eq!(Place::new(last, 1 << 40), None);
}

#[test]
fn ring_sizes_are_powers_of_two() {
    assert_eq!(slots_log2(64), Ok(6));
    assert_eq!(slots_log2(1 << 20), Ok(20));
    for slots in [0, 1, 32, 63, 65, 4095, 1 << 21, u64::MAX] {
        let error = slots_log2(slots).unwrap_err();
        assert!(error.to_string().contains(&slots.to_string()), "{error}");
    }
}
