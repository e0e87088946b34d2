//! Figures: what is made of an experiment's runs.

use std::collections::BTreeMap;

use crate::experiment::{Experiment, Figure, Measure};
use crate::run::Ran;

impl Experiment {
    /// A measure's value and its unit. None when a run that it needs has not been made, or has
    /// ended before there was anything to measure: then not even wrong bytes are known.
    pub fn figure(
        &self,
        measure: &Measure,
        ran: &BTreeMap<String, Ran>,
    ) -> Option<(f64, &'static str)> {
        let sum = |names: &[String]| -> Option<f64> {
            names.iter().map(|name| ran.get(name)?.goodput).sum()
        };
        let named: Vec<String> = match measure.run.is_empty() {
            true => self.runs.iter().map(|run| run.name.clone()).collect(),
            false => measure.run.clone(),
        };
        let ended = |name: &String| ran.get(name).filter(|ran| ran.goodput.is_some());
        match measure.of {
            Figure::Ratio => Some((sum(&named)? / sum(&measure.over)?, "ratio")),
            Figure::WrongBytes => {
                let wrong = |name| ended(name).map(|ran| ran.wrong_bytes as f64);
                Some((named.iter().map(wrong).sum::<Option<f64>>()?, "bytes"))
            }
            Figure::Imbalance => {
                let all = named.iter().map(|name| ended(name)?.imbalance());
                let all = all.collect::<Option<Vec<f64>>>()?;
                Some((all.into_iter().reduce(f64::max)?, "ratio"))
            }
        }
    }
}

impl Ran {
    /// How far apart the first host's rails are in the bytes they have received: the difference
    /// between most and least, over the mean.
    pub fn imbalance(&self) -> Option<f64> {
        let received = self.carried.first()?.iter().map(|rail| rail.received as f64);
        let least = received.clone().reduce(f64::min)?;
        let most = received.clone().reduce(f64::max)?;
        let mean = received.clone().sum::<f64>() / received.count() as f64;
        Some((most - least) / mean)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Carried;

    fn ran(goodput: Option<f64>, wrong_bytes: u64, received: [u64; 2]) -> Ran {
        let carried = received.map(|received| Carried { sent: 7, received }).to_vec();
        Ran { goodput, wrong_bytes, carried: vec![carried], ..Ran::default() }
    }

    fn experiment(measure: &str) -> Experiment {
        let text = format!(
            "title = \"\"\nhosts = 2\nrails = [\"1mbit\"]\nworkload = {{ kind = \"storm\", rounds = 1 }}\n\
             [[run]]\nname = \"a\"\n[[run]]\nname = \"b\"\n[[measure]]\nname = \"m\"\n{measure}"
        );
        Experiment::parse(&text).unwrap()
    }

    fn value(measure: &str, a: Ran, b: Ran) -> Option<f64> {
        let experiment = experiment(measure);
        let ran = BTreeMap::from([("a".to_string(), a), ("b".to_string(), b)]);
        experiment.figure(&experiment.measures[0], &ran).map(|(value, _)| value)
    }

    #[test]
    fn figures_are_of_the_runs_that_are_named() {
        let (a, b) = (ran(Some(6.0), 3, [10, 30]), ran(Some(2.0), 4, [20, 20]));
        let of = |measure| value(measure, a.clone(), b.clone());
        assert_eq!(of("of = \"ratio\"\nrun = [\"a\"]\nover = [\"b\"]"), Some(3.0));
        assert_eq!(of("of = \"ratio\"\nrun = [\"a\"]\nover = [\"b\", \"b\", \"a\"]"), Some(0.6));
        assert_eq!(of("of = \"wrong_bytes\""), Some(7.0));
        assert_eq!(of("of = \"wrong_bytes\"\nrun = [\"b\"]"), Some(4.0));
        assert_eq!(of("of = \"imbalance\""), Some(1.0));
        assert_eq!(of("of = \"imbalance\"\nrun = [\"b\"]"), Some(0.0));
    }

    #[test]
    fn a_run_that_did_not_end_has_no_figure() {
        let (a, b) = (ran(Some(6.0), 0, [10, 10]), ran(None, 0, [10, 10]));
        let of = |measure| value(measure, a.clone(), b.clone());
        assert_eq!(of("of = \"wrong_bytes\""), None);
        assert_eq!(of("of = \"imbalance\""), None);
        assert_eq!(of("of = \"ratio\"\nrun = [\"a\"]\nover = [\"b\"]"), None);
    }
}
