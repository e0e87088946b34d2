//! Regions whose bytes peers read: which of ours a peer has the keys of, and which of its we have.
//!
//! A key is 8 bytes for each rail, too many to go with every request, so they are told once to each
//! peer that is to read from the region. Messages overtake one another: a request may be there
//! before the keys that it needs, and waits for them.

use crate::ids::RailId;
use crate::port::Addressing;
use crate::wire::staged::{Exposure, Keys};

const REGIONS: usize = 1 << 14;

#[derive(Debug)]
struct Known {
    slot: u32,
    stamp: u64,
    base: u64,
    addressing: Addressing,
    keys: Box<[Option<u64>]>,
}

/// Both sides of it, for one peer. A peer has few such regions: its bounce memory, and host memory
/// that it puts from.
#[derive(Debug, Default)]
pub(crate) struct Exposures {
    /// Slots and stamps of our regions that the peer has been told of.
    told: Vec<(u32, u64)>,
    known: Vec<Known>,
}

impl Exposures {
    pub(crate) fn tell(&mut self, slot: u32, stamp: u64) -> bool {
        if self.told.contains(&(slot, stamp)) {
            return false;
        }
        // A slot that is used again has another region.
        self.told.retain(|(told, _)| *told != slot);
        self.told.push((slot, stamp));
        true
    }

    pub(crate) fn learn(&mut self, told: &Keys<'_>) -> bool {
        let Keys { slot, stamp, base, addressing, first, rails, keys } = *told;
        let newer = |known: &Known| known.slot == slot && known.stamp > stamp;
        if self.known.iter().any(newer) {
            return true;
        }
        self.known.retain(|known| known.slot != slot || known.stamp == stamp);
        let at = self.known.iter().position(|known| known.slot == slot);
        if at.is_none() && self.known.len() >= REGIONS {
            return false;
        }
        let at = at.unwrap_or_else(|| {
            let keys = vec![None; usize::from(rails)].into();
            self.known.push(Known { slot, stamp, base, addressing, keys });
            self.known.len() - 1
        });
        let places = self.known[at].keys.iter_mut().skip(usize::from(first));
        for (place, key) in places.zip(keys.chunks_exact(8)) {
            *place = key.try_into().ok().map(u64::from_le_bytes);
        }
        true
    }

    /// What to put on the wire to read from an exposure by one of the peer's rails: address and
    /// key. None as long as the peer has not told.
    pub(crate) fn find(&self, at: Exposure, rail: RailId) -> Option<(u64, u64)> {
        let same = |known: &&Known| known.slot == at.slot && known.stamp == at.stamp;
        let known = self.known.iter().find(same)?;
        let key = (*known.keys.get(rail.index())?)?;
        Some(match known.addressing {
            Addressing::Virtual => (known.base.wrapping_add(at.offset), key),
            Addressing::Offset => (at.offset, key),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(slot: u32, stamp: u64, first: u8, keys: &[u8]) -> Keys<'_> {
        let addressing = Addressing::Virtual;
        Keys { slot, stamp, base: 0x1000, addressing, first, rails: 3, keys }
    }

    #[test]
    fn keys_come_in_any_number_of_messages() {
        let mut exposures = Exposures::default();
        let at = Exposure { slot: 4, stamp: 9, offset: 16 };
        let words: Vec<u8> = [10u64, 11, 12].iter().flat_map(|key| key.to_le_bytes()).collect();
        assert_eq!(exposures.find(at, RailId(0)), None);
        exposures.learn(&keys(4, 9, 2, &words[16..]));
        assert_eq!(exposures.find(at, RailId(0)), None);
        assert_eq!(exposures.find(at, RailId(2)), Some((0x1010, 12)));
        exposures.learn(&keys(4, 9, 0, &words[..16]));
        assert_eq!(exposures.find(at, RailId(1)), Some((0x1010, 11)));
        assert_eq!(exposures.find(at, RailId(3)), None);
    }

    #[test]
    fn a_peer_is_told_of_a_region_once_and_of_another_in_its_slot_again() {
        let mut exposures = Exposures::default();
        assert!(exposures.tell(1, 1) && exposures.tell(2, 1));
        assert!(exposures.tell(2, 2), "another region");
        assert!(!exposures.tell(1, 1) && !exposures.tell(2, 2));
        assert!(exposures.tell(2, 1), "it is not the one that was told of last");
    }

    #[test]
    fn a_peer_that_tells_of_ever_more_regions_is_not_listened_to() {
        let mut exposures = Exposures::default();
        let word = 1u64.to_le_bytes();
        let told = (0..).take_while(|slot| exposures.learn(&keys(*slot, 1, 0, &word))).count();
        assert_eq!((told, exposures.known.len()), (REGIONS, REGIONS));
        assert!(exposures.learn(&keys(7, 2, 0, &word)), "in place of one that is known");
    }

    #[test]
    fn a_slot_used_again_is_another_region() {
        let mut exposures = Exposures::default();
        exposures.learn(&keys(4, 9, 0, &1u64.to_le_bytes()));
        exposures.learn(&keys(4, 10, 0, &2u64.to_le_bytes()));
        let at = |stamp| Exposure { slot: 4, stamp, offset: 0 };
        assert_eq!(exposures.find(at(9), RailId(0)), None);
        assert_eq!(exposures.find(at(10), RailId(0)), Some((0x1000, 2)));
        // Old news that comes late.
        exposures.learn(&keys(4, 9, 0, &1u64.to_le_bytes()));
        assert_eq!(exposures.find(at(10), RailId(0)), Some((0x1000, 2)));
        assert!(exposures.tell(1, 1) && !exposures.tell(1, 1) && exposures.tell(1, 2));
    }
}
