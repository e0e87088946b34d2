//! A run of all cases, and its report.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use launcher::{Limits, PrivateDir};

use crate::case::{Case, Outcome, Proof};
use crate::launch::Job;
use crate::library::{For, Library};
use crate::mps::Mps;
use crate::options::{MpsChoice, Options};
use crate::programs::{self, EXAMPLES, Example, NCCL_PROGRAMS, PERFTESTS, PPLX, deadline};

/// How long the other PEs have to report after one has failed: more than the timeout that the case
/// of a dying PE sets.
const GRACE: Duration = Duration::from_secs(40);

pub(crate) fn all(options: &Options) -> Result<bool, String> {
    let library = Library::of(options)?;
    let plugin = library.plugin(&options.plugin_dir);
    if !plugin.is_file() {
        return Err(format!(
            "{} is not there: {} looks for a plugin of that name",
            plugin.display(),
            library.name()
        ));
    }
    let cases = cases(options)?;
    if cases.is_empty() {
        return Err(String::from(
            "no program to run: give --programs, --perftests, --examples or --pplx, with executables",
        ));
    }
    let scratch = Scratch::new(options.out.as_deref())?;
    // Whether it is there shows before anything runs.
    let has_mps = start_mps(options, &scratch.dir)?.is_some();
    println!("{} in {}", library.name(), library.root.display());
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
            let outcome = if let Some(missing) = case.missing(pes, gpus()) {
                Outcome::skipped(missing)
            } else {
                let shares_gpus = gpus().is_none_or(|gpus| gpus < pes);
                let job = For { provider, dir: &dir, shares_gpus };
                let mut env = library.environment(options, &plugin, job);
                // A service for each job, as one that has lost a client refuses others for a while;
                // none where a rank is killed, whose fault would end all clients on its GPU.
                let serves = has_mps && case.proof != Proof::Survival;
                let mps = if serves { start_mps(options, &scratch.dir)? } else { None };
                let sharers = pes.div_ceil(gpus().unwrap_or(1).max(1));
                env.extend(mps.iter().flat_map(|mps| mps.env(sharers)));
                env.extend(case.env.iter().cloned());
                run(options, directory, case, pes, env, &dir)?
            };
            print(provider, case, &outcome);
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
) -> Result<Outcome, String> {
    let told = |error: io::Error| format!("{case}: {error}");
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

fn print(provider: &str, case: &Case, outcome: &Outcome) {
    println!("\n== {case} over {provider}: {}", outcome.result());
    let lines = outcome.printed.lines().filter(|line| !line.trim().is_empty());
    lines.for_each(|line| println!("{line}"));
}

fn shortened(text: &str) -> String {
    let most = 44;
    if text.chars().count() <= most { text.to_owned() } else { text.chars().take(most).collect() }
}

fn cases(options: &Options) -> Result<Vec<(PathBuf, Case)>, String> {
    let wanted = |name: &str| {
        options.only.is_empty() || options.only.iter().any(|part| name.contains(part.as_str()))
    };
    let mut cases = Vec::new();
    // Adds the cases of a list whose program is in the directory.
    let mut listed =
        |directory: &Option<PathBuf>, list: &[Example], case: &dyn Fn(&Example) -> Case| {
            let Some(directory) = directory else { return Ok(()) };
            let there = executables(directory)?;
            let runs = |name: &str| there.iter().any(|file| file == name) && wanted(name);
            let runs = list.iter().filter(|example| runs(example.program));
            cases.extend(runs.map(|example| (directory.clone(), case(example))));
            Ok::<(), String>(())
        };
    if options.nccl.is_some() {
        let case = |example: &Example| Case::nccl(example, &options.args);
        listed(&options.programs, NCCL_PROGRAMS, &case)?;
        return Ok(cases);
    }
    let perftests: Vec<_> =
        PERFTESTS.iter().map(|(name, args)| programs::example(name, args, "")).collect();
    let perftest = |test: &Example| Case::perftest(test.program, test.args);
    listed(&options.perftests, &perftests, &perftest)?;
    listed(&options.examples, EXAMPLES, &Case::example)?;
    listed(&options.pplx, PPLX, &|example| Case::pplx(example, options.pes))?;
    if let Some(directory) = &options.programs {
        let mut programs = executables(directory)?;
        programs.retain(|name| wanted(name));
        // `info` shows what is tested, so it comes first.
        programs.sort_by_key(|name| name != "info");
        let case = |name: String| Case::own(&name, &options.args);
        let own = programs.into_iter().map(|name| (directory.clone(), case(name)));
        cases.splice(0..0, own);
    }
    Ok(cases)
}

/// Returns the number of GPUs, if the driver is there.
fn gpus() -> Option<u32> {
    let entries = fs::read_dir("/proc/driver/nvidia/gpus").ok()?;
    u32::try_from(entries.count()).ok()
}

fn executables(directory: &Path) -> Result<Vec<String>, String> {
    let told = |error: io::Error| format!("{}: {error}", directory.display());
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

fn start_mps(options: &Options, dir: &Path) -> Result<Option<Mps>, String> {
    if options.mps == MpsChoice::Off {
        return Ok(None);
    }
    match Mps::start(&dir.join("mps")) {
        Ok(mps) => Ok(Some(mps)),
        Err(error) if options.mps == MpsChoice::On => Err(format!("--mps on: {error}")),
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
    fn new(named: Option<&Path>) -> Result<Self, String> {
        let Some(dir) = named else {
            let own = PrivateDir::new("nvshmem-gpu-run");
            let own = own.map_err(|error| format!("a temporary directory: {error}"))?;
            return Ok(Self { dir: own.path().to_owned(), _own: Some(own) });
        };
        let told = |error: io::Error| format!("{}: {error}", dir.display());
        fs::create_dir_all(dir).map_err(told)?;
        // PEs may be started elsewhere.
        let dir = fs::canonicalize(dir).map_err(told)?;
        Ok(Self { dir, _own: None })
    }
}
