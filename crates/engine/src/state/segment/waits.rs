//! Conditions that a lost segment waits for before it is posted again.

/// What a segment that was lost sight of waits for, and how often it was posted again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Waits(pub(crate) u32);

impl Waits {
    /// Nothing.
    pub(crate) const NONE: Waits = Waits(0);
    /// The fabric may have the token.
    pub(crate) const TOKEN: Waits = Waits(1);
    /// The target may take the write.
    pub(crate) const TARGET: Waits = Waits(2);
    /// The peer may have applied the signal of the data.
    pub(crate) const ASK: Waits = Waits(4);
    /// It has been asked.
    pub(crate) const ASKED: Waits = Waits(8);
    /// The peer has the data: it waits for nothing.
    pub(crate) const LANDED: Waits = Waits(16);

    /// Bits of what it waits for; the count is above them.
    const BITS: u32 = 8;

    /// Both.
    pub(crate) const fn and(self, other: Waits) -> Waits {
        Waits(self.0 | other.0)
    }

    /// Without any of these.
    pub(crate) const fn without(self, these: Waits) -> Waits {
        Waits(self.0 & !these.0)
    }

    /// Whether it is among them.
    pub(crate) const fn has(self, what: Waits) -> bool {
        self.0 & what.0 != 0
    }

    /// Whether it is to be posted again now, or has landed.
    pub(crate) const fn is_over(self) -> bool {
        !self.has(Self::TOKEN.and(Self::TARGET).and(Self::ASK))
    }

    /// How often it was posted again.
    pub(crate) const fn reissues(self) -> u32 {
        self.0 >> Self::BITS
    }

    /// The count alone, with these to wait for.
    pub(crate) const fn counting(self, these: Waits) -> Waits {
        Waits(self.reissues() << Self::BITS | these.0)
    }

    /// It is posted again.
    pub(crate) const fn again(self) -> Waits {
        Waits((self.reissues() + 1) << Self::BITS)
    }
}

/// Most times that a segment is posted again.
pub(crate) const REISSUES: u32 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_waits_until_nothing_of_the_last_time_can_happen_and_keeps_its_count() {
        let mut waits = Waits::NONE;
        for count in 1..=REISSUES {
            waits = waits.counting(Waits::TOKEN.and(Waits::TARGET));
            assert!(waits.has(Waits::TOKEN) && waits.has(Waits::TARGET) && !waits.has(Waits::ASK));
            assert_eq!(waits.and(Waits::TOKEN), waits, "both are one set");
            assert!(!waits.is_over() && !waits.without(Waits::TOKEN).is_over());
            let asks = waits.and(Waits::ASK).without(Waits::TOKEN.and(Waits::TARGET));
            assert!(!asks.is_over() && asks.without(Waits::ASK).is_over());
            assert!(asks.and(Waits::LANDED).without(Waits::ASK).is_over());
            waits = waits.again();
            assert_eq!((waits.reissues(), waits.is_over()), (count, true));
        }
    }
}
