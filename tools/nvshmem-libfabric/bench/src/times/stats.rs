//! Medians of samples from a machine that does other things as well.

use std::fmt;

/// The middle of some samples and how they spread.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Spread {
    /// Half of the samples are below.
    pub(crate) median: f64,
    /// A tenth of the samples is below.
    pub(crate) p10: f64,
    /// A tenth of the samples is above.
    pub(crate) p90: f64,
    /// The median of the population lies between these in 95 of 100 cases, if the samples are
    /// independent.
    pub(crate) confidence: (f64, f64),
}

impl Spread {
    /// None without samples, or when one is not a number.
    pub(crate) fn of(samples: &[f64]) -> Option<Self> {
        if samples.is_empty() || samples.iter().any(|sample| sample.is_nan()) {
            return None;
        }
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        // How many samples lie below the true median is binomial with p = 1/2: its 2.5% points
        // are 0.98 sqrt(n) from the middle. Few samples give the whole range.
        let last = sorted.len() as f64 - 1.0;
        let reach = 0.98 * (sorted.len() as f64).sqrt();
        let low = (last / 2.0 - reach).floor().max(0.0);
        let high = (last / 2.0 + reach).ceil().min(last);
        Some(Self {
            median: quantile(&sorted, 0.5),
            p10: quantile(&sorted, 0.1),
            p90: quantile(&sorted, 0.9),
            confidence: (sorted[low as usize], sorted[high as usize]),
        })
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (low, high) = self.confidence;
        // Small ones with as many digits that tell something.
        let digits = if self.median < 0.1 { 5 } else { 3 };
        write!(
            f,
            "{:.digits$}  [{low:.digits$}..{high:.digits$}]  p10..p90 {:.digits$}..{:.digits$}",
            self.median, self.p10, self.p90
        )
    }
}

/// The median. None without samples.
pub(crate) fn median(samples: &[f64]) -> Option<f64> {
    Spread::of(samples).map(|spread| spread.median)
}

/// The value below which that part of the samples lies, between neighbours by proportion.
fn quantile(sorted: &[f64], part: f64) -> f64 {
    let place = part * (sorted.len() - 1) as f64;
    let (below, above) = (place.floor() as usize, place.ceil() as usize);
    sorted[below] + (sorted[above] - sorted[below]) * (place - place.floor())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_between_neighbours() {
        let spread = Spread::of(&[5.0, 1.0, 2.0, 4.0, 3.0]).unwrap();
        assert_eq!(spread.median, 3.0);
        assert_eq!((spread.p10, spread.p90), (1.4, 4.6));
        assert_eq!(median(&[1.0, 2.0]), Some(1.5));
    }

    #[test]
    fn one_wild_sample_moves_nothing() {
        let mut samples = vec![1.0; 100];
        samples[17] = 1e9;
        let spread = Spread::of(&samples).unwrap();
        assert_eq!((spread.median, spread.p90, spread.confidence), (1.0, 1.0, (1.0, 1.0)));
    }

    #[test]
    fn confidence_is_by_rank() {
        let samples: Vec<f64> = (0..100).map(f64::from).collect();
        // 49.5 minus and plus 9.8, outwards to whole ranks.
        assert_eq!(Spread::of(&samples).unwrap().confidence, (39.0, 60.0));
        let few = Spread::of(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!(few.confidence, (1.0, 3.0));
    }

    #[test]
    fn nothing_and_no_numbers_have_no_median() {
        assert_eq!(Spread::of(&[]), None);
        assert_eq!(median(&[1.0, f64::NAN]), None);
    }
}
