//! Makes instructions per operation of what callgrind has written.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;

use nvshmem_sim::{BoxError, JobSettings};

use crate::callgrind::{Place, Profile};
use crate::count::{self, Kind, MARK};
use crate::launch::{self, ALLOWANCE, WorkDir};
use crate::options::Options;
use crate::provider::Provider;

/// The provider under which instructions are counted. Our code is the same for all. Not shm: its
/// 1.17 leaves some of a window of puts undelivered until their sender polls, so that there is no
/// moment at which all completions are known to be there.
pub(crate) const COUNTED: Provider = Provider::Rxm;

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

/// What one process has executed between the marks of a job.
pub(crate) struct Sections {
    out: PathBuf,
}

impl Sections {
    /// Has a PE of a job run under callgrind, which writes its files where the options or else the
    /// directory say, under that name.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub(crate) fn of(
        job: &mut JobSettings,
        pe: u32,
        name: &str,
        dir: &WorkDir,
        options: &Options,
    ) -> Result<Self, BoxError> {
        let files = options.keep.as_deref().unwrap_or(dir.path());
        fs::create_dir_all(files)?;
        let out = files.join(format!("callgrind.{name}.out"));
        let mut prefix: Vec<OsString> =
            ["valgrind", "--quiet", "--tool=callgrind"].map(OsString::from).into();
        prefix.push(format!("--dump-before={MARK}").into());
        prefix.push(format!("--callgrind-out-file={}", out.display()).into());
        job.prefix_of_pe.insert(pe, prefix);
        Ok(Self { out })
    }

    /// What is in a section, the first of which begins at the first mark.
    fn profile(&self, section: usize) -> Result<Profile, BoxError> {
        // The first mark ends what came before the first section, so part 2 is section 0.
        let path = PathBuf::from(format!("{}.{}", self.out.display(), section + 2));
        let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        if !text.contains(MARK) {
            return Err(format!("{}: the dump was not caused by a mark", path.display()).into());
        }
        Profile::parse(&text).map_err(|e| format!("{}: {e}", path.display()).into())
    }

    /// What an operation costs, from two sections of it, a short one and a long one, with so many
    /// operations each.
    ///
    /// # Errors
    /// Files that are missing or not understood.
    pub(crate) fn counted(
        &self,
        sections: [usize; 2],
        lengths: [u64; 2],
    ) -> Result<Counted, BoxError> {
        let (short, long) = (self.profile(sections[0])?, self.profile(sections[1])?);
        let counted = difference(&short, &long, lengths);
        if counted.ours <= 0.0 {
            return Err(
                format!("sections {sections:?}: no instructions of the plugin were seen").into()
            );
        }
        Ok(counted)
    }
}

/// Instructions per operation with so many rails, in the order of [`Kind::ALL`].
///
/// # Errors
/// No valgrind, a job that failed, files that are not understood.
pub(crate) fn count(rails: usize, options: &Options) -> Result<Vec<(Kind, Counted)>, BoxError> {
    let dir = WorkDir::create()?;
    let mut job = COUNTED.job(count::SCENARIO, options, 2, rails);
    let sections = Sections::of(&mut job, 0, &format!("{rails}-rails"), &dir, options)?;
    launch::run(job, &dir.control()?, ALLOWANCE)?;
    Kind::ALL
        .into_iter()
        .enumerate()
        .map(|(at, kind)| {
            let counted = sections.counted([2 * at, 2 * at + 1], kind.lengths());
            counted.map(|counted| (kind, counted)).map_err(|e| format!("{kind:?}: {e}").into())
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
