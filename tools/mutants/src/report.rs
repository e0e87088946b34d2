//! What came of the mutants: a table by folder, and lists of each.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::Duration;

use crate::error::{Error, Result, write};
use crate::mutant::{Id, Mutant, Outcome, State};

#[derive(Default)]
struct Counts {
    caught: usize,
    timeouts: usize,
    missed: usize,
    unreached: usize,
    unviable: usize,
    left_out: usize,
}

impl Counts {
    fn tried(&self) -> usize {
        self.caught + self.timeouts + self.missed
    }

    fn percent(&self) -> f64 {
        100.0 * (self.caught + self.timeouts) as f64 / self.tried().max(1) as f64
    }
}

/// Prints the table and the figures, called by `name`, and writes into `out` `missed.txt`,
/// `caught.txt` and `unviable.txt`.
///
/// # Errors
/// A file cannot be written, or there are no figures, since nothing was tried.
pub(crate) fn tell(
    out: &Path,
    name: &str,
    mutants: &[Mutant],
    chosen: &[Id],
    outcomes: &HashMap<Id, Outcome>,
    took: Duration,
) -> Result<()> {
    let mut rows: BTreeMap<String, Counts> = BTreeMap::new();
    let (mut missed, mut caught, mut unviable) = (String::new(), String::new(), String::new());
    let mut all = Counts::default();
    for (id, mutant) in mutants.iter().enumerate() {
        let folder = mutant.file.rsplit_once('/').map_or("", |(folder, _)| folder);
        for counts in [rows.entry(folder.to_owned()).or_default(), &mut all] {
            match (mutant.state, outcomes.get(&id)) {
                (State::Unviable, _) => counts.unviable += 1,
                (State::LeftOut, _) => counts.left_out += 1,
                (State::Built, Some(Outcome::Caught(_))) => counts.caught += 1,
                (State::Built, Some(Outcome::Timeout(_))) => counts.timeouts += 1,
                (State::Built, Some(Outcome::Missed { reach, .. })) => {
                    counts.missed += 1;
                    counts.unreached += usize::from(*reach == 0);
                }
                (State::Built, None) => {}
            }
        }
        match (mutant.state, outcomes.get(&id)) {
            (State::Built, Some(Outcome::Caught(by))) => {
                caught += &format!("{mutant} [{by}]\n");
            }
            (State::Built, Some(Outcome::Timeout(by))) => {
                caught += &format!("{mutant} [{by} does not end]\n");
            }
            (State::Built, Some(Outcome::Missed { reach, ran })) => {
                let ran = if ran == reach { String::new() } else { format!(", {ran} were run") };
                missed += &format!("{mutant} [{id}; {reach} tests reach it{ran}]\n");
            }
            (State::Built, None) => {}
            (state, _) => unviable += &format!("{mutant} [{state:?}]\n"),
        }
    }
    for (name, text) in [("missed.txt", missed), ("caught.txt", caught), ("unviable.txt", unviable)]
    {
        write(&out.join(name), text)?;
    }

    println!(
        "{:32} {:>6} {:>7} {:>8} {:>7} {:>10} {:>9} {:>9} {:>6}",
        "folder", "tried", "caught", "timeouts", "missed", "unreached", "unviable", "left out", "%"
    );
    let rows = rows.iter().map(|(name, counts)| (name.as_str(), counts));
    for (name, counts) in rows.chain([("all", &all)]) {
        let Counts { caught, timeouts, missed, unreached, unviable, left_out } = counts;
        println!(
            "{name:32} {:>6} {caught:>7} {timeouts:>8} {missed:>7} {unreached:>10} {unviable:>9} {left_out:>9} {:>6.1}",
            counts.tried(),
            counts.percent()
        );
    }
    println!(
        "{} of {} that were chosen, in {:.0} s",
        all.tried(),
        chosen.len(),
        took.as_secs_f64()
    );
    if all.tried() == 0 {
        return Err(Error::Untried(chosen.len()));
    }
    println!("MEASURE mutants_{name}_tried {} mutants", all.tried());
    println!("MEASURE mutants_{name}_missed {} mutants", all.missed);
    println!("MEASURE mutants_{name}_caught_percent {:.1} %", all.percent());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_trial_there_are_no_figures() {
        let out = launcher::PrivateDir::new("nvshmem-mutants").unwrap();
        let mutant = Mutant {
            file: String::from("src/lib.rs"),
            line: 1,
            column: 1,
            function: String::from("f"),
            change: String::from("returns at once"),
            state: State::Built,
        };
        let tell = |outcomes: HashMap<Id, Outcome>| {
            tell(out.path(), "some", std::slice::from_ref(&mutant), &[0], &outcomes, Duration::ZERO)
        };
        let untried = tell(HashMap::new());
        let tried = tell(HashMap::from([(0, Outcome::Missed { reach: 3, ran: 2 })]));
        assert!(matches!(untried, Err(Error::Untried(1))), "{untried:?}");
        tried.unwrap();
    }
}
