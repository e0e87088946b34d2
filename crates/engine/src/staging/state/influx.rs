//! The influx of short operations: those that come one behind the other, and had better go to the
//! device together.
//!
//! A program's kernel queues operations faster than a device copies, but its proxy thread hands
//! them over one by one, with a progress iteration in between. To start a copy, or to wait for a
//! word, costs the thread more than to take ten operations. So they set out with an iteration, and
//! while they flow in the lane does not iterate before a pass brings none, or there are enough.

const MOST: u32 = 32;

const APART: u32 = 4;

/// What has come since the lane has iterated last.
#[derive(Debug)]
pub(crate) struct Influx {
    /// Operations, and those since it was last asked whether more are coming.
    operations: u32,
    fresh: u32,
    apart: u32,
}

impl Influx {
    pub(crate) fn new() -> Self {
        Self { operations: 0, fresh: 0, apart: APART }
    }

    pub(crate) fn takes(&mut self) {
        if self.apart < APART {
            self.operations += 1;
            self.fresh += 1;
        }
        self.apart = 0;
    }

    #[inline]
    pub(crate) fn goes_on(&mut self) -> bool {
        if std::mem::take(&mut self.fresh) != 0 && self.operations < MOST {
            return true;
        }
        self.operations = 0;
        self.apart = self.apart.saturating_add(1);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn for_what_comes_alone_the_lane_iterates_at_once() {
        let mut burst = Influx::new();
        for _ in 0..10 {
            burst.takes();
            (0..APART).for_each(|_| assert!(!burst.goes_on()));
        }
    }

    #[test]
    fn the_lane_iterates_once_nothing_more_comes_or_enough_has() {
        let mut burst = Influx::new();
        burst.takes();
        for _ in 0..3 {
            for _ in 1..MOST {
                burst.takes();
                assert!(burst.goes_on());
            }
            burst.takes();
            assert!(!burst.goes_on(), "there are enough");
        }
        (0..2).for_each(|_| burst.takes());
        assert!(burst.goes_on() && !burst.goes_on());
    }
}
