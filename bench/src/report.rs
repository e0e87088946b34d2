//! Tables for people, and the figures.

use nvshmem_sim::BoxError;

use crate::control::Side;
use crate::count::Kind;
use crate::launch::{Compared, Counted};
use crate::provider::Provider;
use crate::stats::{Spread, median};

/// Lines of a breakdown.
const TOP: usize = 12;
/// Lines of a breakdown by source line.
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
            let ratios: Vec<f64> = jobs.iter().flat_map(|rounds| rounds.ratios()).collect();
            let spread = Spread::of(&ratios);
            let rate = |side| {
                median(&jobs.iter().flat_map(|rounds| rounds.rates(side)).collect::<Vec<_>>())
            };
            let (Some(spread), Some(raw), Some(plugin)) =
                (spread, rate(Side::Raw), rate(Side::Plugin))
            else {
                return Err(format!("{case}: no rounds").into());
            };
            println!(
                "{:<12}{:>7}{:>7}{:>18}{:>18}    {spread}",
                case.to_string(),
                case.window,
                ratios.len(),
                case.show_rate(raw),
                case.show_rate(plugin),
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
            table("function", &counted.by_function, TOP);
            table("source file", &counted.by_file, TOP);
            if long {
                table("source line", &counted.by_line, TOP_LINES);
            }
            table("calls out of the plugin", &counted.calls, TOP);
        }
    }

    /// Prints the figures.
    pub(crate) fn print_measures(&self) {
        println!();
        for (name, value, unit) in &self.measures {
            println!("MEASURE {name} {value:.3} {unit}");
        }
    }
}

/// Prints the microseconds of every pair of rounds, the first of the two first.
pub(crate) fn print_samples(compared: &Compared) {
    let of_jobs = |(case, jobs)| Iterator::zip(std::iter::repeat(case), jobs);
    let cases = compared.cases.iter().map(|(case, jobs)| (*case, jobs.as_slice()));
    for (case, rounds) in cases.flat_map(of_jobs) {
        println!("{case}, {} operations a round, raw/plugin in us:", rounds.ops);
        let pairs =
            rounds.pairs.iter().map(|(raw, plugin)| format!("{}/{}", raw / 1000, plugin / 1000));
        println!("  {}", pairs.collect::<Vec<_>>().join(" "));
    }
}

fn table(what: &str, rows: &[(String, f64)], top: usize) {
    println!("  {:>9}  {what}", "per op");
    for (name, cost) in rows.iter().take(top) {
        println!("  {cost:>9.2}  {name}");
    }
}
