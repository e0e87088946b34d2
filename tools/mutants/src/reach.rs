//! Which test reaches which mutants, and how long each takes.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result, at, read};
use crate::kit::{self, PROGRAMS};
use crate::mutant::Id;
use crate::process::{Ended, Run};

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
}

/// The tests, the short ones first, and for each mutant those that reach it.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Reach {
    pub(crate) tests: Vec<Test>,
    pub(crate) by_mutant: HashMap<Id, Vec<usize>>,
    /// Names of tests that take too long.
    pub(crate) too_long: Vec<String>,
}

/// How tests are run to see what they reach.
#[derive(Clone, Copy)]
pub(crate) struct Runs {
    pub(crate) jobs: usize,
    /// What takes longer is left out.
    pub(crate) longest: Duration,
    /// Seeds of random tests, to see what they take.
    pub(crate) seeds: u32,
    /// And to see what they reach.
    pub(crate) more_seeds: u32,
}

/// As an earlier run saw it, or else runs each test by itself, several at once.
pub(crate) fn load_or_record(kit: &Path, runs: Runs) -> Result<Reach> {
    let file = kit.join(REACH);
    if file.exists() {
        return kit::load(&file);
    }
    let next = Mutex::new(names(kit)?.into_iter().enumerate());
    let done = Mutex::new(Vec::new());
    let too_long = Mutex::new(Vec::new());
    let one = || -> Result<()> {
        loop {
            let Some((at, (program, name))) = next.lock().expect("no panic").next() else {
                return Ok(());
            };
            match look(kit, at, program, name, runs)? {
                Ok(found) => done.lock().expect("no panic").push(found),
                Err(name) => too_long.lock().expect("no panic").push(name),
            }
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..runs.jobs).map(|_| scope.spawn(one)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })?;

    let mut done = done.into_inner().expect("no panic");
    done.sort_by_key(|(test, _)| test.takes);
    let too_long = too_long.into_inner().expect("no panic");
    let mut reach = Reach { too_long, ..Reach::default() };
    for (at, (test, reached)) in done.into_iter().enumerate() {
        reach.tests.push(test);
        reached.into_iter().for_each(|id| reach.by_mutant.entry(id).or_default().push(at));
    }
    kit::save(&file, &reach)?;
    Ok(reach)
}

/// What a test takes and reaches, or else its name, as it takes too long.
fn look(
    kit: &Path,
    at: usize,
    program: String,
    name: String,
    runs: Runs,
) -> Result<std::result::Result<(Test, Vec<Id>), String>> {
    let [said, reached] = ["said", "reached"].map(|what| kit.join(format!("{what}-{at}")));
    let mut run = Run { program: &kit.join(PROGRAMS).join(&program), tests: &[&name], env: vec![] };
    run.env.push(("NVSHMEM_TEST_SEEDS", runs.seeds.to_string()));
    let ended = run.run(&said, runs.longest)?;
    let text = read(&said)?;
    let found = match ended {
        Ended::TooLong => Err(format!("{program} {name}")),
        Ended::Failed => return Err(Error::Unmutated(format!("{program} {name}"), text)),
        Ended::Passed(takes) => {
            let is_random = text.contains(" seeds from ");
            let seeds = if is_random { runs.more_seeds } else { runs.seeds };
            run.env = vec![("NVSHMEM_TEST_SEEDS", seeds.to_string())];
            run.env.push(("MUTANTS_REACHED", reached.display().to_string()));
            let limit = runs.longest * 10 * seeds.div_ceil(runs.seeds);
            if !matches!(run.run(&said, limit)?, Ended::Passed(_)) {
                return Err(Error::Unmutated(format!("{program} {name}"), read(&said)?));
            }
            let text = if reached.exists() { read(&reached)? } else { String::new() };
            let ids = text.lines().filter_map(|line| line.parse().ok()).collect();
            Ok((Test { program, name, takes, is_random }, ids))
        }
    };
    for file in [said, reached] {
        let _ = std::fs::remove_file(file);
    }
    Ok(found)
}

/// The program and the name of each test.
fn names(kit: &Path) -> Result<Vec<(String, String)>> {
    let bin = kit.join(PROGRAMS);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&bin).map_err(at(&bin))? {
        let entry = entry.map_err(at(&bin))?;
        let program = entry.file_name().to_string_lossy().into_owned();
        let listed =
            Command::new(entry.path()).arg("--list").output().map_err(at(&entry.path()))?;
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        let tests = listed.lines().filter_map(|line| line.strip_suffix(": test"));
        names.extend(tests.map(|name| (program.clone(), name.to_owned())));
    }
    Ok(names)
}
