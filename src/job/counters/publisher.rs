//! The publisher of a running job's counters: a thread that asks the proxy thread for them, and
//! writes.
//!
//! The proxy thread copies numbers, when it is asked, and has nothing to do with files.

use std::cmp::Reverse;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use log::{debug, info, warn};
use serde_json::{Value, json};

use super::page::{self, Page};
use super::signal;
use super::snapshot::{LaneCounters, Snapshot};
use crate::job::asked::Question;
use crate::logging;
use crate::settings::{CountersPage, CountersSignal, Settings};
use engine::rails::counters::PeerCounters;
use ofi::{fork, posix_signals};

/// How often counters are asked for, and the page written.
const INTERVAL: Duration = Duration::from_millis(500);

/// Most peers of a lane on a page: those that it has had most to do with. Less than half of
/// [`page::MOST_BYTES`] for each lane, with 32 rails.
const MOST_PEERS: usize = 512;

/// Publishes until it is ended, or dropped.
#[derive(Debug)]
pub(super) struct Publisher {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    question: Question,
    state: Mutex<State>,
    over: Condvar,
}

#[derive(Debug)]
struct State {
    latest: Snapshot,
    /// When that was.
    taken: Instant,
    /// None when it has ended, or there is none.
    page: Option<Page>,
    is_over: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Each change of it is one assignment.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Publisher {
    /// None where nothing is to be published. What cannot be is a warning. `file` is the job's.
    pub(super) fn new(
        settings: &Settings,
        file: Option<PathBuf>,
        provider: &str,
        first: Snapshot,
    ) -> Option<Self> {
        let page = page_of(&settings.counters_page);
        let file = at_signal(settings, file);
        if page.is_none() && file.is_none() {
            return None;
        }
        let state = State { latest: first, taken: Instant::now(), page, is_over: false };
        let (question, over) = (Question::new(), Condvar::new());
        let shared = Arc::new(Shared { question, state: Mutex::new(state), over });
        let writer = Writer {
            shared: Arc::clone(&shared),
            provider: String::from(provider),
            program: program(),
            file,
            signals: signal::came(),
            warned: false,
        };
        let thread = posix_signals::spawn("nvshmem-counters", move || writer.run());
        if let Err(error) = &thread {
            debug!(target: logging::TRANSPORT, "nobody publishes counters: {error}");
        }
        Some(Self { shared, thread: thread.ok() })
    }

    /// Has the proxy thread answer, if it was asked. It waits for nothing. `taken` gets the
    /// counters, from those of before.
    pub(super) fn answer(&self, taken: impl FnOnce(&Snapshot) -> Snapshot) {
        if !self.shared.question.is_open() {
            return;
        }
        let mut state = match self.shared.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // The page is being written: in one of the next iterations.
            Err(TryLockError::WouldBlock) => return,
        };
        self.shared.question.end();
        let latest = taken(&state.latest);
        (state.latest, state.taken) = (latest, Instant::now());
    }

    /// Nothing is published any more, and the page is gone.
    pub(super) fn end(&self) {
        let mut state = self.shared.state();
        state.is_over = true;
        if let Some(page) = state.page.take() {
            page.remove();
        }
        drop(state);
        self.shared.question.end();
        self.shared.over.notify_all();
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        let thread = self.thread.take();
        if fork::is_child() {
            // Page and thread are its parent's.
            return std::mem::forget((thread, Arc::clone(&self.shared)));
        }
        self.end();
        if let Some(thread) = thread {
            // It waits for nothing else.
            let _ = thread.join();
        }
    }
}

fn page_of(setting: &CountersPage) -> Option<Page> {
    let default;
    let directory: &Path = match setting {
        CountersPage::None => return None,
        CountersPage::Auto => {
            default = page::default_directory();
            &default
        }
        CountersPage::In(directory) => directory,
    };
    match Page::new(directory) {
        Ok(page) => {
            info!(target: logging::TRANSPORT, "counters are published in {}", directory.display());
            Some(page)
        }
        Err(error) => {
            let directory = directory.display();
            warn!(
                target: logging::TRANSPORT,
                "NVSHMEM_LIBFABRIC_COUNTERS_PAGE: no counters are published in {directory}: {error}"
            );
            None
        }
    }
}

/// The file, if it is written at a signal.
fn at_signal(settings: &Settings, file: Option<PathBuf>) -> Option<PathBuf> {
    if settings.counters_signal == CountersSignal::None {
        return None;
    }
    let Some(file) = file else {
        warn!(
            target: logging::TRANSPORT,
            "NVSHMEM_LIBFABRIC_COUNTERS_SIGNAL has no effect: NVSHMEM_LIBFABRIC_COUNTERS names no file"
        );
        return None;
    };
    match signal::listen(settings.counters_signal) {
        Ok(()) => Some(file),
        Err(error) => {
            warn!(
                target: logging::TRANSPORT,
                "NVSHMEM_LIBFABRIC_COUNTERS_SIGNAL={} is not listened to: {error}",
                settings.counters_signal
            );
            None
        }
    }
}

/// The name of this process, as the kernel has it.
fn program() -> String {
    let name = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    String::from(name.trim_end())
}

/// What the thread does.
struct Writer {
    shared: Arc<Shared>,
    provider: String,
    program: String,
    file: Option<PathBuf>,
    /// Signals that have been heard of.
    signals: u32,
    warned: bool,
}

impl Writer {
    fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let mut is_wanted = false;
        loop {
            let mut state = shared.state();
            if state.is_over {
                return;
            }
            if let Some(page) = &state.page {
                let written = page.write(&self.text(&state).to_string());
                if let (Err(error), false) = (written, self.warned) {
                    self.warned = true;
                    warn!(target: logging::TRANSPORT, "the page of counters cannot be written: {error}");
                }
            }
            // Counters that were asked for after the signal have come by now.
            if let (true, Some(file)) = (std::mem::take(&mut is_wanted), &self.file) {
                state.latest.write_file(file, &self.provider);
            }
            let signals = signal::came();
            is_wanted |= std::mem::replace(&mut self.signals, signals) != signals;
            shared.question.ask();
            state = match shared.over.wait_timeout_while(state, INTERVAL, |state| !state.is_over) {
                Ok((state, _)) => state,
                Err(poisoned) => poisoned.into_inner().0,
            };
            drop(state);
        }
    }

    fn text(&self, state: &State) -> Value {
        let State { latest, taken, .. } = state;
        let (proxy, left_of_proxy) = busiest(&latest.proxy);
        let (host, left_of_host) = busiest(&latest.host);
        let mut page = Snapshot { proxy, host }.to_json(&self.provider);
        page["version"] = env!("CARGO_PKG_VERSION").into();
        page["pid"] = std::process::id().into();
        page["program"] = self.program.as_str().into();
        page["written_ms"] = milliseconds(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH));
        // How long the proxy thread has not answered.
        page["age_ms"] = json!(taken.elapsed().as_millis() as u64);
        page["interval_ms"] = json!(INTERVAL.as_millis() as u64);
        for (lane, left_out) in [left_of_proxy, left_of_host].into_iter().enumerate() {
            page["lanes"][lane]["peers_left_out"] = left_out.into();
        }
        page
    }
}

fn milliseconds<E>(time: Result<Duration, E>) -> Value {
    json!(time.map_or(0, |time| time.as_millis() as u64))
}

/// A lane with those of its peers that it has had most to do with, and how many that leaves out.
fn busiest(lane: &LaneCounters) -> (LaneCounters, usize) {
    let mut lane = lane.clone();
    let left_out = lane.peers.len().saturating_sub(MOST_PEERS);
    if left_out > 0 {
        let traffic = |peer: &PeerCounters| -> u64 {
            [peer.writes, peer.reads, peer.sent, peer.received].map(u64::from).iter().sum()
        };
        lane.peers.sort_by_key(|peer| Reverse(traffic(peer)));
        lane.peers.truncate(MOST_PEERS);
        lane.peers.sort_unstable_by_key(|peer| peer.pe);
    }
    (lane, left_out)
}

#[cfg(test)]
mod tests;
