//! Tries the mutants of a kit, several at once.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::error::{Result, at, read};
use crate::kit::{self, MUTANTS, PROGRAMS};
use crate::mutant::{self, Id, Mutant, Outcome, State};
use crate::process::{Ended, Room, Run, last_begun};
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
    /// Mutants alone whose file begins so
    #[arg(long)]
    part: Option<String>,
    /// Mutants alone that are in this list, as `missed.txt` is one. Their lines may have moved
    #[arg(long)]
    list: Option<PathBuf>,
    /// No trial begins later than after so many seconds
    #[arg(long)]
    seconds: Option<u64>,
    /// Tests that take longer, in seconds, are not run
    #[arg(long, default_value_t = 5.0)]
    longest: f64,
    /// So many times what it takes with no mutant a test may take with one
    #[arg(long, default_value_t = 10)]
    times: u32,
    /// No test of a mutant begins later than after so many seconds with it
    #[arg(long)]
    each: Option<f64>,
    /// Tests get processes and shared memory of their own; those that fail with no mutant are left
    /// out, and what fails has to fail twice
    #[arg(long)]
    isolated: bool,
    /// Of tests of a kind that differ in their jobs alone, so many are run
    #[arg(long, default_value_t = usize::MAX)]
    rows: usize,
    /// Tests that are not run: how "PROGRAM TEST" begins
    #[arg(long)]
    skip: Vec<String>,
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

    let room = if options.isolated { Room::own()? } else { Room::Open };
    let reach = reach::load_or_record(
        &kit,
        Runs {
            rows: options.rows,
            skip: &options.skip,
            jobs,
            room,
            mutants: mutants.len(),
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

    if !reach.failing.is_empty() {
        println!("not run, as they fail with no mutant: {}", reach.failing.join(", "));
    }

    let mut chosen: Vec<Id> =
        (0..mutants.len()).filter(|id| mutants[*id].state == State::Built).collect();
    if let Some(part) = &options.part {
        chosen.retain(|id| mutants[*id].file.starts_with(part));
    }
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
        room,
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
    room: Room,
    mutants: &'a [Mutant],
    reach: &'a Reach,
    end: Option<Instant>,
    /// By function and by file, the tests that noticed a mutant of it, the latest last: they come
    /// first for its others.
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
                if let Outcome::Missed { .. } = outcome {
                    println!("missed: {}", self.mutants[id]);
                }
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
        let Mutant { function, file, .. } = &self.mutants[id];
        let known = |of: &str| {
            let killers = self.killers.lock().expect("no panic");
            killers.get(of).cloned().unwrap_or_default()
        };
        let begun = Instant::now();
        let is_over = || self.options.each.is_some_and(|each| begun.elapsed().as_secs_f64() > each);
        let mut ran = 0;
        let near = format!("{}::", module_of(file));
        let is_near = |at: &usize| self.reach.tests[*at].name.starts_with(&near);
        let near: Vec<usize> = tests.iter().copied().filter(is_near).collect();
        let known = [known(function), known(file)];
        for group in in_order(&self.reach.tests, tests, &near, &[&known[0], &known[1]]) {
            if is_over() {
                break;
            }
            if let Some(outcome) = self.group(id, &group, self.options.seeds, said)? {
                return Ok(outcome);
            }
            ran += group.len();
        }
        let random = tests.iter().filter(|at| self.reach.tests[**at].is_random);
        for at in random {
            if is_over() {
                break;
            }
            if let Some(outcome) = self.group(id, &[*at], self.options.more_seeds, said)? {
                return Ok(outcome);
            }
        }
        Ok(Outcome::Missed { reach: tests.len(), ran })
    }

    /// Runs tests of one program with a mutant. Nothing if all pass.
    fn group(&self, id: Id, group: &[usize], seeds: u32, said: &Path) -> Result<Option<Outcome>> {
        let tests: Vec<_> = group.iter().map(|at| &self.reach.tests[*at]).collect();
        let program = &tests[0].program;
        let names: Vec<_> = tests.iter().map(|test| test.name.as_str()).collect();
        let env = vec![("MUTANT", id.to_string()), ("NVSHMEM_TEST_SEEDS", seeds.to_string())];
        let run = Run {
            program: &self.kit.join(PROGRAMS).join(program),
            tests: &names,
            takes_one: tests[0].is_alone,
            room: self.room,
            env,
        };
        let takes: Duration = tests.iter().map(|test| test.takes).sum();
        let limit = PATIENCE + takes * self.options.times * seeds.div_ceil(self.options.seeds);
        let mut ended = run.run(said, limit)?;
        if ended == Ended::TooLong {
            // It may be the machine that is slow.
            ended = run.run(said, 2 * limit)?;
        } else if ended == Ended::Failed && self.options.isolated {
            // Jobs of several processes wait for one another, and fail when nothing is wrong on a
            // machine that has no time for them.
            ended = run.run(said, 2 * limit)?;
        }
        if let Ended::Passed(_) = ended {
            return Ok(None);
        }
        // What a mutant says may be no text at all.
        let text = std::fs::read(said).map_err(at(said))?;
        let text = String::from_utf8_lossy(&text);
        let name = if tests[0].is_alone { names[0] } else { last_begun(&text) };
        if let Some(at) = group.iter().find(|at| self.reach.tests[**at].name == name) {
            let mut killers = self.killers.lock().expect("no panic");
            let Mutant { function, file, .. } = &self.mutants[id];
            for name in [function, file] {
                let of = killers.entry(name).or_default();
                of.retain(|other| other != at);
                of.push(*at);
            }
        }
        let name = format!("{program} {name}");
        Ok(Some(if ended == Ended::Failed {
            Outcome::Caught(name)
        } else {
            Outcome::Timeout(name)
        }))
    }
}

/// The module of a file, as names of its own tests begin: `discovery::search`.
fn module_of(file: &str) -> String {
    let inside = file.rsplit_once("src/").map_or(file, |(_, inside)| inside);
    inside.trim_end_matches(".rs").trim_end_matches("/mod").replace('/', "::")
}

/// Each of the tests once, in groups that share a process: by themselves those of the module, and
/// the latest three of each list of those `known` to notice changes nearby, then the short ones; of
/// long ones first one of each kind.
fn in_order(all: &[Test], tests: &[usize], near: &[usize], known: &[&[usize]]) -> Vec<Vec<usize>> {
    let mut first: Vec<usize> = near.to_vec();
    for known in known {
        let others = known.iter().rev().filter(|at| tests.contains(at) && !first.contains(at));
        let latest: Vec<_> = others.take(3).copied().collect();
        first.extend(latest);
    }
    let mut rest: Vec<_> = tests.iter().filter(|at| !first.contains(at)).copied().collect();
    let mut kinds: HashMap<String, usize> = HashMap::new();
    rest.sort_by_cached_key(|at| {
        let Test { program, name, is_alone, .. } = &all[*at];
        if !is_alone {
            return 0;
        }
        let kind = kinds.entry(kind_of(&format!("{program} {name}"))).or_default();
        *kind += 1;
        *kind
    });
    first.into_iter().map(|at| vec![at]).chain(groups(all, &rest)).collect()
}

/// What "PROGRAM TEST" begins with: the program, and two words.
pub(crate) fn kind_of(test: &str) -> String {
    let words = test.split([' ', '_', ':']).filter(|word| !word.is_empty());
    words.take(3).collect::<Vec<_>>().join(" ")
}

/// Tests of one program that share a process, the short ones first.
fn groups(all: &[Test], tests: &[usize]) -> Vec<Vec<usize>> {
    let mut groups: Vec<(Duration, Vec<usize>)> = Vec::new();
    for at in tests {
        let test = &all[*at];
        let open = groups.iter_mut().find(|(takes, group)| {
            let is_same = all[group[0]].program == test.program && !test.is_alone;
            is_same && *takes + test.takes <= SHORT
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
    fn tests_of_a_module_have_its_name() {
        assert_eq!(module_of("crates/ofi/src/discovery/search.rs"), "discovery::search");
        assert_eq!(module_of("src/job/memory/mod.rs"), "job::memory");
    }

    #[test]
    fn every_test_that_reaches_a_mutant_is_tried_however_many_are_known() {
        let test = |number: u64| Test {
            program: "unit".into(),
            name: number.to_string(),
            takes: Duration::from_millis(number * 10),
            is_random: false,
            is_alone: false,
        };
        let all: Vec<_> = (0..6).map(test).collect();
        let order = in_order(&all, &[0, 1, 2, 3, 5], &[], &[&[5, 4, 3, 2, 1], &[0, 3]]);
        assert_eq!(order, [vec![1], vec![2], vec![3], vec![0], vec![5]]);
        let order = in_order(&all, &[0, 1, 2, 3, 5], &[5], &[&[5, 4, 3, 2, 1], &[0, 3]]);
        assert_eq!(order, [vec![5], vec![1], vec![2], vec![3], vec![0]]);
        assert_eq!(in_order(&all, &[0, 1, 2, 3], &[], &[]), [vec![0, 1, 2], vec![3]]);
        let named = |name: &str| Test { name: name.into(), is_alone: true, ..test(0) };
        let all = ["a_b_1", "a_b_2", "a_c_1", "a_c_2"].map(named);
        let order = in_order(&all, &[0, 1, 2, 3], &[], &[]);
        assert_eq!(order, [vec![0], vec![2], vec![1], vec![3]], "one of each kind first");
        let all = [test(0), Test { is_alone: true, ..test(0) }, Test { is_alone: true, ..test(0) }];
        assert_eq!(in_order(&all, &[0, 1, 2], &[], &[&[], &[2]]), [vec![2], vec![0], vec![1]]);
    }
}
