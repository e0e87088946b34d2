//! A run of all cases, and its report.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use launcher::{Limits, PrivateDir};
use thiserror::Error;

use crate::case::{Case, Outcome};
use crate::installation::NoInstallation;
use crate::launch::Job;
use crate::library::{For, Library};
use crate::mps::Mps;
use crate::options::{MpsChoice, Options};
use crate::programs::{EXAMPLES, NCCL_PROGRAMS, PERFTESTS, PPLX, deadline};

/// After one PE has failed, the others have so long to say what they know of it. Above the timeout
/// that the case of a dying PE sets.
const GRACE: Duration = Duration::from_secs(40);

/// What keeps the runs from starting.
#[derive(Debug, Error)]
pub(crate) enum RunError {
    /// The NVSHMEM, or NCCL, is none.
    #[error("--nvshmem or --nccl: {0}")]
    Installation(#[from] NoInstallation),
    /// There is no transport for it.
    #[error("{} is not there: {library} looks for a transport of that name", path.display())]
    NoPlugin {
        /// The file.
        path: PathBuf,
        /// Its name and version.
        library: String,
    },
    /// Nothing to run.
    #[error(
        "no program to run: give --programs, --perftests, --examples or --pplx, with executables in it"
    )]
    NoPrograms,
    /// The multi-process service does not start.
    #[error("--mps on: {0}")]
    Mps(io::Error),
    /// A job could not be started, or a directory not be read.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// Why not.
        source: io::Error,
    },
}

/// Runs what the options say. Whether all of it worked.
pub(crate) fn all(options: &Options) -> Result<bool, RunError> {
    let library = Library::of(options)?;
    let plugin = library.plugin(&options.plugin_dir);
    if !plugin.is_file() {
        return Err(RunError::NoPlugin { path: plugin, library: library.name() });
    }
    let cases = cases(options)?;
    if cases.is_empty() {
        return Err(RunError::NoPrograms);
    }
    let scratch = Scratch::new(options.out.as_deref())?;
    // Whether it is there shows before anything runs.
    let has_mps = start_mps(options, &scratch.dir)?.is_some();
    println!("{} in {}", library.name(), library.root().display());
    println!("transport {}", plugin.display());
    println!(
        "multi-process service: {}",
        if has_mps { "on" } else { "off, so PEs on one GPU take turns and times say nothing" }
    );

    let mut rows = Vec::new();
    for provider in &options.providers {
        for (directory, case) in &cases {
            let dir = scratch.dir.join(format!("{provider}-{}-{}", rows.len(), case.program));
            let pes = case.pes.unwrap_or(options.pes);
            if let Some(missing) = case.missing(pes, gpus()) {
                let outcome = Outcome::skipped(missing);
                print(options, provider, case, &outcome);
                rows.push((provider, case, outcome));
                continue;
            }
            let shares_gpus = gpus().is_none_or(|gpus| gpus < pes);
            let job = For { provider, dir: &dir, shares_gpus };
            let mut env = library.environment(options, &plugin, job);
            // One for each job: where a client has died, the service refuses others for a while.
            let mps = if has_mps { start_mps(options, &scratch.dir)? } else { None };
            let sharers = pes.div_ceil(gpus().unwrap_or(1).max(1));
            env.extend(mps.iter().flat_map(|mps| mps.env(sharers)));
            env.extend(case.env.iter().cloned());
            let outcome = run(options, directory, case, pes, env, &dir)?;
            print(options, provider, case, &outcome);
            rows.push((provider, case, outcome));
        }
    }

    println!(
        "\n{:<44} {:>8} {:>8} {:>12} {:>14} {:>10}  result",
        "program", "provider", "seconds", "segments", "bytes", "messages"
    );
    for (provider, case, outcome) in &rows {
        let traffic = outcome.traffic;
        println!(
            "{:<44} {provider:>8} {:>8.2} {:>12} {:>14} {:>10}  {}",
            shortened(&case.to_string()),
            outcome.took.as_secs_f64(),
            traffic.writes + traffic.reads,
            traffic.bytes,
            traffic.messages,
            outcome.result(),
        );
    }
    let worked = rows.iter().filter(|(_, _, outcome)| outcome.worked()).count();
    let skipped = rows.iter().filter(|(_, _, outcome)| outcome.skipped.is_some()).count();
    match skipped {
        0 => println!("\n{worked} of {} worked", rows.len()),
        _ => println!("\n{worked} of {} worked, {skipped} skipped", rows.len()),
    }
    Ok(worked > 0 && worked + skipped == rows.len())
}

fn run(
    options: &Options,
    directory: &Path,
    case: &Case,
    pes: u32,
    env: Vec<(String, String)>,
    dir: &Path,
) -> Result<Outcome, RunError> {
    let told = |source| RunError::Io { what: case.to_string(), source };
    // What an earlier run has left there, an id of a job that is gone, would mislead this one.
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(told(error)),
        _ => fs::create_dir_all(dir).map_err(told)?,
    }
    let seconds = options.deadline.unwrap_or_else(|| deadline(&case.program));
    let job = Job {
        program: directory.join(&case.program),
        args: case.args.clone(),
        pes,
        bootstrap: case.bootstrap,
        env,
        dir: dir.to_owned(),
        limits: Limits { deadline: Duration::from_secs(seconds), grace: GRACE },
    };
    let ended = job.run().map_err(told)?;
    Ok(case.judge(pes, &ended, dir))
}

fn print(options: &Options, provider: &str, case: &Case, outcome: &Outcome) {
    println!("\n== {case} over {provider}: {}", outcome.result());
    if !options.brief {
        outcome
            .printed
            .lines()
            .filter(|line| !line.trim().is_empty())
            .for_each(|l| println!("{l}"));
    }
}

fn shortened(text: &str) -> String {
    let most = 44;
    if text.chars().count() <= most { text.to_owned() } else { text.chars().take(most).collect() }
}

/// The cases, each with the directory of its program.
fn cases(options: &Options) -> Result<Vec<(PathBuf, Case)>, RunError> {
    let wanted = |name: &str| {
        options.only.is_empty() || options.only.iter().any(|part| name.contains(part.as_str()))
    };
    let mut cases = Vec::new();
    if let (Some(directory), Some(_)) = (&options.programs, &options.nccl) {
        let there = executables(directory)?;
        let runs = |name: &str| there.iter().any(|file| file == name) && wanted(name);
        for example in NCCL_PROGRAMS.iter().filter(|example| runs(example.program)) {
            cases.push((directory.clone(), Case::nccl(example, &options.args)));
        }
        return Ok(cases);
    }
    if let Some(directory) = &options.programs {
        let programs = executables(directory)?;
        // What was started is said first.
        let (first, rest): (Vec<String>, Vec<String>) =
            programs.into_iter().partition(|name| name == "info");
        for name in first.iter().chain(&rest).filter(|name| wanted(name)) {
            cases.push((directory.clone(), Case::own(name, &options.args, options.bootstrap)));
        }
    }
    if let Some(directory) = &options.perftests {
        let there = executables(directory)?;
        for (name, args) in PERFTESTS {
            if there.iter().any(|file| file == name) && wanted(name) {
                cases.push((directory.clone(), Case::perftest(name, args, options.bootstrap)));
            }
        }
    }
    if let Some(directory) = &options.examples {
        let there = executables(directory)?;
        let runs = |name: &str| there.iter().any(|file| file == name) && wanted(name);
        for example in EXAMPLES.iter().filter(|example| runs(example.program)) {
            cases.push((directory.clone(), Case::example(example, options.bootstrap)));
        }
    }
    if let Some(directory) = &options.pplx {
        let there = executables(directory)?;
        let runs = |name: &str| there.iter().any(|file| file == name) && wanted(name);
        for example in PPLX.iter().filter(|example| runs(example.program)) {
            cases.push((directory.clone(), Case::pplx(example, options.pes)));
        }
    }
    Ok(cases)
}

/// How many GPUs the machine has, if its driver says so.
fn gpus() -> Option<u32> {
    let entries = fs::read_dir("/proc/driver/nvidia/gpus").ok()?;
    u32::try_from(entries.count()).ok()
}

/// The names of the executables in a directory, sorted.
fn executables(directory: &Path) -> Result<Vec<String>, RunError> {
    let what = || directory.display().to_string();
    let told = |source| RunError::Io { what: what(), source };
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).map_err(told)? {
        let entry = entry.map_err(told)?;
        let metadata = fs::metadata(entry.path()).map_err(told)?;
        if metadata.is_file() && metadata.permissions().mode() & 0o111 != 0 {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

fn start_mps(options: &Options, dir: &Path) -> Result<Option<Mps>, RunError> {
    if options.mps == MpsChoice::Off {
        return Ok(None);
    }
    match Mps::start(&dir.join("mps")) {
        Ok(mps) => Ok(Some(mps)),
        Err(error) if options.mps == MpsChoice::On => Err(RunError::Mps(error)),
        Err(error) => {
            println!("no multi-process service: {error}");
            Ok(None)
        }
    }
}

/// Where outputs are written; removed at the end unless the user has named it.
struct Scratch {
    dir: PathBuf,
    _own: Option<PrivateDir>,
}

impl Scratch {
    fn new(named: Option<&Path>) -> Result<Self, RunError> {
        let Some(dir) = named else {
            let what = String::from("a temporary directory");
            let own = PrivateDir::new("nvshmem-gpu-run");
            let own = own.map_err(|source| RunError::Io { what, source })?;
            return Ok(Self { dir: own.path().to_owned(), _own: Some(own) });
        };
        let told = |source| RunError::Io { what: dir.display().to_string(), source };
        fs::create_dir_all(dir).map_err(told)?;
        // PEs may be started elsewhere.
        let dir = fs::canonicalize(dir).map_err(told)?;
        Ok(Self { dir, _own: None })
    }
}
