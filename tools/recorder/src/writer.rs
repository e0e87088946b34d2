//! What writes a recording. No data is recorded: addresses and lengths are.
//!
//! Any thread records, and none waits for another: a record's number is drawn from a counter, and
//! with it a place in a ring that has room for the newest. Two threads meet in a place only if one
//! comes round the whole ring while the other writes 64 bytes; the number in the record tells who
//! came last.

use std::env;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use nvshmem_recording::{
    HEADER_WORDS, MOST_RECORDS, MOST_REGIONS, OPEN, RECORD_WORDS, REGION_WORDS, Record, Region, at,
    file_bytes, header, mark, who,
};

use crate::complain;
use crate::entries::is_child;
use crate::file::{MappedFile, now};

/// The file, with `%p` for the number of the PE.
const FILE: &str = "NVSHMEM_RECORDER_FILE";
/// How many of the newest records it keeps.
const RECORDS: &str = "NVSHMEM_RECORDER_RECORDS";

/// What writes a recording.
#[derive(Debug)]
pub(crate) struct Recorder {
    /// None once it is closed.
    file: Option<MappedFile>,
    capacity: u64,
}

/// A record whose call has not returned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun {
    number: u64,
    time: u64,
    pe: u32,
}

impl Recorder {
    /// One for a PE of a job, as the environment has it. That it cannot be had is told.
    pub(crate) fn from_env(pe: (u32, u32), transport: &str) -> Option<Self> {
        let [file, records] = [FILE, RECORDS].map(|name| env::var(name).ok());
        let recorder = Self::of(file.as_deref(), records.as_deref(), pe, transport);
        recorder.map_err(|why| complain(format_args!("nothing is recorded: {why}"))).ok()
    }

    fn of(
        file: Option<&str>,
        records: Option<&str>,
        (me, n_pes): (u32, u32),
        transport: &str,
    ) -> Result<Self, String> {
        let file = file.ok_or_else(|| format!("{FILE} names no file"))?;
        if !file.contains("%p") && n_pes > 1 {
            return Err(format!(
                "{FILE}: there is no %p in {file}, and each PE needs a file of its own"
            ));
        }
        let range = 1024..=u64::from(MOST_RECORDS);
        let records = match records {
            None => 256 << 10,
            Some(text) => {
                let number = text.parse().ok().filter(|number| range.contains(number));
                number.ok_or_else(|| {
                    let (least, most) = (range.start(), range.end());
                    format!("{RECORDS}: `{text}` is no number from {least} to {most}")
                })?
            }
        };
        let path = file.replace("%p", &me.to_string());
        Self::create(Path::new(&path), records, (me, n_pes), transport)
            .map_err(|error| format!("{path} cannot be made: {error}"))
    }

    fn create(
        path: &Path,
        capacity: u64,
        (me, n_pes): (u32, u32),
        transport: &str,
    ) -> std::io::Result<Self> {
        let file = MappedFile::create(path, file_bytes(MOST_REGIONS, capacity))?;
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let (boot, program) = (read("/proc/sys/kernel/random/boot_id"), read("/proc/self/comm"));
        let texts = [boot.trim(), env!("CARGO_PKG_VERSION"), transport, program.trim()];
        let mut header = header((me, n_pes), (std::process::id(), MOST_REGIONS), capacity, texts);
        header[at::BEGAN] = now(libc::CLOCK_MONOTONIC);
        header[at::BEGAN_REAL] = now(libc::CLOCK_REALTIME);
        // What it begins with is the last: a file without it is none.
        for (place, word) in file.words().iter().zip(header).rev() {
            place.store(word.to_le(), Ordering::Release);
        }
        Ok(Self { file: Some(file), capacity })
    }

    fn words(&self) -> &[AtomicU64] {
        self.file.as_ref().map_or(&[], MappedFile::words)
    }

    /// The next number of something that the header counts.
    fn draw(&self, at: usize) -> u64 {
        // The counters of the file are little endian, as everything in it is on the processors that
        // NVSHMEM runs on.
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
        Begun { number, time, pe: record.pe }
    }

    fn write(&self, record: Record) -> u64 {
        let number = self.draw(at::RECORDS);
        let place = self.place(number);
        // What is there no longer counts before it changes, and what comes counts when it is all
        // there.
        if let Some(last) = place.last() {
            last.store(0, Ordering::Release);
        }
        for (at, word) in place.iter().zip(record.encode(number)) {
            at.store(word, Ordering::Release);
        }
        number
    }

    /// It has returned.
    pub(crate) fn end(&self, begun: Begun, status: i32) {
        let place = self.place(begun.number);
        let [_, took, .., word, last] = place else { return };
        // Newer ones have come round.
        if last.load(Ordering::Acquire) & 0xffff_ffff != mark(begun.number) {
            return;
        }
        word.store(who(begun.pe, status), Ordering::Relaxed);
        let since = now(libc::CLOCK_MONOTONIC).wrapping_sub(begun.time);
        took.store(since.min(OPEN - 1), Ordering::Release);
    }

    /// What is not recorded before it has returned.
    pub(crate) fn saw(&self, record: Record) {
        self.write(Record { time: now(libc::CLOCK_MONOTONIC), took: Some(0), ..record });
    }
}

impl Drop for Recorder {
    /// The transport ends: the file is as long as what is in it.
    fn drop(&mut self) {
        let Some(file) = self.file.take().filter(|_| !is_child()) else { return };
        let words = file.words();
        words[at::ENDED].store(now(libc::CLOCK_MONOTONIC), Ordering::Relaxed);
        let kept = words[at::RECORDS].load(Ordering::Relaxed).min(self.capacity);
        if let Err(error) = file.close(file_bytes(MOST_REGIONS, kept)) {
            complain(format_args!("the recording stays as long as it was: {error}"));
        }
    }
}

#[cfg(test)]
mod tests;
