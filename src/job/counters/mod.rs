//! Counters of the lanes, reported at the end of a job: in the log, and in a file if one is named.

pub(crate) mod exit;
mod snapshot;
mod whole_file;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use self::snapshot::Snapshot;
use super::connected::Connected;
use engine::ids::Pe;

#[derive(Debug, Default)]
pub(super) struct Counters {
    are_told: AtomicBool,
    /// Set when the job connects, if its settings name a file.
    file: OnceLock<PathBuf>,
}

impl Counters {
    pub(super) fn write_to(&self, pattern: &str, me: Pe) {
        if self.file.set(file_of_job(pattern, me)).is_ok() {
            exit::wait_for_one();
        }
    }

    /// Reports the lanes' counters, once.
    ///
    /// # Safety
    /// As [`Connected::with_proxy`].
    pub(super) unsafe fn tell(&self, connected: &Connected) {
        if self.are_told.swap(true, Ordering::Relaxed) {
            return;
        }
        // SAFETY: the caller's promise.
        let snapshot = unsafe { Snapshot::of(connected) };
        snapshot.log();
        if let Some(file) = self.file.get() {
            snapshot.write_file(file, &connected.report.provider);
            exit::one_is_written();
        }
    }
}

/// Returns the file for the next job of this process with this name: from the second on, a number
/// is appended. A path that is no regular file, such as `/dev/null`, serves all jobs.
fn file_of_job(pattern: &str, me: Pe) -> PathBuf {
    static JOBS: Mutex<BTreeMap<String, u32>> = Mutex::new(BTreeMap::new());
    let name = pattern.replace("%p", &me.0.to_string());
    if fs::metadata(Path::new(&name)).is_ok_and(|there| !there.is_file()) {
        return PathBuf::from(name);
    }
    let mut jobs = JOBS.lock().unwrap_or_else(PoisonError::into_inner);
    let jobs = jobs.entry(name.clone()).or_insert(0);
    *jobs += 1;
    PathBuf::from(if *jobs == 1 { name } else { format!("{name}.{jobs}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_job_has_own_file() {
        let of = |pe| file_of_job("/nowhere/jobs-%p.json", Pe(pe));
        let names = [of(7), of(8), of(7), of(7)];
        let expected = ["jobs-7.json", "jobs-8.json", "jobs-7.json.2", "jobs-7.json.3"];
        assert_eq!(names, expected.map(|name| Path::new("/nowhere").join(name)));
        let device = || file_of_job("/dev/null", Pe(0));
        assert_eq!([device(), device()], ["/dev/null"; 2].map(PathBuf::from));
    }
}
