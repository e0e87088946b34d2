//! The plugin on several hosts with several rails, in the lab: the runs of `tests/lab` that are
//! marked as tests. What is asserted is that jobs end in order, that every byte and every total is
//! right, and that rails which fail are named; never how fast it was. `make rail-lab` measures.
//!
//! They need a libfabric 2.x, which `NVSHMEM_TEST_LIBFABRIC2` names, iproute2 and root's rights;
//! without, they are skipped and say why.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Failed, Trial};
use nvshmem_sim::pe_entry;
use rail_lab::{Experiment, Subject};
use test_support::built::plugin_dir;
use test_support::full;
use test_support::needs::{Need, libfabric2, trial};

fn main() -> ExitCode {
    // A process that the launcher started as a PE ends in here.
    pe_entry(&[(rail_lab::SCENARIO, rail_lab::pe)]);
    let mut arguments = Arguments::from_args();
    // Each run is several busy processes already.
    arguments.test_threads.get_or_insert(1);
    let need = needs();
    let trials = experiments().iter().flat_map(|path| of_experiment(path, &need)).collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// The libfabric to run with, where there can be a lab.
fn needs() -> Need<PathBuf> {
    let library = libfabric2()?;
    rail_lab::possible().map(|()| library)
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
fn of_experiment(path: &Path, need: &Need<PathBuf>) -> Vec<Trial> {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let (experiment, text) = match rail_lab::load(path) {
        Ok(loaded) => (Arc::new(loaded.0), Arc::<str>::from(loaded.1)),
        Err(error) => {
            let failed = move || Err(Failed::from(error.to_string()));
            return vec![Trial::test(format!("{stem}::makes_sense"), failed)];
        }
    };
    let of_run = |index: usize| {
        let (experiment, text) = (experiment.clone(), text.clone());
        let name = format!("{stem}::{}", identifier(&experiment.runs[index].name));
        trial(name, need.clone(), move |library| right(&experiment, &text, index, library))
    };
    let wanted =
        |run: &usize| experiment.runs[*run].tested && (full() || !experiment.runs[*run].long);
    (0..experiment.runs.len()).filter(wanted).map(of_run).collect()
}

/// The words of a name, joined.
fn identifier(name: &str) -> String {
    let words = name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("_")
}

fn right(
    experiment: &Experiment,
    text: &str,
    index: usize,
    libfabric: PathBuf,
) -> Result<(), Failed> {
    let subject =
        Subject { plugin_dir: plugin_dir(), libfabric: Some(libfabric), env: Default::default() };
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
