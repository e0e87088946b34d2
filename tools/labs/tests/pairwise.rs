//! Covering arrays: few rows of settings in which every two values of different factors meet.
//!
//! Most faults need one or two particular values to show; all of their pairs cost as many rows as
//! the two largest factors have pairs, or little more, where the full product grows with every
//! factor.

/// Rows of values, one for each factor, such that any two values of two factors are together in at
/// least one row. `sizes` has the number of values of each factor; values count from 0. The same
/// sizes always give the same rows.
///
/// Each row starts from the first pair that is still missing, and takes for every other factor the
/// value that adds most pairs; of equals, the first. So what costs least to run comes first among
/// the values.
pub(crate) fn pairwise<const N: usize>(sizes: [usize; N]) -> Vec<[usize; N]> {
    assert!(sizes.iter().all(|size| *size > 0), "a factor without values: {sizes:?}");
    let mut missing: Vec<Pair> = pairs(&sizes);
    let mut rows = Vec::new();
    if N == 1 {
        return (0..sizes[0]).map(|value| [value; N]).collect();
    }
    while let Some(first) = missing.first().copied() {
        let mut row = [None; N];
        row[first.0.0] = Some(first.0.1);
        row[first.1.0] = Some(first.1.1);
        for factor in 0..N {
            if row[factor].is_none() {
                let gain =
                    |value| missing.iter().filter(|pair| pair.joins((factor, value), &row)).count();
                // The last of equals by max_by_key, so the values are seen backwards.
                row[factor] = (0..sizes[factor]).rev().max_by_key(|value| gain(*value));
            }
        }
        let row = row.map(|value| value.unwrap_or_default());
        missing.retain(|pair| !pair.is_in(&row));
        rows.push(row);
    }
    rows
}

/// A factor and one of its values.
type Setting = (usize, usize);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Pair(Setting, Setting);

impl Pair {
    fn is_in(&self, row: &[usize]) -> bool {
        row[self.0.0] == self.0.1 && row[self.1.0] == self.1.1
    }

    /// Whether the setting completes this pair in a row of which only some factors are settled.
    fn joins(&self, setting: Setting, row: &[Option<usize>]) -> bool {
        let other = match (self.0 == setting, self.1 == setting) {
            (true, _) => self.1,
            (_, true) => self.0,
            _ => return false,
        };
        row[other.0] == Some(other.1)
    }
}

fn pairs(sizes: &[usize]) -> Vec<Pair> {
    let settings: Vec<Setting> =
        (0..sizes.len()).flat_map(|factor| (0..sizes[factor]).map(move |v| (factor, v))).collect();
    let later = |one: Setting| move |other: &Setting| other.0 > one.0;
    let mut pairs = Vec::new();
    for one in &settings {
        pairs.extend(settings.iter().copied().filter(later(*one)).map(|other| Pair(*one, other)));
    }
    pairs
}
