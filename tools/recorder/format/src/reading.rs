//! Recordings as they are read from files, with distrust.

use thiserror::Error;

use super::*;

/// Why a file is no recording that can be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unreadable {
    /// It does not begin as one.
    #[error("it is no recording")]
    NotOne,
    /// Of another version.
    #[error("it has format {found}, and format {FORMAT} is read: it is another version's")]
    Format {
        /// The format that it has.
        found: u32,
    },
    /// It ends too early.
    #[error("it ends after {has} of {needs} bytes")]
    Truncated {
        /// Its bytes.
        has: u64,
        /// How many belong to it.
        needs: u64,
    },
    /// No recorder has written it so.
    #[error("it is damaged: {what}")]
    Damaged {
        /// What no recorder writes.
        what: &'static str,
    },
}

/// A recording that was read.
#[derive(Clone, Debug)]
pub struct Recording {
    /// Whose it is.
    pub pe: u32,
    /// PEs of the job.
    pub n_pes: u32,
    /// The process.
    pub pid: u32,
    /// When it began, on the clock of the machine.
    pub began: u64,
    /// The same moment by the calendar, in nanoseconds since 1970.
    pub began_real: u64,
    /// When the transport was finalized.
    pub ended: Option<u64>,
    /// Which start of which machine the clock is of.
    pub boot: String,
    /// Our version that wrote it.
    pub version: String,
    /// The file of the transport that was called.
    pub transport: String,
    /// The program.
    pub program: String,
    /// Memory that was registered, in order.
    pub regions: Vec<Region>,
    /// Regions for which there was no place.
    pub regions_left_out: u64,
    /// What is kept, in order.
    pub records: Vec<Record>,
    /// Older ones whose places newer ones have taken.
    pub overwritten: u64,
    /// Records that were being written when the process was killed.
    pub torn: u64,
}

impl Recording {
    /// Reads one.
    ///
    /// # Errors
    /// It is none, or not whole.
    pub fn decode(bytes: &[u8]) -> Result<Self, Unreadable> {
        let damaged = |what| Unreadable::Damaged { what };
        let truncated = |needs| Unreadable::Truncated { has: bytes.len() as u64, needs };
        if !bytes.starts_with(&MAGIC) {
            return Err(Unreadable::NotOne);
        }
        let header = bytes.get(..HEADER_WORDS * 8);
        let word = |at: usize| word(bytes, at).unwrap_or(0);
        let found = word(at::FORMAT) as u32;
        if bytes.len() >= 16 && found != FORMAT {
            return Err(Unreadable::Format { found });
        }
        let header = header.ok_or_else(|| truncated(HEADER_WORDS as u64 * 8))?;
        let halves = |at: usize| (word(at) as u32, (word(at) >> 32) as u32);
        if halves(at::FORMAT).1 != RECORD_WORDS as u32 * 8 {
            return Err(damaged("its records have another length"));
        }
        let ((pe, n_pes), (pid, places)) = (halves(at::PE), halves(at::PROCESS));
        if pe >= n_pes {
            return Err(damaged("it is of a PE that its job does not have"));
        }
        let capacity = word(at::CAPACITY);
        if places > MOST_REGIONS || capacity == 0 || capacity > u64::from(MOST_RECORDS) {
            return Err(damaged("it has room for more than there can be"));
        }
        let (written, regions) = (word(at::RECORDS), word(at::REGIONS));
        let kept = written.min(capacity);
        let needs = file_bytes(places, kept);
        if (bytes.len() as u64) < needs {
            return Err(truncated(needs));
        }
        let region = |at: u64| {
            let first = HEADER_WORDS + at as usize * REGION_WORDS;
            Region::decode(std::array::from_fn(|offset| word(first + offset)))
        };
        let noted = regions.min(places.into());
        let first_record = HEADER_WORDS + places as usize * REGION_WORDS;
        let (mut records, mut torn) = (Vec::with_capacity(kept as usize), 0);
        for number in written - kept..written {
            let first = first_record + (number % capacity) as usize * RECORD_WORDS;
            let words = std::array::from_fn(|offset| word(first + offset));
            if words[RECORD_WORDS - 1] & 0xffff_ffff != mark(number) {
                torn += 1;
                continue;
            }
            records.push(Record::decode(words).ok_or_else(|| damaged("a record of no kind"))?);
        }
        let [boot, version, transport, program] = at::TEXTS.map(|(at, words)| {
            let bytes = &header[at * 8..(at + words) * 8];
            let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
            // It goes to terminals.
            let text = String::from_utf8_lossy(&bytes[..end]);
            text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
        });
        Ok(Self {
            pe,
            n_pes,
            pid,
            began: word(at::BEGAN),
            began_real: word(at::BEGAN_REAL),
            ended: Some(word(at::ENDED)).filter(|ended| *ended != 0),
            boot,
            version,
            transport,
            program,
            regions: (0..noted).filter_map(region).collect(),
            regions_left_out: regions - noted,
            records,
            overwritten: written - kept,
            torn,
        })
    }

    /// The region that an address of this PE was in at some time, by its place among all, and how
    /// far into it.
    pub fn place(&self, address: u64, time: u64) -> Option<(usize, u64)> {
        let found = self.regions.iter().enumerate().rev().filter(|(_, region)| region.time <= time);
        found.filter_map(|(at, region)| Some((at, region.offset(address)?))).next()
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at * 8..at * 8 + 8)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}
