//! What the repeats of a round take, one by one.

use std::time::{Duration, Instant};

use crate::rounds::Took;

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

#[cfg(test)]
mod tests {
    use super::*;

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
