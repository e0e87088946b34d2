//! Descriptors: what the words of a slot mean.

use engine::ids::Pe;

use super::*;
use crate::channel::ring::descriptor::Descriptor;
use crate::channel::ring::slots_log2;

#[test]
fn put_has_documented_bits() {
    let put = Descriptor::Put {
        pe: Pe(0x1234),
        dst: region_addr(1, 0x56),
        src: region_addr(2, 0x78),
        bytes: 9,
    };
    let words = [1 << 40 | 0x56, 1 << 58 | 0x1234 << 32 | 9, 0, 2 << 40 | 0x78];
    assert_eq!(put.encode().first, words);
}

#[test]
fn places_end_with_their_fields() {
    assert_eq!(RegionIndex::new(255), None);
    let last = RegionIndex::new(254).unwrap();
    assert!(RegionAddr::new(last, (1 << 40) - 1).is_some());
    assert_eq!(RegionAddr::new(last, 1 << 40), None);
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
