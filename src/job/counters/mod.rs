//! Counters of the lanes: told at the end, to the log and to a file if the user has named one, and
//! while the job runs on a page or at a signal, where that is asked for.

mod exit;
pub mod fields;
pub mod page;
mod publisher;
mod signal;
mod snapshot;
mod whole_file;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use self::publisher::Publisher;
pub use self::snapshot::FORMAT;
use self::snapshot::Snapshot;
use super::connected::Connected;
use crate::settings::Settings;

/// What is told of a job's counters.
#[derive(Debug, Default)]
pub(super) struct Counters {
    are_told: AtomicBool,
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
        if let Some(publisher) = Publisher::new(settings, &connected.report.provider, first) {
            // A job connects once.
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
        if let Some(pattern) = &settings.counters {
            snapshot.write_file(pattern, &connected.report.provider);
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
