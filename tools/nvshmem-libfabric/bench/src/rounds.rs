//! Rounds of several sides taken in turn, and the statistics of a noisy machine.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Seconds of one operation: a list for each side, with one value for each round.
pub type Rounds = Vec<Vec<f64>>;

/// Number and length of the rounds in which every side of a case is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Schedule {
    pub rounds: u32,
    pub least: Duration,
}

impl Schedule {
    /// Measures the sides, numbered from 0. `round` repeats a side so many times and returns the
    /// time that counts; a repeat has `ops` operations.
    ///
    /// The order of the sides rotates from round to round, so that none always runs first.
    pub fn run<E>(
        self,
        sides: usize,
        ops: u64,
        mut round: impl FnMut(usize, u64) -> Result<Duration, E>,
    ) -> Result<Rounds, E> {
        let mut repeats = vec![1; sides];
        for (side, repeats) in repeats.iter_mut().enumerate() {
            loop {
                let start = Instant::now();
                round(side, *repeats)?;
                let took = start.elapsed();
                if took >= self.least {
                    break;
                }
                // At most ten times as many: the first rounds are slow.
                let factor = 1.25 * self.least.as_secs_f64() / took.as_secs_f64().max(1e-6);
                *repeats = (*repeats as f64 * factor.min(10.0)).ceil() as u64;
            }
        }
        let mut rounds = vec![Vec::new(); sides];
        for turn in 0..self.rounds as usize {
            for place in 0..sides {
                let side = (turn + place) % sides;
                let counted = round(side, repeats[side])?;
                rounds[side].push(counted.as_secs_f64() / (repeats[side] * ops) as f64);
            }
        }
        Ok(rounds)
    }
}

pub fn ratios(of: &[f64], over: &[f64]) -> Vec<f64> {
    Iterator::zip(of.iter(), over).map(|(of, over)| of / over).collect()
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Spread {
    pub median: f64,
    pub p10: f64,
    pub p90: f64,
}

impl Spread {
    /// Returns None without samples, or when one is not a number.
    pub fn of(samples: &[f64]) -> Option<Self> {
        if samples.is_empty() || samples.iter().any(|sample| sample.is_nan()) {
            return None;
        }
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        // Between neighbours by proportion.
        let quantile = |part: f64| {
            let place = part * (sorted.len() - 1) as f64;
            let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
            below + (above - below) * place.fract()
        };
        Some(Self { median: quantile(0.5), p10: quantile(0.1), p90: quantile(0.9) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_ignores_outliers() {
        let spread = Spread::of(&[5.0, 1.0, 2.0, 4.0, 3.0]).unwrap();
        assert_eq!((spread.median, spread.p10, spread.p90), (3.0, 1.4, 4.6));
        let mut samples = vec![1.0; 100];
        samples[17] = 1e9;
        assert_eq!(
            Spread::of(&samples).map(|spread| (spread.median, spread.p90)),
            Some((1.0, 1.0))
        );
        assert_eq!((Spread::of(&[]), Spread::of(&[f64::NAN])), (None, None));
    }
}
