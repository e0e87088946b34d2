//! The file of a recording: where everything is in it, and how it is read back, with distrust.
//! `tools/recorder` writes it, `nvshmem-libfabric trace` reads it.
//!
//! ```text
//! header     32 words       what was recorded, and how many there are of each of the others
//! regions    4 words each   memory that was registered
//! records    8 words each   calls, in a ring: record number N is at N modulo their count
//! ```
//!
//! Words are of 64 bits, little endian. A record's last word has the low half of its number, one
//! more than that so that it is never that of a place nobody has written to: what was being written
//! when its process was killed is told apart.
#![forbid(unsafe_code)]

mod reading;

pub use reading::{Recording, Unreadable};

/// What a recording begins with.
pub const MAGIC: [u8; 8] = *b"NLFTRACE";
/// Version of the format: raised with every change.
pub const FORMAT: u32 = 2;

/// Words of the header, of a region and of a record.
pub const HEADER_WORDS: usize = 32;
/// See [`HEADER_WORDS`].
pub const REGION_WORDS: usize = 4;
/// See [`HEADER_WORDS`].
pub const RECORD_WORDS: usize = 8;

/// Most regions that are noted.
pub const MOST_REGIONS: u32 = 1024;
/// Most records of a file.
pub const MOST_RECORDS: u32 = 1 << 26;

/// Where the numbers of the header are, in words.
#[allow(missing_docs, reason = "names say it, and where they do not, a comment does")]
pub mod at {
    pub const MAGIC: usize = 0;
    /// Format, and bytes of a record.
    pub const FORMAT: usize = 1;
    /// This PE, and how many there are.
    pub const PE: usize = 2;
    /// The process, and places for regions.
    pub const PROCESS: usize = 3;
    /// Places for records.
    pub const CAPACITY: usize = 4;
    /// When it began by the clock of the machine, and by the calendar.
    pub const BEGAN: usize = 5;
    pub const BEGAN_REAL: usize = 6;
    /// The number of the next record, and of the next region.
    pub const RECORDS: usize = 7;
    pub const REGIONS: usize = 8;
    /// When the transport was finalized; 0 if it was not.
    pub const ENDED: usize = 9;
    /// Texts, each with its words: the boot, our version, the transport's file, the program.
    pub const TEXTS: [(usize, usize); 4] = [(10, 5), (15, 4), (19, 4), (23, 8)];
}

/// What a call has not returned with yet, in place of how long it took.
pub const OPEN: u64 = u64::MAX;

const LOCAL_ONLY: u64 = 1;
const PRESENT: u64 = 2;

/// What was called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// Bytes are written.
    Put = 1,
    /// Bytes are read.
    Get = 2,
    /// A value of up to 8 bytes is written.
    P = 3,
    /// A value is read.
    G = 4,
    /// A word is changed.
    Amo = 5,
    /// Bytes are written, and then a word is changed.
    PutSignal = 6,
    /// One of several pieces of the put with signal that follows.
    Part = 7,
    /// What comes later comes after what came before.
    Fence = 8,
    /// Waits until everything is done.
    Quiet = 9,
    /// A call of `progress` that has failed.
    Progress = 10,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Put,
        Self::Get,
        Self::P,
        Self::G,
        Self::Amo,
        Self::PutSignal,
        Self::Part,
        Self::Fence,
        Self::Quiet,
        Self::Progress,
    ];

    /// As a timeline has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::Get => "get",
            Self::P => "p",
            Self::G => "g",
            Self::Amo => "atomic",
            Self::PutSignal => "put_signal",
            Self::Part => "part",
            Self::Fence => "fence",
            Self::Quiet => "quiet",
            Self::Progress => "progress",
        }
    }
}

/// Whose call it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Caller {
    /// NVSHMEM's proxy thread, for kernels.
    Proxy = 0,
    /// A thread of the program.
    Host = 1,
}

/// One call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// Nanoseconds on the clock of the machine.
    pub time: u64,
    /// Nanoseconds until it returned. None if it has not.
    pub took: Option<u64>,
    /// What.
    pub kind: Kind,
    /// The atomic operation by NVSHMEM's number.
    pub op: u8,
    /// Whose.
    pub caller: Caller,
    /// Whether it waits for its end.
    pub blocking: bool,
    /// The peer.
    pub pe: u32,
    /// The status that it returned.
    pub status: i32,
    /// The first byte at the peer, or the word of an atomic, by its address there.
    pub remote: u64,
    /// The first byte here.
    pub local: u64,
    /// How many.
    pub bytes: u64,
    /// Of a put with signal: the word, by its address at the peer.
    pub signal: u64,
}

impl Record {
    /// Of a call that begins now.
    pub fn new(kind: Kind, caller: Caller, pe: u32) -> Self {
        Self {
            time: 0,
            took: None,
            kind,
            op: 0,
            caller,
            blocking: false,
            pe,
            status: 0,
            remote: 0,
            local: 0,
            bytes: 0,
            signal: 0,
        }
    }

    /// As it is in the file, as the record of this number.
    pub fn encode(&self, number: u64) -> [u64; RECORD_WORDS] {
        let what = u64::from(self.kind as u8)
            | u64::from(self.op) << 8
            | u64::from(self.caller as u8) << 16
            | u64::from(self.blocking) << 17;
        [
            self.time,
            self.took.unwrap_or(OPEN),
            self.remote,
            self.local,
            self.bytes,
            self.signal,
            who(self.pe, self.status),
            what << 32 | mark(number),
        ]
    }

    fn decode(words: [u64; RECORD_WORDS]) -> Option<Self> {
        let [time, took, remote, local, bytes, signal, who, last] = words;
        let what = last >> 32;
        let kind = Kind::ALL.into_iter().find(|kind| *kind as u64 == what & 0xff)?;
        if what >> 18 != 0 {
            return None;
        }
        Some(Self {
            time,
            took: (took != OPEN).then_some(took),
            kind,
            op: (what >> 8) as u8,
            caller: if what >> 16 & 1 == 0 { Caller::Proxy } else { Caller::Host },
            blocking: what >> 17 & 1 != 0,
            pe: who as u32,
            status: (who >> 32) as i32,
            remote,
            local,
            bytes,
            signal,
        })
    }
}

/// The peer and the status in a word.
pub fn who(pe: u32, status: i32) -> u64 {
    u64::from(status as u32) << 32 | u64::from(pe)
}

/// What the record of a number has in the low half of its last word: never 0, which what is being
/// written has.
pub fn mark(number: u64) -> u64 {
    number % 0xffff_ffff + 1
}

/// Memory that was registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// Its first byte.
    pub base: u64,
    /// How many.
    pub len: u64,
    /// When, on the clock of the machine.
    pub time: u64,
    /// Peers do not reach it.
    pub local_only: bool,
}

impl Region {
    /// As it is in the file.
    pub fn encode(&self) -> [u64; REGION_WORDS] {
        let flags = PRESENT | if self.local_only { LOCAL_ONLY } else { 0 };
        [self.base, self.len, self.time, flags]
    }

    fn decode([base, len, time, flags]: [u64; REGION_WORDS]) -> Option<Self> {
        let local_only = flags & LOCAL_ONLY != 0;
        (flags & PRESENT != 0).then_some(Self { base, len, time, local_only })
    }

    /// How far into it an address is.
    pub fn offset(&self, address: u64) -> Option<u64> {
        address.checked_sub(self.base).filter(|offset| *offset < self.len)
    }
}

/// Bytes of a file with room for so many regions and records.
pub fn file_bytes(regions: u32, records: u64) -> u64 {
    let words = HEADER_WORDS as u64
        + u64::from(regions) * REGION_WORDS as u64
        + records * RECORD_WORDS as u64;
    words * 8
}

/// The header of a recording of a PE, by a process, with places for so many regions and records.
/// Times are 0, and so are counts.
pub fn header(
    (pe, n_pes): (u32, u32),
    (process, regions): (u32, u32),
    capacity: u64,
    texts: [&str; 4],
) -> [u64; HEADER_WORDS] {
    let mut words = [0; HEADER_WORDS];
    words[at::MAGIC] = u64::from_le_bytes(MAGIC);
    words[at::FORMAT] = u64::from(FORMAT) | (RECORD_WORDS as u64 * 8) << 32;
    words[at::PE] = u64::from(pe) | u64::from(n_pes) << 32;
    words[at::PROCESS] = u64::from(process) | u64::from(regions) << 32;
    words[at::CAPACITY] = capacity;
    for ((first, room), text) in at::TEXTS.into_iter().zip(texts) {
        let room = &mut words[first..first + room];
        for (word, bytes) in room.iter_mut().zip(text.as_bytes().chunks(8)) {
            let mut eight = [0; 8];
            eight[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_le_bytes(eight);
        }
    }
    words
}

/// The bytes of a recording that a process would have written: for tests, and to fuzz what reads
/// it.
pub fn encode(
    (pe, n_pes): (u32, u32),
    capacity: u64,
    regions: &[Region],
    records: &[Record],
) -> Vec<u8> {
    let mut words = vec![0; (file_bytes(regions.len() as u32, capacity) / 8) as usize];
    let header = header((pe, n_pes), (1, regions.len() as u32), capacity, [""; 4]);
    words[..HEADER_WORDS].copy_from_slice(&header);
    words[at::RECORDS] = records.len() as u64;
    words[at::REGIONS] = regions.len() as u64;
    for (at, region) in regions.iter().enumerate() {
        let first = HEADER_WORDS + at * REGION_WORDS;
        words[first..first + REGION_WORDS].copy_from_slice(&region.encode());
    }
    for (number, record) in records.iter().enumerate() {
        let at = number % capacity.max(1) as usize;
        let first = HEADER_WORDS + regions.len() * REGION_WORDS + at * RECORD_WORDS;
        words[first..first + RECORD_WORDS].copy_from_slice(&record.encode(number as u64));
    }
    words.into_iter().flat_map(u64::to_le_bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(time: u64) -> Record {
        Record {
            time,
            took: (time % 2 == 0).then_some(time * 3),
            op: 9,
            blocking: time % 3 == 0,
            status: -7,
            remote: u64::MAX - time,
            local: 1 << 40,
            bytes: 5,
            signal: 8,
            ..Record::new(Kind::ALL[time as usize % 10], Caller::Host, 70_000)
        }
    }

    fn region(base: u64, time: u64) -> Region {
        Region { base, len: 100, time, local_only: base == 0 }
    }

    #[test]
    fn what_is_written_is_read_and_the_newest_kept() {
        let all: Vec<Record> = (0..25).map(record).collect();
        let regions = [region(0, 1), region(1000, 2), region(1050, 9)];
        for (capacity, kept) in [(64, 25), (25, 25), (24, 24), (7, 7), (1, 1)] {
            let bytes = encode((3, 4), capacity, &regions, &all);
            let read = Recording::decode(&bytes).unwrap();
            assert_eq!((read.pe, read.n_pes, read.torn), (3, 4, 0));
            assert_eq!(read.records, all[25 - kept..]);
            assert_eq!(read.overwritten, 25 - kept as u64);
            assert_eq!(read.regions, regions);
        }
        let read = Recording::decode(&encode((0, 1), 4, &regions, &[])).unwrap();
        assert_eq!((read.records.len(), read.ended), (0, None));
        assert_eq!(read.place(1060, 20), Some((2, 10)), "the one that came last");
        assert_eq!(read.place(1060, 3), Some((1, 60)));
        assert_eq!((read.place(1150, 20), read.place(1060, 1)), (None, None));
    }

    #[test]
    fn what_is_no_recording_or_not_whole_is_refused() {
        let good = encode((0, 2), 4, &[region(0, 1)], &[record(1), record(2), record(3)]);
        let with = |at: usize, word: u64| {
            let mut bytes = good.clone();
            bytes[at * 8..at * 8 + 8].copy_from_slice(&word.to_le_bytes());
            Recording::decode(&bytes).map(|read| read.torn)
        };
        assert_eq!(Recording::decode(b"{}").unwrap_err(), Unreadable::NotOne);
        assert_eq!(Recording::decode(&[]).unwrap_err(), Unreadable::NotOne);
        assert_eq!(with(at::FORMAT, 1 | 64 << 32), Err(Unreadable::Format { found: 1 }));
        // A place more than there are records is there, and may be missing.
        let needs = file_bytes(1, 3);
        for has in 8..good.len() {
            match Recording::decode(&good[..has]) {
                Ok(_) => assert!(has as u64 >= needs, "{has}"),
                Err(Unreadable::Truncated { has: said, .. }) => assert_eq!(said, has as u64),
                Err(other) => panic!("{has}: {other}"),
            }
        }
        let damaged = [
            (at::FORMAT, 2 | 32 << 32),
            (at::PE, 5 | 5 << 32),
            (at::PROCESS, 1 | 0xffff << 32),
            (at::CAPACITY, 0),
            (at::CAPACITY, u64::MAX),
            (HEADER_WORDS + REGION_WORDS + 7, 99 << 32 | 1),
        ];
        for (at, word) in damaged {
            assert!(matches!(with(at, word), Err(Unreadable::Damaged { .. })), "word {at}");
        }
        assert!(matches!(with(at::CAPACITY, 1 << 20), Ok(0)), "places that nobody has reached");
        assert_eq!(with(HEADER_WORDS + REGION_WORDS + 7, 0), Ok(1), "one was being written");
        assert!(matches!(with(at::RECORDS, u64::MAX), Ok(4)), "none of them is that old");
    }
}
