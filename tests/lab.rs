//! The installed plugin on several hosts with several rails, in the lab: the runs of `tests/lab` that
//! are marked as tests. What is asserted is that jobs end in order, that every byte and every total is
//! right, and that rails which fail are named; never how fast it was. `make rail-lab` measures.
//!
//! `make test` says where the plugin and a libfabric 2.x are. Where there can be no lab, for lack of rights
//! or of iproute2, the tests are ignored and say why.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Failed, Trial};
use nvshmem_sim::lab::{self, Experiment, Subject};
use nvshmem_sim::pe_entry;

const PLUGINS: &str = "NVSHMEM_TEST_PLUGIN_DIR";
const LIBFABRIC: &str = "NVSHMEM_TEST_LIBFABRIC2";
const FULL: &str = "NVSHMEM_TEST_FULL";

fn main() -> ExitCode {
    // A process that the launcher started as a PE ends in here.
    pe_entry(&[(lab::SCENARIO, lab::pe)]);
    let mut arguments = Arguments::from_args();
    // Each run is several busy processes already.
    arguments.test_threads.get_or_insert(1);
    let missing = missing();
    if let Some(reason) = &missing {
        println!("the lab's tests are ignored: {reason}");
    }
    let mut trials = Vec::new();
    for path in experiments() {
        trials.extend(of_experiment(&path, missing.is_some()));
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Why nothing can be tested here, if so.
fn missing() -> Option<String> {
    for variable in [PLUGINS, LIBFABRIC] {
        if std::env::var_os(variable).is_none_or(|value| value.is_empty()) {
            return Some(format!("{variable} is not set; `make test` sets it"));
        }
    }
    lab::missing().map(|reason| format!("there can be no lab here: {reason}"))
}

/// The files, by name.
fn experiments() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lab");
    let entries = std::fs::read_dir(&directory).expect("tests/lab is a directory");
    let mut files: Vec<PathBuf> =
        entries.map(|entry| entry.expect("tests/lab is read").path()).collect();
    files.sort();
    files
}

/// A trial for each run that is a test, and one that says whether the file makes sense.
fn of_experiment(path: &Path, ignored: bool) -> Vec<Trial> {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let (experiment, text) = match lab::load(path) {
        Ok(loaded) => (Arc::new(loaded.0), Arc::<str>::from(loaded.1)),
        Err(error) => {
            let failed = move || Err(Failed::from(error.to_string()));
            return vec![Trial::test(format!("{stem}::makes_sense"), failed)];
        }
    };
    let lacks = experiment.lacks().map(ToOwned::to_owned);
    if let Some(needs) = &lacks {
        println!("{stem} is ignored: it needs {needs}, which the plugin does not offer yet");
    }
    let trial = |index: usize| {
        let (experiment, text) = (experiment.clone(), text.clone());
        let name = format!("{stem}::{}", identifier(&experiment.runs[index].name));
        Trial::test(name, move || right(&experiment, &text, index))
            .with_ignored_flag(ignored || lacks.is_some())
    };
    let full = std::env::var_os(FULL).is_some_and(|value| !value.is_empty());
    let wanted =
        |run: &usize| experiment.runs[*run].tested && (full || !experiment.runs[*run].long);
    (0..experiment.runs.len()).filter(wanted).map(trial).collect()
}

/// The words of a name, joined.
fn identifier(name: &str) -> String {
    let words = name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("_")
}

fn right(experiment: &Experiment, text: &str, index: usize) -> Result<(), Failed> {
    let subject = Subject {
        plugin_dir: std::env::var_os(PLUGINS).map(PathBuf::from).unwrap_or_default(),
        libfabric: std::env::var_os(LIBFABRIC).map(PathBuf::from),
        env: Default::default(),
    };
    let ran = subject.run(experiment, text, index)?;
    if let Some(failure) = ran.failure {
        return Err(format!("{failure}\n{:?}\n{}", ran.happened, ran.log).into());
    }
    if ran.wrong_bytes > 0 {
        let first = ran.first_wrong.unwrap_or_default();
        return Err(format!("{} wrong bytes; first {first}\n{}", ran.wrong_bytes, ran.log).into());
    }
    Ok(())
}
