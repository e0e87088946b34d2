//! Instructions per operation, counted by valgrind's callgrind.
//!
//! Callgrind writes a dump of the thread that enters the function `nvshmem_bench_mark`, and starts
//! again from zero for it. A section lies between two marks. Each operation has two sections of
//! different length: their difference is free of what begins and ends a section.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use nvshmem_bench::{ALLOWANCE, Case, Op, Plan, SECTIONS, Side, run};
use nvshmem_sim::{BoxError, PrivateDir};

use crate::report::Report;
use crate::{Options, Provider};

/// The provider under which instructions are counted; our code is the same for all. Not shm: its
/// 1.17 leaves some of a window undelivered until their sender polls, so that there is no moment at
/// which all completions are known to be there.
pub(crate) const PROVIDER: Provider = Provider::Rxm;

pub(crate) struct Callgrind {
    out: PathBuf,
}

impl Callgrind {
    pub(crate) fn new(dir: &Path, name: &str) -> std::io::Result<Self> {
        fs::create_dir_all(dir)?;
        Ok(Self { out: dir.join(format!("callgrind.{name}.out")) })
    }

    pub(crate) fn prefix(&self) -> Vec<OsString> {
        let words = "valgrind --quiet --tool=callgrind --compress-strings=no --compress-pos=no \
                     --separate-threads=yes --dump-before=nvshmem_bench_mark";
        let out = format!("--callgrind-out-file={}", self.out.display());
        words.split_whitespace().map(OsString::from).chain([out.into()]).collect()
    }

    /// Returns the instructions of an operation in some objects, by their paths. `at` is its number
    /// among those counted, `lengths` are the operations of its two sections.
    pub(crate) fn cost(
        &self,
        at: usize,
        lengths: [u64; 2],
        object: fn(&str) -> bool,
    ) -> Result<f64, BoxError> {
        let section = |section: usize| -> Result<f64, BoxError> {
            // The first mark ends what came before the first section; between two sections lies a
            // dump of its own. Names of dumps end with the number of the thread.
            let name = format!("{}.{}-", self.out.display(), 2 * section + 2);
            let dir = self.out.parent().unwrap_or(Path::new("."));
            let files = fs::read_dir(dir)?.filter_map(|entry| Some(entry.ok()?.path()));
            let is_named = |path: &PathBuf| path.to_string_lossy().starts_with(&name);
            let path = files.into_iter().find(is_named);
            let path = path.ok_or_else(|| format!("there is no {name}*"))?;
            let cost = instructions(&fs::read_to_string(&path)?, object);
            Ok(cost.map_err(|error| format!("{}: {error}", path.display()))? as f64)
        };
        let more = section(2 * at + 1)? - section(2 * at)?;
        let cost = more / (lengths[1] - lengths[0]) as f64;
        if cost > 0.0 { Ok(cost) } else { Err(format!("{at}: no instructions were seen").into()) }
    }
}

/// Returns the instructions of some objects in a dump, without those of what they call and of this
/// program's functions. The format is in valgrind's manual. The sum of what was read is compared
/// with the file's own total, so that a misread file is an error and not a wrong figure.
fn instructions(text: &str, object: fn(&str) -> bool) -> Result<u64, String> {
    let (mut counts, mut is_own, mut is_call) = (false, false, false);
    let (mut found, mut sum, mut total) = (0, 0, None);
    for line in text.lines() {
        let wrong = || format!("not understood: {line}");
        if line.starts_with(|first: char| first.is_ascii_digit()) {
            // A line and a cost; no cost is zero. Behind "calls=" it is the called function's.
            let cost = line.split_whitespace().nth(1).unwrap_or("0");
            let cost: u64 = cost.parse().map_err(|_| wrong())?;
            if !std::mem::take(&mut is_call) {
                sum += cost;
                found += if counts && !is_own { cost } else { 0 };
            }
        } else if let Some(name) = line.strip_prefix("fn=") {
            is_own = name.starts_with("nvshmem_bench");
        } else if let Some(name) = line.strip_prefix("ob=") {
            counts = object(name);
        } else if line.starts_with("calls=") {
            is_call = true;
        } else if let Some(number) = line.strip_prefix("totals: ") {
            total = Some(number.parse::<u64>().map_err(|_| wrong())?);
        } else if line.strip_prefix("events: ").is_some_and(|events| events != "Ir") {
            return Err(wrong());
        }
    }
    match total {
        Some(total) if total == sum => Ok(found),
        _ => Err(format!("the costs add up to {sum}, not to {total:?}")),
    }
}

fn is_plugin(object: &str) -> bool {
    object.contains("nvshmem_transport_libfabric")
}

pub(crate) fn measure(options: &Options, report: &mut Report) -> Result<(), BoxError> {
    let case = |op| Case { op, bytes: 8, window: 64, sides: vec![Side::Plugin] };
    let cases = [Op::Put, Op::PutSignal, Op::Quiet, Op::Progress].map(case);
    for chunks in 1..=1 + u64::from(options.cuda_driver.is_some()) {
        let end = if chunks == 2 { "_cuda" } else { "" };
        let dir = PrivateDir::new("nvshmem-bench")?;
        let dir = options.keep.as_deref().unwrap_or(dir.path());
        let (cases, schedule) = (cases.to_vec(), None);
        let plan = Plan { cases, schedule, raw: None, chunks, is_controlled: true };
        let mut job = options.job(&plan, PROVIDER, 1)?;
        let mut counted = Vec::new();
        for pe in 0..2 {
            let callgrind = Callgrind::new(dir, &format!("pe-{pe}{end}"))?;
            job.prefix_of_pe.insert(pe, callgrind.prefix());
            counted.push(callgrind);
        }
        run(job, 3 * ALLOWANCE)?;
        for (pe, at, name) in [
            (0, 0, "put"),
            (0, 1, "put_signal_sender"),
            (1, 1, "put_signal_receiver"),
            (0, 2, "quiet_empty"),
            (0, 3, "progress_idle"),
        ] {
            let ours = counted[pe].cost(at, SECTIONS, is_plugin)?;
            report.push(format!("{name}_instructions{end}"), ours, "instructions");
        }
    }
    Ok(())
}
