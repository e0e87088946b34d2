//! Receive window: which messages of a peer are executed, all below a number and some after it.

use crate::wire::message::{MAP_BYTES, Seq, WINDOW};

#[derive(Clone, Debug)]
pub(crate) struct ReceiveWindow {
    /// First message that is not executed.
    next: Seq,
    /// Bit `n % WINDOW`: message `n`, after `next`, is executed.
    seen: [u64; (WINDOW / 64) as usize],
    /// Number of bits set in `seen`.
    ahead: u32,
}

impl ReceiveWindow {
    pub(crate) fn new() -> Self {
        Self { next: Seq::FIRST, seen: [0; (WINDOW / 64) as usize], ahead: 0 }
    }

    #[inline(always)]
    pub(crate) fn next(&self) -> Seq {
        self.next
    }

    /// Returns true if a message is too far ahead for a correct sender.
    #[inline(always)]
    pub(crate) fn is_beyond(&self, seq: Seq) -> bool {
        seq.0 >= self.next.0 + WINDOW
    }

    /// Returns true if a message, not beyond the window, is executed.
    #[inline(always)]
    pub(crate) fn has(&self, seq: Seq) -> bool {
        let (word, bit) = Self::bit_of(seq);
        seq < self.next || self.seen[word] & bit != 0
    }

    /// Adds an executed message, which was not executed before.
    #[inline(always)]
    pub(crate) fn insert(&mut self, seq: Seq) {
        if seq == self.next {
            self.next = seq.next();
            // Only after messages out of order, which most connections never see.
            if self.ahead != 0 {
                self.catch_up();
            }
        } else {
            let (word, bit) = Self::bit_of(seq);
            self.seen[word] |= bit;
            self.ahead += 1;
        }
    }

    /// Uncounts messages from this one on: nothing more of their sender is executed.
    #[cold]
    pub(crate) fn roll_back(&mut self, seq: Seq) {
        if seq < self.next {
            // Bits of the new window belong to other numbers.
            *self = Self { next: seq, ..Self::new() };
        }
        for seq in (seq.0..self.next.0 + WINDOW).map(Seq) {
            let (word, bit) = Self::bit_of(seq);
            self.ahead -= u32::from(self.seen[word] & bit != 0);
            self.seen[word] &= !bit;
        }
    }

    #[cold]
    fn catch_up(&mut self) {
        loop {
            let (word, bit) = Self::bit_of(self.next);
            if self.seen[word] & bit == 0 {
                return;
            }
            self.seen[word] &= !bit;
            self.ahead -= 1;
            self.next = self.next.next();
        }
    }

    /// Returns true if messages are executed that only a bitmap can acknowledge.
    #[inline(always)]
    pub(crate) fn has_beyond(&self) -> bool {
        self.ahead != 0
    }

    /// Returns the bitmap of an acknowledgement: the messages executed ahead, if any.
    pub(crate) fn map(&self) -> Option<[u8; MAP_BYTES]> {
        if self.ahead == 0 {
            return None;
        }
        let mut map = [0; MAP_BYTES];
        for ahead in 0..WINDOW {
            let (word, bit) = Self::bit_of(Seq(self.next.0 + ahead));
            if self.seen[word] & bit != 0 {
                map[(ahead / 8) as usize] |= 1 << (ahead % 8);
            }
        }
        Some(map)
    }

    #[inline(always)]
    fn bit_of(seq: Seq) -> (usize, u64) {
        let bit = seq.0 % WINDOW;
        ((bit / 64) as usize, 1 << (bit % 64))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rolled_back_messages_are_not_acknowledged() {
        for (back, left) in [(0, 0), (1, 0), (3, 0), (4, 1), (7, 3)] {
            let first = Seq::FIRST.0;
            let mut executed = ReceiveWindow::new();
            [0, 1, 3, 4, 6, 7].iter().for_each(|n| executed.insert(Seq(first + n)));
            executed.roll_back(Seq(first + back));
            assert!((back..8).all(|n| !executed.has(Seq(first + n))), "{back}");
            assert_eq!(executed.next(), Seq(first + back.min(2)));
            let map = executed.map().unwrap_or([0; MAP_BYTES]);
            let beyond: u32 = map.iter().map(|byte| byte.count_ones()).sum();
            assert_eq!((beyond, executed.ahead), (left, left), "{back}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn window_agrees_with_a_set(
            // Near ones close gaps.
            steps in proptest::collection::vec(prop_oneof![0..4_u64, 0..WINDOW + 8], 1..200)
        ) {
            let (mut executed, mut all) = (ReceiveWindow::new(), HashSet::new());
            for ahead in steps {
                let seq = Seq(executed.next().0 + ahead);
                prop_assert_eq!(executed.is_beyond(seq), ahead >= WINDOW);
                if ahead >= WINDOW {
                    continue;
                }
                prop_assert_eq!(executed.has(seq), all.contains(&seq));
                if all.insert(seq) {
                    executed.insert(seq);
                }
                let next = executed.next();
                prop_assert!(!all.contains(&next));
                let below = all.iter().filter(|seq| **seq < next).count() as u64;
                prop_assert_eq!(below, next.0 - Seq::FIRST.0);
                let is_ahead = all.iter().any(|seq| *seq > next);
                prop_assert_eq!(executed.has_beyond(), is_ahead);
                prop_assert_eq!(executed.map().is_some(), is_ahead);
                let map = executed.map().unwrap_or([0; MAP_BYTES]);
                for bit in 0..WINDOW {
                    let is_set = map[(bit / 8) as usize] >> (bit % 8) & 1 != 0;
                    prop_assert_eq!(is_set, all.contains(&Seq(next.0 + bit)));
                }
            }
        }
    }
}
