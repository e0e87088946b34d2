//! Records: several puts and signals that share a bounce buffer and a message. A *section* of the
//! list is an ordered record, or the first, with the unordered ones after it. Its signals follow
//! its puts. If any record of a list is ordered, its signals are in the order of their records.

use std::ops::{Deref, Range};

use crate::atomic::Atomic;
use crate::group::CompletionId;
use crate::port::copies::MAX_WORDS;
use crate::wire::message::RegionAddr;
use crate::wire::staging::{MAX_RECORDS, RECORD, WireRecord};

/// Alignment in bytes of puts in a buffer, unless a put continues its neighbour's destination.
const ALIGN: usize = 64;

/// Latest records that a new one is compared with: kernels send one token to all its experts first.
const LATEST: usize = 32;

/// A put with the signal that follows it, a signal alone, or a get.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    /// Address in this process.
    pub(super) memory: usize,
    /// Bytes; 0 for a signal alone.
    pub(super) len: usize,
    /// Place at the peer, or here if the peer gets it; unused in a peer's put.
    pub(super) to: RegionAddr,
    pub(super) offset: usize,
    pub(super) signal: Option<(RegionAddr, Atomic)>,
    /// Whether it follows all earlier ones, and so starts a section.
    pub(super) is_ordered: bool,
    /// Whether an earlier record has the same source, whose bytes both share.
    pub(super) repeats: bool,
    /// Group that counts it, unless its transfer does.
    pub(super) completion: CompletionId,
}

impl Record {
    pub(super) fn put(memory: usize, len: usize, to: RegionAddr) -> Self {
        let (signal, completion) = (None, CompletionId::NONE);
        Self { memory, len, to, offset: 0, signal, is_ordered: false, repeats: false, completion }
    }

    /// Returns true if the record has bytes of its own in the buffer.
    pub(super) fn has_bytes(&self) -> bool {
        self.len > 0 && !self.repeats
    }

    pub(super) fn wire(&self) -> WireRecord {
        let Self { to, len, offset, signal, is_ordered, .. } = *self;
        WireRecord { to, len: len as u32, offset: offset as u32, signal, is_ordered }
    }
}

pub(super) fn section_at(records: &[Record], begin: usize) -> Range<usize> {
    let others = records.iter().skip(begin + 1).take_while(|record| !record.is_ordered);
    begin..begin + 1 + others.count()
}

pub(super) fn are_ordered(records: &[Record]) -> bool {
    // A lone put with a signal too: the device can store the signal in the same submission.
    let is_alone = records.len() == 1 && records[0].signal.is_some();
    is_alone || records.iter().any(|record| record.is_ordered)
}

fn words(records: &[Record]) -> usize {
    records.iter().filter(|record| record.signal.is_some()).count()
}

/// The records of a send, and what they add up to: a list is added to with each operation.
#[derive(Debug, Default)]
pub(super) struct Records {
    pub(super) list: Vec<Record>,
    /// Bytes of the puts, each padded: their order in the buffer is not known before
    /// [`arrange`](Self::arrange).
    bytes: usize,
    words: usize,
    is_ordered: bool,
}

impl Deref for Records {
    type Target = [Record];

    fn deref(&self) -> &[Record] {
        &self.list
    }
}

impl Records {
    /// Makes a list of one record, whatever its length, in an empty one.
    pub(super) fn of(record: Record, list: Vec<Record>) -> Self {
        let mut records = Self { list, ..Self::default() };
        records.push(record);
        records
    }

    /// Makes a list of gets, placed by [`place_get`].
    pub(super) fn of_gets(list: Vec<Record>) -> Self {
        Self { list, ..Self::default() }
    }

    /// Appends a record if the list with it fits `max_bytes`. Returns whether it did. `orders`:
    /// signals are in the order of their records from now on.
    pub(super) fn add(&mut self, record: Record, orders: bool, max_bytes: usize) -> bool {
        let same = |other: &&Record| (other.memory, other.len) == (record.memory, record.len);
        let repeats = self.list.iter().rev().take(LATEST).any(|other| same(&other));
        let record = Record { repeats, ..record };
        // A signal joins the put right before it, unless that has one.
        let is_free = self.list.last().is_some_and(|last| last.signal.is_none());
        let joins = record.len == 0 && is_free;
        if !self.fits((!joins).then_some(&record), orders, max_bytes) {
            return false;
        }
        self.is_ordered |= orders;
        match self.list.last_mut() {
            Some(last) if joins => {
                last.signal = record.signal;
                self.words += 1;
            }
            _ => self.push(record),
        }
        true
    }

    fn push(&mut self, record: Record) {
        self.words += usize::from(record.signal.is_some());
        self.is_ordered |= record.is_ordered;
        self.bytes += padded_len(&record);
        self.list.push(record);
    }

    /// Returns true if the list may have another record; another signal if `another` is None.
    fn fits(&self, another: Option<&Record>, orders: bool, max_bytes: usize) -> bool {
        let count = self.list.len() + usize::from(another.is_some());
        let words = self.words + another.map_or(1, |record| usize::from(record.signal.is_some()));
        let is_ordered = self.is_ordered || orders || another.is_some_and(|r| r.is_ordered);
        let bytes = self.bytes + another.map_or(0, padded_len);
        count <= MAX_RECORDS
            && (!is_ordered || words <= MAX_WORDS)
            && bytes + (count * RECORD).next_multiple_of(ALIGN) <= max_bytes
    }

    /// Places the puts in the buffer, as [`arrange`] does.
    pub(super) fn arrange(&mut self) -> usize {
        if let [first, _, ..] = &mut self.list[..] {
            // Signals may be ordered where no put is.
            first.is_ordered = self.is_ordered;
        }
        arrange(&mut self.list)
    }
}

/// Places the bytes of a get in the answer to a request, behind those of earlier ones. Both ends
/// call it, so that they agree.
pub(super) fn place_get(earlier: &[Record], get: Record) -> Record {
    // Aligned, so that the words of a copy arrive whole.
    Record { offset: end_of_gets(earlier).next_multiple_of(8), ..get }
}

/// Returns the number of bytes of the answer to gets.
pub(super) fn end_of_gets(gets: &[Record]) -> usize {
    gets.last().map_or(0, |last| last.offset + last.len)
}

fn padded_len(record: &Record) -> usize {
    if record.has_bytes() { record.len.next_multiple_of(ALIGN) } else { 0 }
}

pub(super) fn fits_alone(len: usize, max_bytes: usize) -> bool {
    let put = Record::put(0, len, RegionAddr { region: 0, offset: 0 });
    Records::default().fits(Some(&put), false, max_bytes)
}

/// Sorts the puts of each section by destination, signals alone last, and assigns the puts their
/// offsets in the buffer. If the first is ordered, signals keep their order: they change from put
/// to put. Returns the end of the last put. A single record is at 0 and has no list.
fn arrange(records: &mut [Record]) -> usize {
    if let [record] = records {
        record.offset = 0;
        return record.len;
    }
    // Records with the same destination keep their order: the last one's bytes remain.
    records.iter_mut().enumerate().for_each(|(number, record)| record.offset = number);
    let (mut begin, in_order) = (0, records.first().is_some_and(|first| first.is_ordered));
    while begin < records.len() {
        let range = section_at(records, begin);
        begin = range.end;
        let section = &mut records[range];
        let is_ordered = section[0].is_ordered;
        section.sort_unstable_by_key(|r| (r.len == 0, r.to.region, r.to.offset, r.offset));
        // The flag marks the first of a section, whichever record that is now.
        section.iter_mut().for_each(|record| record.is_ordered = false);
        section[0].is_ordered = is_ordered;
        if in_order {
            sort_signals(section);
        }
    }
    // The list itself is before the puts.
    let mut end = records.len() * RECORD;
    let mut before: Option<Record> = None;
    for record in records.iter_mut().filter(|record| record.has_bytes()) {
        // A put that continues its neighbour at the peer does so here too: one copy for both.
        let follows = before.is_some_and(|before| {
            let next = before.to.offset + before.len as u64;
            (before.to.region, next) == (record.to.region, record.to.offset)
        });
        record.offset = if follows { end } else { end.next_multiple_of(ALIGN) };
        end = record.offset + record.len;
        before = Some(*record);
    }
    for index in 0..records.len() {
        let Record { memory, len, repeats: true, .. } = records[index] else { continue };
        let same =
            |other: &&Record| other.has_bytes() && (other.memory, other.len) == (memory, len);
        records[index].offset = records.iter().find(same).map_or(0, |other| other.offset);
    }
    end
}

/// Sorts the signals of a section by `offset`: the number that their record had when it was added.
fn sort_signals(section: &mut [Record]) {
    for from in 0..section.len() {
        let mut at = from;
        while let (Some(_), Some(before)) =
            (section[at].signal, section[..at].iter().rposition(|record| record.signal.is_some()))
        {
            if section[before].offset < section[at].offset {
                break;
            }
            let [one, two] = [section[before], section[at]];
            (section[before].signal, section[before].offset) = (two.signal, two.offset);
            (section[at].signal, section[at].offset) = (one.signal, one.offset);
            at = before;
        }
    }
}

/// Checks a peer's list: an ordered one has at most [`MAX_WORDS`] signals, which a device can store
/// at once.
pub(super) fn check(records: &[Record]) -> Result<(), String> {
    if are_ordered(records) && words(records) > MAX_WORDS {
        return Err(format!("{} signals in an order", words(records)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(offset: u64) -> RegionAddr {
        RegionAddr { region: 1, offset }
    }

    #[test]
    fn buffer_has_a_longest_put() {
        let longest = 4096 - RECORD.next_multiple_of(ALIGN);
        assert!(fits_alone(longest, 4096) && !fits_alone(longest + 1, 4096));
    }

    #[test]
    fn lists_stay_within_their_limits() {
        let operand = 1;
        let width = crate::atomic::Width::Eight;
        let op = crate::atomic::AtomicOp::SignalAdd;
        let word = (to(0), Atomic { op, width, float: false, operand, compare: 0 });
        for (has_signals, is_ordered, most) in [
            (false, false, MAX_RECORDS),
            (true, false, MAX_RECORDS),
            (false, true, MAX_RECORDS),
            (true, true, MAX_WORDS),
        ] {
            let record = |number: usize| {
                let (signal, is_ordered) = (has_signals.then_some(word), is_ordered && number > 0);
                Record { signal, is_ordered, ..Record::put(100 * number + 1, 4, to(0)) }
            };
            assert_eq!(are_ordered(&[record(0)]), has_signals, "one alone");
            let mut records = Records::default();
            let added = (0..).take_while(|at| records.add(record(*at), false, 1 << 16)).count();
            assert_eq!((added, are_ordered(&records)), (most, is_ordered));
            assert_eq!(check(&records), Ok(()), "the peer takes what is sent");
        }
    }

    #[test]
    fn neighbours_of_a_group_are_merged() {
        let put = |at: u64, is_ordered| Record {
            is_ordered,
            ..Record::put(1 + at as usize, 100, to(at))
        };
        let mut records = [put(400, false), put(100, false), put(0, false), put(200, true)];
        assert_eq!(arrange(&mut records), 676);
        let found = records.map(|record| (record.to.offset, record.offset, record.is_ordered));
        assert_eq!(
            found,
            [(0, 192, false), (100, 292, false), (400, 448, false), (200, 576, true)]
        );
    }

    #[test]
    fn signals_keep_their_order() {
        let mut records = Records::default();
        let word = |operand| {
            let width = crate::atomic::Width::Eight;
            let op = crate::atomic::AtomicOp::SignalAdd;
            Some((to(0), Atomic { op, width, float: false, operand, compare: 0 }))
        };
        for (number, at) in (0..).zip([400, 100, 300, 0, 200]) {
            let signal = if number == 1 { None } else { word(number) };
            let put = Record { signal, ..Record::put(1 + at as usize, 50, to(at)) };
            assert!(records.add(put, true, 4096));
        }
        assert!(records.add(Record { signal: word(5), ..Record::put(0, 0, to(0)) }, true, 4096));
        records.arrange();
        let found =
            records.iter().map(|r| (r.to.offset, r.signal.map(|(_, atomic)| atomic.operand)));
        let expected = [
            (0, Some(0)),
            (100, None),
            (200, Some(2)),
            (300, Some(3)),
            (400, Some(4)),
            (0, Some(5)),
        ];
        assert_eq!(found.collect::<Vec<_>>(), expected);
        assert!(records[0].is_ordered && are_ordered(&records));
    }

    #[test]
    fn lone_signals_follow_puts() {
        let mut records = [Record::put(0, 0, to(0)), Record::put(1, 100, to(500))];
        arrange(&mut records);
        assert_eq!(records.map(|record| record.len), [100, 0]);
    }
}
