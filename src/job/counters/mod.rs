//! Counters of the lanes: told at the end, to the log and to a file if the user has named one, and
//! while the job runs on a page or at a signal, where that is asked for.

mod exit;
pub mod fields;
pub mod page;
mod publisher;
mod signal;
mod snapshot;
mod whole_file;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use self::publisher::Publisher;
pub use self::snapshot::FORMAT;
use self::snapshot::Snapshot;
use super::connected::Connected;
use crate::settings::Settings;
use engine::ids::Pe;

/// What is told of a job's counters.
#[derive(Debug, Default)]
pub(super) struct Counters {
    are_told: AtomicBool,
    /// Of this job alone, if its settings ask for one.
    file: OnceLock<PathBuf>,
    /// While the job runs, if its settings ask for it.
    publisher: OnceLock<Publisher>,
}

impl Counters {
    /// Has the counters of a job that was just connected published, where its settings ask for it.
    ///
    /// # Safety
    /// As [`Connected::with_proxy`].
    pub(super) unsafe fn publish(&self, settings: &Settings, connected: &Connected) {
        if settings.counts_outside() {
            exit::wait_for_one();
        }
        // SAFETY: the caller's promise.
        let first = unsafe { Snapshot::of(connected) };
        // A job connects once.
        if let Some(pattern) = &settings.counters {
            let _ = self.file.set(file_of_job(pattern, first.pe()));
        }
        let (file, provider) = (self.file.get().cloned(), &connected.report.provider);
        if let Some(publisher) = Publisher::new(settings, file, provider, first) {
            let _ = self.publisher.set(publisher);
        }
    }

    /// Tells what the lanes have carried, once, and takes the page away.
    ///
    /// # Safety
    /// As [`Connected::with_proxy`].
    pub(super) unsafe fn tell(&self, settings: &Settings, connected: &Connected) {
        if self.are_told.swap(true, Ordering::Relaxed) {
            return;
        }
        if let Some(publisher) = self.publisher.get() {
            publisher.end();
        }
        // SAFETY: the caller's promise.
        let snapshot = unsafe { Snapshot::of(connected) };
        snapshot.log();
        if let Some(file) = self.file.get() {
            snapshot.write_file(file, &connected.report.provider);
        }
        if settings.counts_outside() {
            exit::one_is_told();
        }
    }

    /// Answers what the proxy thread is asked, if it is asked of this job.
    ///
    /// # Safety
    /// As [`Connected::with_proxy`].
    pub(super) unsafe fn answer(&self, settings: &Settings, connected: &Connected) {
        if exit::is_asked() {
            // SAFETY: the caller's promise.
            return unsafe { self.tell(settings, connected) };
        }
        if let Some(publisher) = self.publisher.get() {
            // SAFETY: the caller's promise.
            publisher.answer(|before| unsafe { before.next(connected) });
        }
    }
}

/// The file of another job of this process: later ones of a name have a number behind it, from 2
/// on. What is no file has all of them.
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
    fn each_job_of_a_process_has_a_file_of_its_own() {
        let of = |pe| file_of_job("/nowhere/jobs-%p.json", Pe(pe));
        let names = [of(7), of(8), of(7), of(7)];
        let expected = ["jobs-7.json", "jobs-8.json", "jobs-7.json.2", "jobs-7.json.3"];
        assert_eq!(names, expected.map(|name| Path::new("/nowhere").join(name)));
        let device = || file_of_job("/dev/null", Pe(0));
        assert_eq!([device(), device()], ["/dev/null"; 2].map(PathBuf::from));
    }
}
