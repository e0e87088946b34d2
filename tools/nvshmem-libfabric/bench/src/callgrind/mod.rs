//! Instructions of a thread between marks, counted by valgrind's callgrind.
//!
//! Callgrind writes a dump of the thread that enters the function [`nvshmem_bench_mark`], and
//! starts again from zero for it. What other threads do meanwhile, such as a look at the process
//! once a second, is of no operation and not in it.
//!
//! A section lies between two marks: so many operations of one kind. Each kind has two sections of
//! different length, and their difference over the difference in operations is free of what begins
//! and ends a section.

mod profile;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::{fs, io};

use nvshmem_sim::BoxError;

use profile::Profile;

/// Name of the function that ends one dump and begins the next.
const MARK: &str = "nvshmem_bench_mark";

/// Ends one of callgrind's dumps and begins the next.
// SAFETY: no other function of this program or its libraries has this name.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn nvshmem_bench_mark() {
    // Two functions of the same code could become one.
    std::hint::black_box(MARK);
}

/// What the thread of a process that marks executes between its marks.
pub(crate) struct Callgrind {
    out: PathBuf,
}

impl Callgrind {
    /// For a process whose dumps go to the directory, under that name.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub(crate) fn new(dir: &Path, name: &str) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        Ok(Self { out: dir.join(format!("callgrind.{name}.out")) })
    }

    /// What to put in front of the process's command.
    pub(crate) fn prefix(&self) -> Vec<OsString> {
        let mut prefix: Vec<OsString> =
            ["valgrind", "--quiet", "--tool=callgrind"].map(OsString::from).into();
        prefix.extend(["--compress-strings=no", "--compress-pos=no"].map(OsString::from));
        prefix.push("--separate-threads=yes".into());
        prefix.push(format!("--dump-before={MARK}").into());
        prefix.push(format!("--callgrind-out-file={}", self.out.display()).into());
        prefix
    }

    /// The file of a dump, whose name ends with the number that valgrind gave the thread.
    fn dump(&self, number: usize) -> Result<PathBuf, BoxError> {
        let missing = || format!("{}: dump {number} is missing", self.out.display());
        let (Some(dir), Some(out)) = (self.out.parent(), self.out.file_name()) else {
            return Err(missing().into());
        };
        let start = format!("{}.{number}-", out.to_string_lossy());
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(&start) {
                return Ok(entry.path());
            }
        }
        Err(missing().into())
    }

    /// What is in a section.
    fn profile(&self, section: usize) -> Result<Profile, BoxError> {
        // The first mark ends what came before the first section; between two sections lies a dump
        // of its own.
        let path = self.dump(2 * section + 2)?;
        let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        if !text.contains(MARK) {
            return Err(format!("{}: the dump was not caused by a mark", path.display()).into());
        }
        Profile::parse(&text).map_err(|e| format!("{}: {e}", path.display()).into())
    }

    /// What an operation costs, from two sections of it, a short one and the long one behind it,
    /// with so many operations each.
    ///
    /// # Errors
    /// Files that are missing or not understood.
    pub(crate) fn cost(
        &self,
        short: usize,
        lengths: [u64; 2],
        ours: Ours,
    ) -> Result<Cost, BoxError> {
        let cost = difference(&self.profile(short)?, &self.profile(short + 1)?, lengths, ours);
        if cost.ours <= 0.0 {
            return Err(format!("section {short}: no instructions of ours were seen").into());
        }
        Ok(cost)
    }
}

/// Which executables and libraries are counted as ours, by their paths.
pub(crate) type Ours = fn(&str) -> bool;

/// The installed plugin.
pub(crate) fn is_plugin(object: &str) -> bool {
    object.contains("nvshmem_transport_libfabric")
}

fn is_libfabric(object: &str) -> bool {
    !is_plugin(object) && object.contains("libfabric")
}

/// Instructions per operation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cost {
    /// In what is ours.
    pub(crate) ours: f64,
    /// In libfabric, below our calls or not.
    pub(crate) libfabric: f64,
    /// Ours, by function, most first.
    pub(crate) by_function: Vec<(String, f64)>,
}

/// What a longer section has more than a shorter one, per operation.
fn difference(short: &Profile, long: &Profile, lengths: [u64; 2], ours: Ours) -> Cost {
    let ops = (lengths[1] - lengths[0]) as f64;
    let by_function = |object: Ours| {
        let less = short.by_function(object);
        let cost = |(name, more): (&str, u64)| {
            let less = less.get(name).copied().unwrap_or_default();
            (name.to_owned(), (more as f64 - less as f64) / ops)
        };
        let mut list: Vec<(String, f64)> = long.by_function(object).into_iter().map(cost).collect();
        list.sort_by(|a, b| b.1.total_cmp(&a.1));
        list
    };
    let total = |costs: &[(String, f64)]| costs.iter().map(|(_, cost)| cost).sum();
    let (by_function, libfabric) = (by_function(ours), by_function(is_libfabric));
    Cost { ours: total(&by_function), libfabric: total(&libfabric), by_function }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(own: u64, fabric: u64) -> Profile {
        let text = format!(
            "positions: line\nevents: Ir\nob=/p/nvshmem_transport_libfabric.so.7\nfn=start\n\
             5 {own}\ncalls=1 0\n6 {fabric}\nob=/l/libfabric.so.1\nfn=write\n1 {fabric}\n\
             totals: {}\n",
            own + fabric
        );
        Profile::parse(&text).unwrap()
    }

    #[test]
    fn what_begins_and_ends_a_section_cancels() {
        let (short, long) = (profile(50 + 1000, 300), profile(50 + 11000, 3300));
        let cost = difference(&short, &long, [10, 110], is_plugin);
        assert_eq!((cost.ours, cost.libfabric), (100.0, 30.0));
        assert_eq!(cost.by_function, [("start".to_owned(), 100.0)]);
    }

    #[test]
    fn the_plugin_is_not_libfabric_although_its_name_says_so() {
        assert!(is_plugin("/a/nvshmem_transport_libfabric.so.7"));
        assert!(!is_libfabric("/a/nvshmem_transport_libfabric.so.7"));
        assert!(is_libfabric("/usr/lib/x86_64-linux-gnu/libfabric.so.1.19.0"));
    }
}
