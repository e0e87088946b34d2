//! The rail laboratory from the command line: runs experiments and prints what came of them.
//!
//! Hosts with several rails, all on this machine: bandwidth, slow rails, rails that fail.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use nvshmem_sim::{BoxError, pe_entry};
use rail_lab::{Experiment, Figure, Ran, Subject};

/// Several hosts with several rails: bandwidth, slow rails, rails that fail
#[derive(Parser, Debug)]
#[command(name = "nvshmem-rail-lab", version)]
struct Options {
    /// Directory with the installed plugin files
    #[arg(long, default_value_os_t = default_plugin_dir())]
    plugin_dir: PathBuf,
    /// The libfabric that the plugin loads; NVSHMEM_LIBFABRIC_LIBRARY for the PEs
    #[arg(long)]
    libfabric: Option<PathBuf>,
    /// A variable of the PEs' environment, over what experiments set
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    env: Vec<(String, String)>,
    /// Runs whose name contains this, and no figures that need others
    #[arg(long)]
    only: Option<String>,
    /// Print all that the PEs say
    #[arg(long)]
    verbose: bool,
    /// Experiments, or directories of them
    #[arg(default_value = "tests/lab")]
    experiments: Vec<PathBuf>,
}

/// Where the plugin is when nobody says otherwise: installed beside this program.
fn default_plugin_dir() -> PathBuf {
    let here = std::env::current_exe().ok();
    here.and_then(|program| Some(program.parent()?.parent()?.join("install/lib")))
        .unwrap_or_default()
}

fn main() -> ExitCode {
    // A process that the launcher started as a PE ends in here.
    pe_entry(&[(rail_lab::SCENARIO, rail_lab::pe)]);
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nvshmem-rail-lab: {error}");
            ExitCode::FAILURE
        }
    }
}

fn variable(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("a variable is NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Bits per second of a megabit per second, from bytes.
const BYTES_PER_MBIT: f64 = 1e6 / 8.0;

/// Runs the experiments.
///
/// # Errors
/// Something was wrong: a job failed, a byte was wrong, nothing was run, or there can be no lab
/// here. That something was slow is no error.
fn run(options: &Options) -> Result<(), BoxError> {
    rail_lab::possible()?;
    let subject = Subject {
        plugin_dir: options.plugin_dir.clone(),
        libfabric: options.libfabric.as_ref().map(std::path::absolute).transpose()?,
        env: options.env.iter().cloned().collect(),
    };
    let started = Instant::now();
    let (mut figures, mut wrong, mut n_ran) = (Vec::new(), Vec::new(), 0);
    for path in files(&options.experiments)? {
        let (experiment, text) = rail_lab::load(&path)?;
        let is_wanted =
            |name: &String| options.only.as_ref().is_none_or(|only| name.contains(only));
        if !experiment.runs.iter().any(|run| is_wanted(&run.name)) {
            continue;
        }
        show_head(&path, &experiment);
        show_raw(&experiment)?;
        let imbalance_matters = experiment.measures.iter().any(|m| m.of == Figure::Imbalance);
        let mut done = BTreeMap::new();
        for (index, run) in experiment.runs.iter().enumerate() {
            if !is_wanted(&run.name) {
                continue;
            }
            let ran = subject.run(&experiment, &text, index)?;
            show(&ran, options.verbose);
            let imbalance = ran.imbalance().filter(|_| imbalance_matters);
            if let Some(imbalance) = imbalance {
                let percent = imbalance * 100.0;
                println!("  the rails of host0 have received within {percent:.1} % of one another");
            }
            let place = format!("{}, {}", path.display(), ran.name);
            if let Some(failure) = &ran.failure {
                wrong.push(format!("{place}: {failure}"));
            }
            if ran.wrong_bytes > 0 {
                wrong.push(format!("{place}: {} wrong bytes", ran.wrong_bytes));
            }
            done.insert(ran.name.clone(), ran);
            n_ran += 1;
        }
        figures.extend(experiment.measures.iter().filter_map(|measure| {
            let Some((value, unit)) = experiment.figure(measure, &done) else {
                println!("{}: not measured, as a run it needs is missing", measure.name);
                return None;
            };
            Some((measure.clone(), value, unit))
        }));
    }
    if n_ran == 0 {
        let only = options.only.as_ref().map(|only| format!(" whose name contains {only:?}"));
        let places: Vec<String> =
            options.experiments.iter().map(|place| place.display().to_string()).collect();
        let (only, places) = (only.unwrap_or_default(), places.join(", "));
        return Err(format!("nothing was run: {places} has no run{only} that can be").into());
    }
    println!("\nall of it took {:.0} s", started.elapsed().as_secs_f64());
    for (measure, value, _) in &figures {
        let goal = match (measure.at_least, measure.at_most) {
            (Some(least), _) if *value < least => format!("below the goal of {least}"),
            (Some(least), _) => format!("goal {least}"),
            (_, Some(most)) if *value > most => format!("above the goal of {most}"),
            (_, Some(most)) => format!("goal {most} at most"),
            _ => "no goal".into(),
        };
        println!("{:<44} {value:>8.3}  {goal}", measure.name);
    }
    for (measure, value, unit) in &figures {
        match measure.of {
            Figure::WrongBytes => println!("MEASURE {} {value} {unit}", measure.name),
            _ => println!("MEASURE {} {value:.3} {unit}", measure.name),
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n").into()) }
}

/// The experiments, those of a directory by name.
fn files(places: &[PathBuf]) -> Result<Vec<PathBuf>, BoxError> {
    let mut files = Vec::new();
    for place in places {
        if !place.is_dir() {
            files.push(place.clone());
            continue;
        }
        let entries = std::fs::read_dir(place).map_err(|e| format!("{}: {e}", place.display()))?;
        let mut found =
            entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>()?;
        found.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
        found.sort();
        files.extend(found);
    }
    Ok(files)
}

fn show_head(path: &Path, experiment: &Experiment) {
    let rates: Vec<String> = experiment.rails.iter().map(ToString::to_string).collect();
    println!("\n# {}: {}", path.display(), experiment.title);
    println!("{} hosts, rails {}", experiment.hosts, rates.join(" "));
}

fn show_raw(experiment: &Experiment) -> Result<(), BoxError> {
    let (alone, together) = Subject::raw_tcp(experiment)?;
    let alone: Vec<String> =
        alone.iter().map(|rate| format!("{:.1}", rate / BYTES_PER_MBIT)).collect();
    println!(
        "TCP by itself, Mbit/s of payload: {}; all at once {:.1}",
        alone.join(" "),
        together / BYTES_PER_MBIT
    );
    Ok(())
}

fn show(ran: &Ran, verbose: bool) {
    let goodput = ran.goodput.map_or("-".into(), |rate| format!("{:.1}", rate / BYTES_PER_MBIT));
    println!(
        "{:<28} {goodput:>8} Mbit/s  {} wrong bytes  {:.1} s",
        ran.name,
        ran.wrong_bytes,
        ran.elapsed.as_secs_f64()
    );
    for (host, rails) in ran.carried.iter().enumerate() {
        let rails: Vec<String> = rails
            .iter()
            .map(|rail| format!("{:.1}/{:.1}", rail.sent as f64 / 1e6, rail.received as f64 / 1e6))
            .collect();
        println!("  host{host} sent/received, MB by rail: {}", rails.join("  "));
    }
    for line in &ran.happened {
        println!("  {line}");
    }
    for line in ran.failure.iter().map(|why| format!("FAILED: {why}")) {
        println!("  {line}");
    }
    if let Some(first) = &ran.first_wrong {
        println!("  WRONG: {first}");
    }
    for line in ran.warnings.iter().take(if verbose { usize::MAX } else { 6 }) {
        println!("  {line}");
    }
    if verbose {
        print!("{}", ran.log);
    }
}
