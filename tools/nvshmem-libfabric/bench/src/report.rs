//! The figures of a run: a table for people, then one line `MEASURE name value unit` per figure.

use nvshmem_bench::{Case, Rounds, Side, Spread, ratios};
use nvshmem_sim::BoxError;

#[derive(Debug, Default)]
pub(crate) struct Report {
    measures: Vec<(String, f64, &'static str)>,
}

impl Report {
    pub(crate) fn push(&mut self, name: String, value: f64, unit: &'static str) {
        println!("    {name:<58}{value:.3}");
        self.measures.push((name, value, unit));
    }

    pub(crate) fn ratio(&mut self, name: String, ratios: &[f64]) -> Result<(), BoxError> {
        let Spread { median, p10, p90 } = Spread::of(ratios).ok_or("a side without rounds")?;
        println!("    {name:<58}{median:.4}  p10..p90 {p10:.4}..{p90:.4}");
        self.measures.push((name, median, "ratio"));
        Ok(())
    }

    /// Prints what a case has measured in some jobs, and keeps the plugin's ratio to each other
    /// side: of times where a case is a latency, else of rates. Names begin and end as given.
    pub(crate) fn case(
        &mut self,
        case: &Case,
        jobs: &[Rounds],
        (begin, end): (&str, &str),
    ) -> Result<(), BoxError> {
        let of_side = |side: usize| jobs.iter().map(move |rounds| &rounds[side]);
        let times = case.sides.iter().enumerate().map(|(at, side)| {
            let all: Vec<f64> = of_side(at).flatten().copied().collect();
            let median = Spread::of(&all).ok_or_else(|| format!("{case}: no rounds"))?.median;
            Ok(format!("{side} {}", case.show(median)))
        });
        println!("  {case}: {}", times.collect::<Result<Vec<_>, String>>()?.join(", "));
        let plugin = case.sides.iter().position(|side| *side == Side::Plugin);
        let plugin = plugin.ok_or("a case without the plugin")?;
        for (at, side) in case.sides.iter().enumerate().filter(|(at, _)| *at != plugin) {
            let pairs = Iterator::zip(of_side(plugin), of_side(at));
            let all: Vec<f64> = pairs
                .flat_map(|(own, other)| match case.is_latency() {
                    true => ratios(own, other),
                    false => ratios(other, own),
                })
                .collect();
            self.ratio(format!("{begin}{case}_over_{side}_{end}"), &all)?;
        }
        Ok(())
    }

    pub(crate) fn print(&self) -> Result<(), BoxError> {
        println!();
        for (name, value, unit) in &self.measures {
            if !value.is_finite() {
                return Err(format!("{name} was not measured: {value}").into());
            }
            let digits = if *value < 0.1 { 5 } else { 3 };
            println!("MEASURE {name} {value:.digits$} {unit}");
        }
        Ok(())
    }
}
