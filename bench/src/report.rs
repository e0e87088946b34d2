//! Tables for people, and the figures.

use nvshmem_sim::BoxError;

use crate::command::Side;
use crate::count::Kind;
use crate::instructions::Counted;
use crate::launch::Compared;
use crate::provider::Provider;
use crate::rounds::Rounds;
use crate::stats::{Spread, median};

/// Lines of a breakdown.
const TOP: usize = 12;
/// Lines of a long one.
const TOP_LINES: usize = 60;

/// The figures so far.
#[derive(Debug, Default)]
pub(crate) struct Report {
    measures: Vec<(String, f64, &'static str)>,
}

impl Report {
    /// Prints the table of one provider and keeps its figures.
    ///
    /// # Errors
    /// A case without rounds.
    pub(crate) fn compared(
        &mut self,
        provider: Provider,
        compared: &Compared,
    ) -> Result<(), BoxError> {
        println!("\n{} ({})", provider.full_name(), compared.opened);
        println!(
            "{:<12}{:>7}{:>7}{:>18}{:>18}    plugin/raw: median [95%]  spread",
            "", "window", "pairs", "raw", "plugin"
        );
        for (case, jobs) in &compared.cases {
            let (raw, plugin) = (Side::Raw as usize, Side::Plugin as usize);
            // How much of raw's rate the plugin has reached: raw's time over its own.
            let ratios: Vec<f64> =
                jobs.iter().flat_map(|rounds| rounds.ratios(raw, plugin)).collect();
            let seconds = |side| {
                median(&jobs.iter().flat_map(|rounds| rounds.seconds(side)).collect::<Vec<_>>())
            };
            let (Some(spread), Some(raw), Some(plugin)) =
                (Spread::of(&ratios), seconds(raw), seconds(plugin))
            else {
                return Err(format!("{case}: no rounds").into());
            };
            println!(
                "{:<12}{:>7}{:>7}{:>18}{:>18}    {spread}",
                case.to_string(),
                case.window,
                ratios.len(),
                case.show_rate(1.0 / raw),
                case.show_rate(1.0 / plugin),
            );
            self.measures.push((case.measure(provider.name()), spread.median, "ratio"));
        }
        Ok(())
    }

    /// Prints the instructions per operation with so many rails and keeps the figures.
    pub(crate) fn counted(&mut self, rails: usize, counted: &[(Kind, Counted)], long: bool) {
        println!("\ninstructions per operation, {rails} rail(s)");
        println!("{:<52}{:>10}{:>14}", "", "plugin", "libfabric");
        for (kind, counted) in counted {
            let text = kind.describe();
            println!("{text:<52}{:>10.1}{:>14.1}", counted.ours, counted.libfabric);
            let name = match kind {
                Kind::Put => "put",
                Kind::PutTight => "put_tight_loop",
                Kind::GetTight => "get_tight_loop",
                Kind::QuietEmpty => "quiet_empty",
                Kind::ProgressIdle => "progress_idle",
            };
            let rails = if rails == 1 { String::new() } else { format!("_{rails}_rails") };
            let name = format!("{name}_instructions{rails}");
            self.measures.push((name, counted.ours, "instructions"));
        }
        for (kind, counted) in counted {
            // The rest is about the operations that matter; all of it where asked for.
            if !long && (rails > 1 || *kind != Kind::Put) {
                continue;
            }
            println!("\n{}, {rails} rail(s): where its instructions are", kind.describe());
            breakdown(counted, long);
        }
    }

    /// Keeps a figure.
    pub(crate) fn push(&mut self, name: String, value: f64, unit: &'static str) {
        self.measures.push((name, value, unit));
    }

    /// Prints the figures.
    pub(crate) fn print_measures(&self) {
        println!();
        for (name, value, unit) in &self.measures {
            // Small ones with as many digits that tell something.
            let digits = if *value < 0.1 { 5 } else { 3 };
            println!("MEASURE {name} {value:.digits$} {unit}");
        }
    }
}

/// Prints where the instructions of an operation are.
pub(crate) fn breakdown(counted: &Counted, long: bool) {
    let top = if long { TOP_LINES } else { TOP };
    table("function", &counted.by_function, top);
    table("source file", &counted.by_file, top);
    if long {
        table("source line", &counted.by_line, TOP_LINES);
    }
    table("calls out of the plugin", &counted.calls, TOP);
}

/// Prints the nanoseconds of an operation in every round.
pub(crate) fn print_samples(case: &str, sides: &[&str], jobs: &[Rounds]) {
    for rounds in jobs {
        for (at, side) in sides.iter().enumerate() {
            let times = rounds.seconds(at).into_iter().map(|time| format!("{:.0}", time * 1e9));
            let times = times.collect::<Vec<_>>().join(" ");
            println!("{case}, {side}, {} operations a round, ns each: {times}", rounds.ops(at));
        }
    }
}

fn table(what: &str, rows: &[(String, f64)], top: usize) {
    println!("  {:>9}  {what}", "per op");
    for (name, cost) in rows.iter().take(top) {
        println!("  {cost:>9.2}  {name}");
    }
}
