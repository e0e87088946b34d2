//! Conditions that a lost segment waits for before it is posted again.

/// What a segment that was in doubt waits for, and how often it was posted again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Waits(pub(crate) u32);

impl Waits {
    /// Nothing.
    pub(crate) const NONE: Waits = Waits(0);
    /// The fabric may have the work-request id.
    pub(crate) const FABRIC: Waits = Waits(1);
    /// The target may take the write.
    pub(crate) const TARGET: Waits = Waits(2);

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

    /// Whether it is to be posted again now.
    pub(crate) const fn is_over(self) -> bool {
        !self.has(Self::FABRIC.and(Self::TARGET))
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
            waits = waits.counting(Waits::FABRIC.and(Waits::TARGET));
            assert!(waits.has(Waits::FABRIC) && waits.has(Waits::TARGET));
            assert_eq!(waits.and(Waits::FABRIC), waits, "both are one set");
            assert!(!waits.is_over() && !waits.without(Waits::FABRIC).is_over());
            assert!(waits.without(Waits::FABRIC.and(Waits::TARGET)).is_over());
            waits = waits.again();
            assert_eq!((waits.reissues(), waits.is_over()), (count, true));
        }
    }
}
