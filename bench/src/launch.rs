//! Starts the jobs and makes figures of what they report.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use nvshmem_sim::{BoxError, JobReport, JobSettings};

use crate::area::AREA_BYTES;
use crate::callgrind::{Place, Profile};
use crate::case::Case;
use crate::compare::{self, Rounds};
use crate::control::CONTROL_BYTES;
use crate::count::{self, Kind, MARK};
use crate::options::Options;
use crate::provider::Provider;

/// The provider under which instructions are counted. Our code is the same for all. Not shm: its
/// 1.17 leaves some of a window of puts undelivered until their sender polls, so that there is no
/// moment at which all completions are known to be there.
const COUNTED: Provider = Provider::Rxm;

/// What a job may take beyond its rounds.
const ALLOWANCE: Duration = Duration::from_secs(180);

/// A round with what surrounds it, generously: 16 MiB windows at a tenth of what sockets do.
const PER_PAIR: Duration = Duration::from_secs(1);

/// A directory of our own, removed at the end.
struct WorkDir(PathBuf);

impl WorkDir {
    fn create() -> io::Result<Self> {
        let name = format!("nvshmem-bench-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path)?;
        Ok(Self(path))
    }

    /// A page for [`crate::control::Control`], all zero.
    fn control(&self) -> io::Result<PathBuf> {
        let path = self.0.join("control");
        fs::write(&path, vec![0; CONTROL_BYTES as usize])?;
        Ok(path)
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        // What stays is only untidy.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn run(job: JobSettings, control: &Path, allowed: Duration) -> Result<JobReport, BoxError> {
    let report = job
        .param("control", control.display())
        .deadline(allowed)
        .step_deadline(allowed)
        .run()?
        .check()?;
    Ok(report)
}

/// What the jobs of one provider have measured.
pub(crate) struct Compared {
    /// What raw libfabric has opened.
    pub(crate) opened: String,
    /// The rounds of each case, job by job.
    pub(crate) cases: Vec<(Case, Vec<Rounds>)>,
}

/// The plugin beside raw libfabric on one provider.
///
/// # Errors
/// Wrong bytes, errors of either side, a job that did not end.
pub(crate) fn compare(provider: Provider, options: &Options) -> Result<Compared, BoxError> {
    let mut cases: Vec<(Case, Vec<Rounds>)> = Case::all().map(|case| (case, Vec::new())).collect();
    let mut opened = String::new();
    for _ in 0..options.jobs {
        opened = compare_once(provider, options, &mut cases)?;
    }
    Ok(Compared { opened, cases })
}

fn compare_once(
    provider: Provider,
    options: &Options,
    cases: &mut [(Case, Vec<Rounds>)],
) -> Result<String, BoxError> {
    let dir = WorkDir::create()?;
    // One chunk, so that no operation is cut.
    let heap = (2 * AREA_BYTES).next_power_of_two();
    let job = provider
        .job(compare::SCENARIO, options, 1)
        .heap(heap, heap)
        .param("provider", provider.full_name())
        .param("library", provider.library(options))
        .param("source", provider.source().unwrap_or_default())
        .param("pairs", options.pairs);
    let allowed = ALLOWANCE + PER_PAIR * options.pairs * Case::all().count() as u32;
    let report = run(job, &dir.control()?, allowed)?;
    let first = &report.pes[0];
    for (case, jobs) in cases {
        let rounds = first.value(&case.to_string()).and_then(Rounds::decode);
        jobs.push(rounds.ok_or_else(|| format!("no figures for {case}"))?);
    }
    Ok(first.value("raw").unwrap_or_default().to_owned())
}

/// Instructions per operation of one kind.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counted {
    /// In the plugin.
    pub(crate) ours: f64,
    /// In libfabric, below our calls or not.
    pub(crate) libfabric: f64,
    /// The plugin's, by function, most first.
    pub(crate) by_function: Vec<(String, f64)>,
    /// The plugin's, by source file, inlined code included.
    pub(crate) by_file: Vec<(String, f64)>,
    /// The plugin's, by source line.
    pub(crate) by_line: Vec<(String, f64)>,
    /// Calls from the plugin into other libraries, by function.
    pub(crate) calls: Vec<(String, f64)>,
}

/// Instructions per operation with so many rails, in the order of [`Kind::ALL`].
///
/// # Errors
/// No valgrind, a job that failed, files that are not understood.
pub(crate) fn count(rails: usize, options: &Options) -> Result<Vec<(Kind, Counted)>, BoxError> {
    let dir = WorkDir::create()?;
    let files = options.keep.as_ref().unwrap_or(&dir.0);
    fs::create_dir_all(files)?;
    let out = files.join(format!("callgrind.{rails}-rails.out"));
    let mut job = COUNTED.job(count::SCENARIO, options, rails);
    let mut prefix: Vec<OsString> =
        ["valgrind", "--quiet", "--tool=callgrind"].map(OsString::from).into();
    prefix.push(format!("--dump-before={MARK}").into());
    prefix.push(format!("--callgrind-out-file={}", out.display()).into());
    job.prefix_of_pe.insert(0, prefix);
    run(job, &dir.control()?, ALLOWANCE)?;

    // The first mark ends what came before the first section, so part 2 is section 0.
    let part = |section: usize| -> Result<Profile, BoxError> {
        let path = PathBuf::from(format!("{}.{}", out.display(), section + 2));
        let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        if !text.contains(MARK) {
            return Err(format!("{}: the dump was not caused by a mark", path.display()).into());
        }
        Profile::parse(&text).map_err(|e| format!("{}: {e}", path.display()).into())
    };
    Kind::ALL
        .into_iter()
        .enumerate()
        .map(|(at, kind)| {
            let (short, long) = (part(2 * at)?, part(2 * at + 1)?);
            let counted = difference(&short, &long, kind.lengths());
            if counted.ours <= 0.0 {
                return Err(format!("{kind:?}: no instructions of the plugin were seen").into());
            }
            Ok((kind, counted))
        })
        .collect()
}

fn is_plugin(object: &str) -> bool {
    object.contains("nvshmem_transport_libfabric")
}

fn is_libfabric(object: &str) -> bool {
    !is_plugin(object) && object.contains("libfabric")
}

/// What a longer section has more than a shorter one, per operation.
fn difference(short: &Profile, long: &Profile, lengths: [u64; 2]) -> Counted {
    let ops = (lengths[1] - lengths[0]) as f64;
    let per_op = |short: &BTreeMap<String, u64>, long: &BTreeMap<String, u64>| {
        let mut list: Vec<(String, f64)> = long
            .iter()
            .map(|(name, more)| {
                let less = short.get(name).copied().unwrap_or_default();
                (name.clone(), (*more as f64 - less as f64) / ops)
            })
            .filter(|(_, cost)| cost.abs() >= 0.005)
            .collect();
        list.sort_by(|a, b| b.1.total_cmp(&a.1));
        list
    };
    let by =
        |key: fn(&Place) -> String| per_op(&short.by(is_plugin, key), &long.by(is_plugin, key));
    let total = |profile: &Profile, object: fn(&str) -> bool| {
        profile.by(object, |_| ()).get(&()).copied().unwrap_or_default() as f64
    };
    let calls = |profile: &Profile| {
        let mut sums: BTreeMap<String, u64> = BTreeMap::new();
        let out =
            profile.calls.iter().filter(|(call, _)| is_plugin(&call.from) && !is_plugin(&call.to));
        for (call, count) in out {
            let library = call.to.rsplit('/').next().unwrap_or_default();
            *sums.entry(format!("{} ({library})", call.function)).or_default() += count;
        }
        sums
    };
    Counted {
        ours: (total(long, is_plugin) - total(short, is_plugin)) / ops,
        libfabric: (total(long, is_libfabric) - total(short, is_libfabric)) / ops,
        by_function: by(|place| place.function.to_string()),
        by_file: by(|place| short_path(&place.file).to_owned()),
        by_line: by(|place| format!("{}:{}", short_path(&place.file), place.line)),
        calls: per_op(&calls(short), &calls(long)),
    }
}

/// The path from the crate's or the standard library's sources on.
fn short_path(path: &str) -> &str {
    ["/library/", "/src/"]
        .iter()
        .find_map(|root| path.find(root).map(|at| &path[at + 1..]))
        .unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(own: u64, fabric: u64, calls: u64) -> Profile {
        let text = format!(
            "positions: line\nevents: Ir\nob=/p/nvshmem_transport_libfabric.so.7\n\
             fl=/home/x/src/engine/lane.rs\nfn=start\n5 {own}\ncob=/l/libfabric.so.1\n\
             cfn=write\ncalls={calls} 0\n6 {fabric}\nob=/l/libfabric.so.1\nfl=w.c\nfn=write\n\
             1 {fabric}\ntotals: {}\n",
            own + fabric
        );
        Profile::parse(&text).unwrap()
    }

    #[test]
    fn what_begins_and_ends_a_section_cancels() {
        let counted =
            difference(&profile(50 + 1000, 300, 10), &profile(50 + 11000, 3300, 110), [10, 110]);
        assert_eq!((counted.ours, counted.libfabric), (100.0, 30.0));
        assert_eq!(counted.by_function, [("start".to_owned(), 100.0)]);
        assert_eq!(counted.by_line, [("src/engine/lane.rs:5".to_owned(), 100.0)]);
        assert_eq!(counted.calls, [("write (libfabric.so.1)".to_owned(), 1.0)]);
    }

    #[test]
    fn the_plugin_is_not_libfabric_although_its_name_says_so() {
        assert!(is_plugin("/a/nvshmem_transport_libfabric.so.7"));
        assert!(!is_libfabric("/a/nvshmem_transport_libfabric.so.7"));
        assert!(is_libfabric("/usr/lib/x86_64-linux-gnu/libfabric.so.1.19.0"));
    }
}
