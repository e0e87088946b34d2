//! A map by PE, of those that something is known of.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::ids::Pe;

/// Finds what is kept of a PE in the same few instructions however many there are.
pub(crate) type PeMap<T> = HashMap<Pe, T, BuildHasherDefault<ByNumber>>;

/// The numbers of PEs are dense, and nobody chooses them.
#[derive(Default)]
pub(crate) struct ByNumber(u64);

impl Hasher for ByNumber {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32((*byte).into()));
    }

    fn write_u32(&mut self, number: u32) {
        // An odd factor keeps numbers apart in the lower bits; the upper bits of this one (2^64
        // over the golden ratio) spread.
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pe_of_a_job_has_a_place_of_its_own() {
        let mut map = PeMap::default();
        (0..1 << 16).for_each(|pe| assert_eq!(map.insert(Pe(pe), pe), None));
        assert_eq!(map.len(), 1 << 16);
        assert!((0..1 << 16).all(|pe| map.get(&Pe(pe)) == Some(&pe)));
        assert_eq!(map.get(&Pe(1 << 16)), None);
    }

    #[test]
    fn bytes_count_one_by_one() {
        let hash = |bytes: &[u8]| {
            let mut hasher = ByNumber::default();
            hasher.write(bytes);
            hasher.finish()
        };
        assert!(hash(b"ab") != hash(b"ba") && hash(b"a") != hash(b"b"));
    }
}
