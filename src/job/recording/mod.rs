//! A recording: the newest calls of NVSHMEM on a transport, and when they were seen to end, in a file that
//! `nvshmem-libfabric trace` reads.
//!
//! Where a setting asks for it, NVSHMEM is given functions that record and call the others; where none does, nothing is there
//! that could cost anything. No data is recorded: addresses and lengths are.
//!
//! Any thread records, and none waits for another: a record's number is drawn from a counter, and with it a place in a
//! ring that has room for the newest. Two threads meet in a place only if one comes round the whole ring while the
//! other writes 64 bytes; the number in the record tells who came last.

mod file;
pub mod format;

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use log::{info, warn};

use self::file::{MappedFile, now};
use self::format::{
    AHEAD, Caller, FORMAT, HEADER_WORDS, Kind, MAGIC, MOST_REGIONS, OPEN, RECORD_WORDS,
    REGION_WORDS, Record, Region, at, done, file_bytes, mark, who,
};
use crate::logging;
use crate::settings::Settings;
use engine::ids::Pe;
use engine::rails::counters::UnderWay;

/// What writes a recording.
#[derive(Debug)]
pub(crate) struct Recorder {
    /// None once it is closed.
    file: Option<MappedFile>,
    capacity: u64,
    /// Peers with whom the proxy thread has had something to do that was not seen to end. It alone locks it.
    open: Mutex<Vec<Open>>,
}

/// What was begun with a peer and not seen to end.
#[derive(Debug)]
struct Open {
    pe: Pe,
    what: u8,
}

/// A record whose call has not returned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun {
    number: u64,
    time: u64,
    pe: u32,
}

impl Recorder {
    /// One for a job that is connected, if its settings ask for it. That it cannot be had is a warning.
    pub(crate) fn of(settings: &Settings, me: Pe, n_pes: u32, provider: &str) -> Option<Self> {
        let path = settings.trace.as_ref()?.replace("%p", &me.0.to_string());
        match Self::create(Path::new(&path), settings.trace_records, me, n_pes, provider) {
            Ok(recorder) => {
                info!(target: logging::TRANSPORT, "calls are recorded in {path}");
                Some(recorder)
            }
            Err(error) => {
                warn!(
                    target: logging::TRANSPORT,
                    "NVSHMEM_LIBFABRIC_TRACE: {path} cannot be made, and nothing is recorded: {error}"
                );
                None
            }
        }
    }

    fn create(
        path: &Path,
        records: u32,
        me: Pe,
        n_pes: u32,
        provider: &str,
    ) -> std::io::Result<Self> {
        let capacity = u64::from(records);
        let file = MappedFile::create(path, file_bytes(MOST_REGIONS, capacity))?;
        let words = file.words();
        let set = |at: usize, word: u64| words[at].store(word.to_le(), Ordering::Relaxed);
        set(at::FORMAT, u64::from(FORMAT) | (RECORD_WORDS as u64 * 8) << 32);
        set(at::PE, u64::from(me.0) | u64::from(n_pes) << 32);
        set(at::PROCESS, u64::from(std::process::id()) | u64::from(MOST_REGIONS) << 32);
        set(at::CAPACITY, capacity);
        set(at::BEGAN, now(libc::CLOCK_MONOTONIC));
        set(at::BEGAN_REAL, now(libc::CLOCK_REALTIME));
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let (boot, program) = (read("/proc/sys/kernel/random/boot_id"), read("/proc/self/comm"));
        let texts = [boot.trim(), env!("CARGO_PKG_VERSION"), provider, program.trim()];
        for ((first, room), text) in at::TEXTS.into_iter().zip(texts) {
            for (at, bytes) in text.as_bytes().chunks(8).take(room).enumerate() {
                let mut word = [0; 8];
                word[..bytes.len()].copy_from_slice(bytes);
                set(first + at, u64::from_le_bytes(word));
            }
        }
        // The last: a file without it is none.
        words[at::MAGIC].store(u64::from_ne_bytes(MAGIC), Ordering::Release);
        Ok(Self { file: Some(file), capacity, open: Mutex::default() })
    }

    fn words(&self) -> &[AtomicU64] {
        self.file.as_ref().map_or(&[], MappedFile::words)
    }

    /// The next number of something that the header counts.
    fn draw(&self, at: usize) -> u64 {
        // The counters of the file are little endian, as everything in it is on the processors that NVSHMEM runs on.
        const _: () = assert!(cfg!(target_endian = "little"));
        self.words().get(at).map_or(0, |counter| counter.fetch_add(1, Ordering::Relaxed))
    }

    fn place(&self, number: u64) -> &[AtomicU64] {
        let first = HEADER_WORDS + MOST_REGIONS as usize * REGION_WORDS;
        let first = first + (number % self.capacity) as usize * RECORD_WORDS;
        self.words().get(first..first + RECORD_WORDS).unwrap_or_default()
    }

    /// Memory was registered.
    pub(crate) fn registered(&self, base: u64, len: u64, local_only: bool) {
        let number = self.draw(at::REGIONS);
        if number >= MOST_REGIONS.into() {
            return;
        }
        let region = Region { base, len, time: now(libc::CLOCK_MONOTONIC), local_only };
        let first = HEADER_WORDS + number as usize * REGION_WORDS;
        if let Some(place) = self.words().get(first..first + REGION_WORDS) {
            place.iter().zip(region.encode()).for_each(|(at, word)| {
                at.store(word, Ordering::Relaxed);
            });
        }
    }

    /// A call begins. It is in the file before it does anything.
    pub(crate) fn begin(&self, record: Record) -> Begun {
        let time = now(libc::CLOCK_MONOTONIC);
        let number = self.write(Record { time, ..record });
        if record.caller == Caller::Proxy {
            self.opens(&record);
        }
        Begun { number, time, pe: record.pe }
    }

    fn write(&self, record: Record) -> u64 {
        let number = self.draw(at::RECORDS);
        let place = self.place(number);
        // What is there no longer counts before it changes, and what comes counts when it is all there.
        if let Some(last) = place.last() {
            last.store(0, Ordering::Release);
        }
        for (at, word) in place.iter().zip(record.encode(number)) {
            at.store(word, Ordering::Release);
        }
        number
    }

    /// It has returned. `ahead` is [`Record::ahead`].
    pub(crate) fn end(&self, begun: Begun, status: i32, ahead: bool) {
        let place = self.place(begun.number);
        let [_, took, .., word, last] = place else { return };
        // Newer ones have come round.
        if last.load(Ordering::Acquire) & 0xffff_ffff != mark(begun.number) {
            return;
        }
        word.store(who(begun.pe, status), Ordering::Relaxed);
        if ahead {
            last.fetch_or(AHEAD, Ordering::Relaxed);
        }
        let since = now(libc::CLOCK_MONOTONIC).wrapping_sub(begun.time);
        took.store(since.min(OPEN - 1), Ordering::Release);
    }

    /// Something that was seen, and is no call.
    pub(crate) fn saw(&self, record: Record) {
        self.write(Record { time: now(libc::CLOCK_MONOTONIC), took: Some(0), ..record });
    }

    /// A call of the proxy thread is to end some time.
    fn opens(&self, record: &Record) {
        let what = match record.kind {
            Kind::Put | Kind::P | Kind::Part => done::PUTS,
            Kind::PutSignal => done::PUTS | done::WORDS,
            Kind::Amo => done::WORDS,
            Kind::Get | Kind::G => done::GETS,
            Kind::Fence | Kind::Quiet | Kind::Done | Kind::Progress => return,
        };
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        match open.iter_mut().find(|open| open.pe.0 == record.pe) {
            Some(open) => open.what |= what,
            None => open.push(Open { pe: Pe(record.pe), what }),
        }
    }

    /// The proxy thread looks at what has ended.
    pub(crate) fn look(&self, under_way: impl Fn(Pe) -> UnderWay) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain_mut(|open| {
            let UnderWay { puts, words, gets, .. } = under_way(open.pe);
            let bit = |any: bool, bit: u8| if any { bit } else { 0 };
            let left = bit(puts, done::PUTS) | bit(words, done::WORDS) | bit(gets, done::GETS);
            let op = open.what & !left;
            if op != 0 {
                self.saw(Record { op, ..Record::new(Kind::Done, Caller::Proxy, open.pe.0) });
            }
            open.what &= left;
            open.what != 0
        });
    }
}

impl Drop for Recorder {
    /// The transport ends: the file is as long as what is in it.
    fn drop(&mut self) {
        let Some(file) = self.file.take() else { return };
        let words = file.words();
        words[at::ENDED].store(now(libc::CLOCK_MONOTONIC), Ordering::Relaxed);
        let kept = words[at::RECORDS].load(Ordering::Relaxed).min(self.capacity);
        if let Err(error) = file.close(file_bytes(MOST_REGIONS, kept)) {
            warn!(target: logging::TRANSPORT, "the recording stays as long as it was: {error}");
        }
    }
}

#[cfg(test)]
mod tests;
