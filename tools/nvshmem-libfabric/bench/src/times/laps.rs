//! Laps: the times of a round's repeats, one by one.

use std::time::{Duration, Instant};

use crate::times::rounds::Took;

/// The times of the repeats of a round, kept from one round to the next for their memory.
#[derive(Debug, Default)]
pub(crate) struct Laps {
    nanos: Vec<u64>,
    start: Option<Instant>,
    whole: Duration,
}

impl Laps {
    /// Begins a round with so many repeats.
    pub(crate) fn begin(&mut self, count: u64) {
        self.nanos.clear();
        self.nanos.reserve(count as usize);
        (self.start, self.whole) = (None, Duration::ZERO);
    }

    /// A repeat begins.
    #[inline]
    pub(crate) fn start(&mut self) {
        self.start = Some(Instant::now());
    }

    /// It has ended.
    #[inline]
    pub(crate) fn stop(&mut self) {
        let lap = self.start.map_or(Duration::ZERO, |start| start.elapsed());
        self.nanos.push(lap.as_nanos() as u64);
        self.whole += lap;
    }

    /// The round: as if every repeat had taken what the median one took. Those during which the
    /// scheduler gave the core to somebody else take thousands of times as long, and would be all
    /// that a mean tells of.
    pub(crate) fn took(&mut self, whole: Option<Duration>) -> Took {
        let count = self.nanos.len();
        let median = match count {
            0 => 0,
            _ => *self.nanos.select_nth_unstable(count / 2).1,
        };
        let counted = Duration::from_nanos(median * count as u64);
        Took { whole: whole.unwrap_or(self.whole), counted }
    }
}

/// Into how large parts a window is cut so that a part takes about as long as something else:
/// `wanted` operations would take just as long.
pub(crate) fn part_of(window: usize, wanted: f64) -> usize {
    // By proportion: twice as long is as far as half as long.
    let distance = |part: usize| (part as f64 / wanted.max(1.0)).ln().abs();
    (1..=window)
        .filter(|part| window % part == 0)
        .min_by(|a, b| distance(*a).total_cmp(&distance(*b)))
        .unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_cut_into_equal_parts_of_about_the_size_that_is_wanted() {
        assert_eq!(
            [0.1, 5.0, 11.0, 12.0, 60.0, 1e9].map(|n| part_of(64, n)),
            [1, 4, 8, 16, 64, 64]
        );
        assert_eq!([2.0, 15.0, 50.0].map(|n| part_of(63, n)), [3, 21, 63]);
    }

    #[test]
    fn one_long_lap_moves_nothing_but_the_whole() {
        let mut laps = Laps { nanos: vec![3, 1_000_000, 2, 4, 3], ..Laps::default() };
        laps.whole = Duration::from_nanos(1_000_012);
        let took = laps.took(None);
        assert_eq!(took.counted, Duration::from_nanos(5 * 3));
        assert_eq!(took.whole, laps.whole);
        laps.begin(0);
        assert_eq!(laps.took(None), Took::from(Duration::ZERO));
    }
}
