//! Tables for people, and the figures.

use nvshmem_sim::BoxError;

use crate::callgrind::Cost;
use crate::times::case::{Case, Figure, Value};
use crate::times::rounds::Rounds;
use crate::times::stats::{Spread, median};

/// Lines of a breakdown.
const TOP: usize = 12;

/// The figures so far.
#[derive(Debug, Default)]
pub(crate) struct Report {
    measures: Vec<(String, f64, &'static str)>,
}

impl Report {
    /// Prints what a case has measured in all jobs on a provider, and keeps its figures.
    ///
    /// # Errors
    /// A side without rounds.
    pub(crate) fn measured<C: Case>(
        &mut self,
        provider: &str,
        case: &C,
        jobs: &[Rounds],
        samples: bool,
    ) -> Result<(), BoxError> {
        let nothing = || format!("{case}: no rounds");
        let seconds = |side| {
            let all: Vec<f64> = jobs.iter().flat_map(|rounds| rounds.seconds(side)).collect();
            median(&all).ok_or_else(nothing)
        };
        let times = case.sides().into_iter().map(|side| {
            let shown = case.unit().show(seconds(side)?);
            Ok(format!("{side} {shown}"))
        });
        println!("  {case}: {}", times.collect::<Result<Vec<_>, String>>()?.join(", "));
        for Figure { name, value } in case.figures(provider) {
            let ratios: Vec<f64> = match value {
                Value::Micros(side) => {
                    self.push(name, seconds(side)? * 1e6, "us");
                    continue;
                }
                Value::Ratio { of, over } => {
                    jobs.iter().flat_map(|rounds| rounds.ratios(&of, over)).collect()
                }
                Value::WholeRatio { of, over } => {
                    jobs.iter().flat_map(|rounds| rounds.whole().ratios(&[of], over)).collect()
                }
            };
            let spread = Spread::of(&ratios).ok_or_else(nothing)?;
            println!("    {name:<58}{spread}");
            self.push(name, spread.median, "ratio");
        }
        if samples {
            print_samples(case, jobs);
        }
        Ok(())
    }

    /// Prints what an operation costs in instructions and keeps the figure.
    pub(crate) fn counted(&mut self, what: &str, name: String, cost: &Cost) {
        println!("{what:<52}{:>10.1} of ours{:>10.1} of libfabric", cost.ours, cost.libfabric);
        self.push(name, cost.ours, "instructions");
    }

    /// Keeps a figure.
    pub(crate) fn push(&mut self, name: String, value: f64, unit: &'static str) {
        self.measures.push((name, value, unit));
    }

    /// The smallest figure so far whose name begins like this.
    pub(crate) fn least(&self, prefix: &str) -> Option<f64> {
        let named = self.measures.iter().filter(|(name, ..)| name.starts_with(prefix));
        named.map(|(_, value, _)| *value).min_by(f64::total_cmp)
    }

    /// That something was measured, and all of it took place.
    fn check(&self) -> Result<(), BoxError> {
        if self.measures.is_empty() {
            return Err("nothing was measured".into());
        }
        if let Some((name, value, _)) = self.measures.iter().find(|(_, v, _)| !v.is_finite()) {
            return Err(format!("{name} was not measured: {value}").into());
        }
        Ok(())
    }

    /// Prints the figures.
    ///
    /// # Errors
    /// There are none, or one is no number: something that was to be measured did not take place.
    pub(crate) fn print_measures(&self) -> Result<(), BoxError> {
        self.check()?;
        println!();
        for (name, value, unit) in &self.measures {
            // Small ones with as many digits that tell something.
            let digits = if *value < 0.1 { 5 } else { 3 };
            println!("MEASURE {name} {value:.digits$} {unit}");
        }
        Ok(())
    }
}

/// Prints where the instructions of an operation are.
pub(crate) fn breakdown(what: &str, cost: &Cost) {
    println!("\n{what}: where its instructions are\n  {:>9}  function", "per op");
    for (name, cost) in cost.by_function.iter().take(TOP) {
        println!("  {cost:>9.2}  {name}");
    }
}

/// Prints the nanoseconds of an operation in every round.
fn print_samples<C: Case>(case: &C, jobs: &[Rounds]) {
    for rounds in jobs {
        for side in case.sides() {
            let times = rounds.seconds(side).into_iter().map(|time| format!("{:.0}", time * 1e9));
            let times = times.collect::<Vec<_>>().join(" ");
            println!("{case}, {side}, {} operations a round, ns each: {times}", rounds.ops(side));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_figures_are_an_error_and_so_are_those_of_nothing() {
        let with = |values: &[f64]| {
            let mut report = Report::default();
            values.iter().for_each(|value| report.push(String::from("put_rate"), *value, "ratio"));
            report.check().map_err(|error| error.to_string())
        };
        assert_eq!(with(&[]), Err(String::from("nothing was measured")));
        for value in [f64::NAN, f64::INFINITY] {
            let told = with(&[1.0, value]).unwrap_err();
            assert!(told.starts_with("put_rate was not measured"), "{told}");
        }
        assert_eq!(with(&[0.5, 2.0]), Ok(()));
    }
}
