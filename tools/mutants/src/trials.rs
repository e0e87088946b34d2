//! Tries the mutants of a kit, several at once.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::error::{Result, at, read};
use crate::kit::{self, MUTANTS, PROGRAMS};
use crate::mutant::{self, Id, Mutant, Outcome, State};
use crate::process::{Ended, Run, last_begun};
use crate::reach::{self, Reach, Runs, Test};
use crate::report;

/// Tests that together take no longer share a process.
const SHORT: Duration = Duration::from_millis(40);
/// What a process may take beyond ten times what it takes with no mutant.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(clap::Args)]
pub(crate) struct Options {
    /// The kit
    #[arg(long)]
    kit: PathBuf,
    /// Where the results go
    #[arg(long)]
    out: PathBuf,
    /// What the figures are called: MEASURE mutants_NAME_caught_percent
    #[arg(long)]
    name: String,
    /// How many mutants are tried at once; as many as there are processors
    #[arg(long)]
    jobs: Option<usize>,
    /// So many mutants, drawn at random
    #[arg(long)]
    count: Option<usize>,
    /// What they are drawn by
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Mutants alone whose line in the results contains this
    #[arg(long)]
    only: Option<String>,
    /// Mutants alone that are in this list, as `missed.txt` is one. Their lines may have moved
    #[arg(long)]
    list: Option<PathBuf>,
    /// No trial begins later than after so many seconds
    #[arg(long)]
    seconds: Option<u64>,
    /// Tests that take longer, in seconds, are not run
    #[arg(long, default_value_t = 5.0)]
    longest: f64,
    /// How many seeds each random test draws
    #[arg(long, default_value_t = 2)]
    seeds: u32,
    /// How many it draws for a mutant that was missed
    #[arg(long, default_value_t = 20)]
    more_seeds: u32,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let start = Instant::now();
    let kit = options.kit.canonicalize().map_err(at(&options.kit))?;
    let mutants: Vec<Mutant> = kit::load(&kit.join(MUTANTS))?;
    let out = &options.out;
    std::fs::create_dir_all(out).map_err(at(out))?;
    let jobs =
        options.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));

    let reach = reach::load_or_record(
        &kit,
        Runs {
            jobs,
            longest: Duration::from_secs_f64(options.longest),
            seeds: options.seeds,
            more_seeds: options.more_seeds,
        },
    )?;
    let (tests, took) = (reach.tests.len(), start.elapsed().as_secs_f64());
    println!("{tests} tests; {took:.0} s to see what they reach");
    if !reach.too_long.is_empty() {
        println!(
            "not run, as they take longer than {} s: {}",
            options.longest,
            reach.too_long.join(", ")
        );
    }

    let mut chosen: Vec<Id> =
        (0..mutants.len()).filter(|id| mutants[*id].state == State::Built).collect();
    if let Some(only) = &options.only {
        chosen.retain(|id| mutants[*id].to_string().contains(only));
    }
    if let Some(list) = &options.list {
        let listed = mutant::listed(&mutants, &read(list)?);
        chosen.retain(|id| listed.contains(id));
    }
    // In an order that looks like none, so that what there was no time for is like what there was.
    chosen.sort_by_key(|id| mixed(*id as u64 ^ options.seed << 32));
    chosen.truncate(options.count.unwrap_or(usize::MAX));

    let end = options.seconds.map(|seconds| start + Duration::from_secs(seconds));
    let trials = Trials {
        options,
        kit: &kit,
        mutants: &mutants,
        reach: &reach,
        end,
        killers: Mutex::default(),
    };
    let outcomes = trials.all(&chosen, jobs)?;
    report::tell(out, &options.name, &mutants, &chosen, &outcomes, start.elapsed())
}

/// Numbers that look random (splitmix64).
fn mixed(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

struct Trials<'a> {
    options: &'a Options,
    kit: &'a Path,
    mutants: &'a [Mutant],
    reach: &'a Reach,
    end: Option<Instant>,
    /// By function, the tests that noticed a mutant of it, the latest last: they come first for its
    /// others.
    killers: Mutex<HashMap<&'a str, Vec<usize>>>,
}

impl Trials<'_> {
    fn all(&self, chosen: &[Id], jobs: usize) -> Result<HashMap<Id, Outcome>> {
        let next = Mutex::new(chosen.iter().copied());
        let outcomes = Mutex::new(HashMap::new());
        let one = |job: usize| -> Result<()> {
            let said = self.options.out.join(format!("job-{job}"));
            loop {
                if self.end.is_some_and(|end| Instant::now() > end) {
                    break;
                }
                let Some(id) = next.lock().expect("no panic").next() else { break };
                let outcome = self.one(id, &said)?;
                let mut outcomes = outcomes.lock().expect("no panic");
                outcomes.insert(id, outcome);
                if outcomes.len() % 100 == 0 {
                    println!("{} of {}", outcomes.len(), chosen.len());
                }
            }
            let _ = std::fs::remove_file(&said);
            Ok(())
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..jobs).map(|job| scope.spawn(move || one(job))).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
        })?;
        Ok(outcomes.into_inner().expect("no panic"))
    }

    fn one(&self, id: Id, said: &Path) -> Result<Outcome> {
        let tests = self.reach.by_mutant.get(&id).map_or(&[][..], Vec::as_slice);
        let function = self.mutants[id].function.as_str();
        let known =
            self.killers.lock().expect("no panic").get(function).cloned().unwrap_or_default();
        for group in in_order(&self.reach.tests, tests, &known) {
            if let Some(outcome) = self.group(id, &group, self.options.seeds, said)? {
                return Ok(outcome);
            }
        }
        let random = tests.iter().filter(|at| self.reach.tests[**at].is_random);
        for at in random {
            if let Some(outcome) = self.group(id, &[*at], self.options.more_seeds, said)? {
                return Ok(outcome);
            }
        }
        Ok(Outcome::Missed(tests.len()))
    }

    /// Runs tests of one program with a mutant. Nothing if all pass.
    fn group(&self, id: Id, group: &[usize], seeds: u32, said: &Path) -> Result<Option<Outcome>> {
        let tests: Vec<_> = group.iter().map(|at| &self.reach.tests[*at]).collect();
        let program = &tests[0].program;
        let names: Vec<_> = tests.iter().map(|test| test.name.as_str()).collect();
        let env = vec![("MUTANT", id.to_string()), ("NVSHMEM_TEST_SEEDS", seeds.to_string())];
        let run = Run { program: &self.kit.join(PROGRAMS).join(program), tests: &names, env };
        let takes: Duration = tests.iter().map(|test| test.takes).sum();
        let limit = PATIENCE + takes * 10 * seeds.div_ceil(self.options.seeds);
        let mut ended = run.run(said, limit)?;
        if ended == Ended::TooLong {
            // It may be the machine that is slow.
            ended = run.run(said, 2 * limit)?;
        }
        if let Ended::Passed(_) = ended {
            return Ok(None);
        }
        // What a mutant says may be no text at all.
        let text = std::fs::read(said).map_err(at(said))?;
        let text = String::from_utf8_lossy(&text);
        let name = last_begun(&text);
        if let Some(at) = group.iter().find(|at| self.reach.tests[**at].name == name) {
            let mut killers = self.killers.lock().expect("no panic");
            let of = killers.entry(&self.mutants[id].function).or_default();
            of.retain(|other| other != at);
            of.push(*at);
        }
        let name = format!("{program} {name}");
        Ok(Some(if ended == Ended::Failed {
            Outcome::Caught(name)
        } else {
            Outcome::Timeout(name)
        }))
    }
}

/// Each of the tests once, in groups that share a process: by themselves the latest three that are
/// `known` to notice changes of the function, then the short ones.
fn in_order(all: &[Test], tests: &[usize], known: &[usize]) -> Vec<Vec<usize>> {
    let mut first: Vec<_> = known.iter().rev().filter(|at| tests.contains(at)).copied().collect();
    first.truncate(3);
    let rest: Vec<_> = tests.iter().filter(|at| !first.contains(at)).copied().collect();
    first.into_iter().map(|at| vec![at]).chain(groups(all, &rest)).collect()
}

/// Tests of one program that share a process, the short ones first.
fn groups(all: &[Test], tests: &[usize]) -> Vec<Vec<usize>> {
    let mut groups: Vec<(Duration, Vec<usize>)> = Vec::new();
    for at in tests {
        let test = &all[*at];
        let open = groups.iter_mut().find(|(takes, group)| {
            all[group[0]].program == test.program && *takes + test.takes <= SHORT
        });
        match open {
            Some((takes, group)) => {
                *takes += test.takes;
                group.push(*at);
            }
            None => groups.push((test.takes, vec![*at])),
        }
    }
    groups.into_iter().map(|(_, group)| group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_test_that_reaches_a_mutant_is_tried_however_many_are_known() {
        let test = |number: u64| Test {
            program: "unit".into(),
            name: number.to_string(),
            takes: Duration::from_millis(number * 10),
            is_random: false,
        };
        let all: Vec<_> = (0..6).map(test).collect();
        let order = in_order(&all, &[0, 1, 2, 3, 5], &[5, 4, 3, 2, 1]);
        assert_eq!(order, [vec![1], vec![2], vec![3], vec![0], vec![5]]);
        assert_eq!(in_order(&all, &[0, 1, 2, 3], &[]), [vec![0, 1, 2], vec![3]]);
    }
}
