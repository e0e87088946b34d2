//! Which test reaches which mutants, and how long each takes.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{self, Error, Result, write};
use crate::kit::{self, LIBRARY, PROGRAMS};
use crate::mutant::Id;
use crate::process::{EVERY_CASE, Ended, Room, Run};
use crate::trials::kind_of;

const REACH: &str = "reach.json";

/// One test of one program.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Test {
    /// Its file, in the kit's programs.
    pub(crate) program: String,
    pub(crate) name: String,
    /// What it took, alone in a process, with no mutant.
    pub(crate) takes: Duration,
    /// It draws seeds: another run is another test.
    pub(crate) is_random: bool,
    /// It shares a process with no other.
    pub(crate) is_alone: bool,
}

/// The tests, the short ones first, and for each mutant those that reach it.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Reach {
    pub(crate) tests: Vec<Test>,
    pub(crate) by_mutant: HashMap<Id, Vec<usize>>,
    /// Names of tests that take too long.
    pub(crate) too_long: Vec<String>,
    /// Of those that fail with no mutant, where others are tried nevertheless.
    pub(crate) failing: Vec<String>,
}

/// Which tests are run, and how, to see what they reach.
#[derive(Clone, Copy)]
pub(crate) struct Runs<'a> {
    /// Of tests of a kind that differ in their jobs alone, so many.
    pub(crate) rows: usize,
    /// What is left out, by the beginnings of "program test".
    pub(crate) skip: &'a [String],
    pub(crate) jobs: usize,
    /// What takes longer is left out.
    pub(crate) longest: Duration,
    /// Seeds of random tests, to see what they take.
    pub(crate) seeds: u32,
    /// And to see what they reach.
    pub(crate) more_seeds: u32,
    pub(crate) room: Room,
    /// How many mutants there are.
    pub(crate) mutants: usize,
}

/// A test that is there.
struct Named {
    program: String,
    name: String,
    is_alone: bool,
}

/// What came of looking at one.
enum Found {
    Reaches(Test, Vec<Id>),
    TakesTooLong(String),
    Fails(String),
}

/// As an earlier run saw it, or else runs each test by itself, several at once.
pub(crate) fn load_or_record(kit: &Path, runs: Runs<'_>) -> Result<Reach> {
    let file = kit.join(REACH);
    if file.exists() {
        return kit::load(&file);
    }
    let mut tests = names(kit)?;
    choose(&mut tests, runs);
    let next = Mutex::new(tests.into_iter().enumerate());
    let done = Mutex::new(Vec::new());
    let one = || -> Result<()> {
        loop {
            let Some((at, test)) = next.lock().expect("no panic").next() else {
                return Ok(());
            };
            let found = look(kit, at, test, runs)?;
            done.lock().expect("no panic").push(found);
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..runs.jobs).map(|_| scope.spawn(one)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })?;

    let (mut reach, mut seen) = (Reach::default(), Vec::new());
    for found in done.into_inner().expect("no panic") {
        match found {
            Found::Reaches(test, reached) => seen.push((test, reached)),
            Found::TakesTooLong(name) => reach.too_long.push(name),
            Found::Fails(name) => reach.failing.push(name),
        }
    }
    seen.sort_by_key(|(test, _)| test.takes);
    for (at, (test, reached)) in seen.into_iter().enumerate() {
        reach.tests.push(test);
        reached.into_iter().for_each(|id| reach.by_mutant.entry(id).or_default().push(at));
    }
    kit::save(&file, &reach)?;
    Ok(reach)
}

/// What a test takes and reaches.
fn look(kit: &Path, at: usize, test: Named, runs: Runs<'_>) -> Result<Found> {
    let [said, reached] = ["said", "reached"].map(|what| kit.join(format!("{what}-{at}")));
    let Named { program, name, is_alone } = test;
    let full = format!("{program} {name}");
    write(&reached, vec![0; runs.mutants])?;
    let with_seeds = |seeds: u32, limit: Duration| {
        let env = vec![
            ("NVSHMEM_TEST_SEEDS", seeds.to_string()),
            ("MUTANTS_REACHED", reached.display().to_string()),
        ];
        let program = &kit.join(PROGRAMS).join(&program);
        let run = Run { program, tests: &[&name], takes_one: is_alone, room: runs.room, env };
        run.run(&said, limit)
    };
    let text = || std::fs::read(&said).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let text = || text().map_err(error::at(&said));
    let mut ended = with_seeds(runs.seeds, runs.longest)?;
    let is_random = text()?.contains(" seeds from ");
    let takes = if let Ended::Passed(takes) = ended { takes } else { Duration::ZERO };
    if ended != Ended::TooLong && is_random {
        let limit = runs.longest * 10 * runs.more_seeds.div_ceil(runs.seeds);
        if !matches!(with_seeds(runs.more_seeds, limit)?, Ended::Passed(_)) {
            ended = Ended::Failed;
        }
    }
    let found = match ended {
        Ended::TooLong => Found::TakesTooLong(full),
        Ended::Failed if runs.room == Room::Open => return Err(Error::Unmutated(full, text()?)),
        Ended::Failed => Found::Fails(full),
        Ended::Passed(_) => {
            let bytes = std::fs::read(&reached).map_err(error::at(&reached))?;
            let ids = bytes.iter().enumerate().filter(|(_, byte)| **byte != 0).map(|(id, _)| id);
            Found::Reaches(Test { program, name, takes, is_random, is_alone }, ids.collect())
        }
    };
    for file in [said, reached] {
        let _ = std::fs::remove_file(file);
    }
    Ok(found)
}

/// Leaves those that are to be run.
fn choose(tests: &mut Vec<Named>, runs: Runs<'_>) {
    let mut kinds: HashMap<String, usize> = HashMap::new();
    tests.retain(|Named { program, name, .. }| {
        let full = format!("{program} {name}");
        if runs.skip.iter().any(|skip| full.starts_with(skip.as_str())) {
            return false;
        }
        // Whose names say how many PEs there are is a row of a table.
        if !name.contains("_pes") {
            return true;
        }
        let so_far = kinds.entry(kind_of(&full)).or_default();
        *so_far += 1;
        *so_far <= runs.rows
    });
}

/// The tests of all programs.
fn names(kit: &Path) -> Result<Vec<Named>> {
    let bin = kit.join(PROGRAMS);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&bin).map_err(error::at(&bin))? {
        let path = entry.map_err(error::at(&bin))?.path();
        if path.is_dir() || path.extension().is_some_and(|end| end == LIBRARY) {
            continue;
        }
        let list = |more: &[&str]| {
            let mut command = Command::new(&path);
            command.arg("--list").args(more).env(EVERY_CASE, "1").output().map_err(error::at(&path))
        };
        let listed = String::from_utf8_lossy(&list(&[])?.stdout).into_owned();
        // A harness that is not Rust's own takes one name.
        let is_alone = !list(&["a", "b"])?.status.success();
        let program = path.file_name().unwrap_or_default().to_string_lossy();
        names.extend(listed.lines().filter_map(|line| line.strip_suffix(": test")).map(|name| {
            Named { program: program.clone().into_owned(), name: name.to_owned(), is_alone }
        }));
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_rows_of_a_kind_some_are_run_and_of_others_all() {
        let skip = ["plugin soak".to_owned()];
        let runs = Runs {
            rows: 1,
            skip: &skip,
            jobs: 1,
            longest: Duration::ZERO,
            seeds: 1,
            more_seeds: 1,
            room: Room::Open,
            mutants: 0,
        };
        let named =
            |name: &str| Named { program: "plugin".into(), name: name.into(), is_alone: true };
        let names =
            ["a_rxm_2_pes_x", "a_rxm_3_pes_y", "a_shm_2_pes", "a_rxm", "a_rxm_2", "soak::b"];
        let mut tests = names.map(named).into();
        choose(&mut tests, runs);
        let left: Vec<_> = tests.iter().map(|test| test.name.as_str()).collect();
        assert_eq!(left, ["a_rxm_2_pes_x", "a_shm_2_pes", "a_rxm", "a_rxm_2"]);
    }
}
