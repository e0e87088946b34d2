//! The queue of a copy engine: what is under way on its stream, one entry for each ticket.

mod in_order;
mod many;

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use cudarc::driver::sys::CUstreamBatchMemOpParams;

use crate::MEM;
use crate::copy::batch::{Batch, MOST_WRITES, Write};
use crate::copy::calls::{copy_part, copy_piece};
use crate::copy::progress::{MARK_ROOM, Mark, Watch};
use crate::copy::request::{Completed, Direction, StartError, Ticket, Word};
use crate::copy::rows::{self, Part};
use crate::driver::context::Context;
use crate::driver::device::Device;
use crate::driver::error::{CudaError, code};
use crate::driver::stream::{Event, Stream};
use crate::memory::pinned::PinnedMemory;
use crate::memory::pointer::Kind;
use crate::memory::range::DeviceRange;
use ::engine::atomic::Width;
pub(crate) use in_order::Step;
pub(crate) use many::Piece;
use many::{Refused, Room};

/// The stream, and what is under way on it.
#[derive(Debug)]
pub(crate) struct CopyQueue {
    stream: Stream,
    flight: Flight,
    broken: Option<CudaError>,
    pub(crate) write_32: bool,
    pub(crate) write_64: bool,
    batch: Batch,
    /// Words in a row that are to be stored in their order.
    writes: Vec<Write>,
    many: Room,
    /// Host memory of copies that are given so, for as long as the queue is there.
    kept: Vec<Arc<PinnedMemory>>,
    /// Whether short copies to the device are cut into rows.
    pub(crate) rows: bool,
    /// Looks since the oldest was last seen under way by the driver.
    looks: u32,
}

/// Looks at bytes that have not come, until an event is to tell as well: they may have the pattern
/// themselves. It is asked once in as many.
const LOOKS_AT_BYTES: u32 = 256;

/// Looks at a mark, until the driver is asked: nothing is marked any more once the context has
/// failed.
const LOOKS_AT_MARK: u32 = 1024;

#[derive(Debug)]
struct Flight {
    entries: Box<[Entry]>,
    /// A word for each entry, in page-locked memory: what a load brings, what a store takes. Before
    /// them is the mark's.
    words: Arc<PinnedMemory>,
    /// None where the stream sets none.
    mark: Option<Mark>,
    marks: u32,
    /// The oldest ticket under way, and the next to give out. They are apart by no more than there
    /// are entries.
    first: u64,
    next: u64,
}

#[derive(Debug)]
struct Entry {
    event: Event,
    end: End,
    /// The number of the mark that tells of it: its own, or that of the next mark which the stream
    /// is given behind it.
    mark: u32,
    /// The width to read when it is done.
    load: Option<Width>,
    host: Option<Arc<PinnedMemory>>,
    /// What went wrong after a part of it was started.
    failed: Option<CudaError>,
}

#[derive(Clone, Copy, Debug)]
enum End {
    /// Its mark, or a later one.
    Mark,
    /// The bytes that it brings, or a later mark, or else its event, if that was recorded.
    Bytes { watch: Watch, recorded: bool },
    /// Its event, or a later mark.
    Event,
    /// The whole stream: the event could not be recorded.
    Stream,
}

#[derive(Debug, Default)]
struct Given {
    /// The width to read when it is done.
    load: Option<Width>,
    host: Option<Arc<PinnedMemory>>,
    /// What went wrong after a part of it was started.
    failed: Option<CudaError>,
    /// The bytes to watch.
    watch: Option<Watch>,
    marked: bool,
}

/// A copy that was checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checked<'a> {
    pub(crate) direction: Direction,
    pub(crate) range: &'a DeviceRange,
    pub(crate) addr: usize,
    pub(crate) host: usize,
    pub(crate) len: usize,
}

impl CopyQueue {
    pub(crate) fn new(context: &Arc<Context>, depth: usize) -> Result<Self, CudaError> {
        let stream = Stream::new(context)?;
        let words = PinnedMemory::new(
            context,
            MARK_ROOM.saturating_add(depth.saturating_mul(size_of::<u64>())),
        )?;
        let mark = match Mark::new(&stream, &words) {
            Ok(mark) => Some(mark),
            Err(reason) => {
                log::info!(target: MEM, "events tell when words of {context} are stored, which is slower: {reason}");
                None
            }
        };
        let entry = |_| {
            let event = Event::new(context)?;
            Ok(Entry { event, end: End::Stream, mark: 0, load: None, host: None, failed: None })
        };
        let entries = (0..depth).map(entry).collect::<Result<Box<[Entry]>, CudaError>>()?;
        let driver = context.driver();
        let attributes = Device::new(driver, context.device())?.attributes()?;
        let write_32 = driver.api.cuStreamWriteValue32_v2.is_some();
        let write_64 = driver.api.cuStreamWriteValue64_v2.is_some() && attributes.stream_write_64;
        let flight = Flight { entries, words, mark, marks: 0, first: 0, next: 0 };
        Ok(Self {
            stream,
            flight,
            broken: None,
            write_32,
            write_64,
            batch: Batch::new(),
            writes: Vec::with_capacity(MOST_WRITES),
            many: Room::new(driver),
            kept: Vec::new(),
            rows: false,
            looks: 0,
        })
    }

    /// For tests: as if so many things had been done, and the stream had come to so many marks.
    /// Nothing is under way.
    pub(crate) fn count_from(&mut self, tickets: u64, marks: u32) {
        let flight = &mut self.flight;
        assert_eq!(flight.first, flight.next, "nothing is under way");
        (flight.first, flight.next, flight.marks) = (tickets, tickets, marks);
        if let Some(mark) = &flight.mark {
            mark.set(marks);
        }
    }

    pub(crate) fn has_mark(&self) -> bool {
        self.flight.mark.is_some()
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        self.stream.context()
    }

    pub(crate) fn depth(&self) -> usize {
        self.flight.entries.len()
    }

    #[inline]
    pub(crate) fn in_flight(&self) -> usize {
        (self.flight.next - self.flight.first) as usize
    }

    #[inline]
    pub(crate) fn next_word(&self) -> usize {
        self.flight.word(self.flight.next)
    }

    /// Whether something may be started on these bytes.
    #[inline]
    pub(crate) fn check(
        &self,
        range: &DeviceRange,
        addr: usize,
        len: usize,
    ) -> Result<(), StartError> {
        if let Some(error) = &self.broken {
            return Err(StartError::Cuda(error.clone()));
        }
        if self.in_flight() == self.depth() {
            return Err(StartError::Full);
        }
        if !range.contains(addr, len) {
            return Err(StartError::Bounds { addr, len });
        }
        // Any context of a device reaches all memory of it.
        if !range.context().has_device_of(self.context()) {
            let (memory, engine) = (range.context().to_string(), self.context().to_string());
            return Err(StartError::Context { memory, engine });
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn check_word(&self, word: &Word<'_>) -> Result<(), StartError> {
        let len = word.width.bytes();
        if word.addr % len != 0 {
            return Err(StartError::Bounds { addr: word.addr, len });
        }
        self.check(word.range, word.addr, len)
    }

    /// Starts a copy: piece by piece, as the allocations are. `watched`: the host's side is
    /// page-locked.
    ///
    /// # Safety
    /// The copy was checked. The host's side is valid for its length until the copy has ended,
    /// which `keep` may see to. Nobody else uses it if it is `watched`.
    #[inline]
    pub(crate) unsafe fn copy(
        &mut self,
        copy: &Checked<'_>,
        keep: Option<Arc<PinnedMemory>>,
        load: Option<Width>,
        watched: bool,
    ) -> Result<Ticket, StartError> {
        let _bound = self.stream.context().bind()?;
        // What is managed may be copied by the CPU, byte by byte.
        let of_device = matches!(copy.range.kind(), Kind::Device | Kind::DevicePool);
        let watched = watched && copy.direction == Direction::FromDevice && of_device;
        let (sides, number) = ((copy.host, copy.addr), self.flight.next);
        let alone = self.in_flight() == 0;
        // SAFETY: the caller's promise of memory that is watched.
        let watch = || unsafe { Watch::new(sides, copy.len, number, alone) };
        let mut watch = watched.then(watch).flatten();
        // What belongs to a context is copied in that, whatever the call.
        let in_rows = self.rows && copy.direction == Direction::ToDevice && !copy.range.is_owned();
        let parts = |(addr, len)| {
            let cut = in_rows.then(|| rows::parts(addr, len));
            let whole = (!in_rows).then_some(Part { offset: 0, width: len, rows: 1 });
            let parts = cut.into_iter().flatten().chain(whole);
            parts.map(move |part| (addr + part.offset, part))
        };
        let mut started = 0;
        let mut failed = None;
        for (addr, part) in copy.range.pieces(copy.addr, copy.len).flat_map(parts) {
            let host = copy.host + started;
            // SAFETY: the piece is in one allocation; the host's side by the caller's promise.
            let given = unsafe {
                match copy.direction {
                    Direction::ToDevice => copy_part(&self.stream, host, addr, &part),
                    way => copy_piece(&self.stream, way, addr, host, part.len()),
                }
            };
            match given {
                Ok(()) => started += part.len(),
                // Nothing is under way: who asked may use its memory at once.
                Err(error) if started == 0 => return Err(error.into()),
                // Earlier pieces are, so the failure is told when they are done.
                Err(error) => {
                    (failed, watch) = (Some(error), None);
                    break;
                }
            }
        }
        Ok(self
            .flight
            .enter(&self.stream, Given { load, host: keep, failed, watch, marked: false }))
    }

    /// Stores words of 4 or 8 bytes by stream memory operations, at most
    /// [`MOST_WRITES`](super::MOST_WRITES), in their order: in one call of the driver, where it has
    /// that. They wait for what is before them in the stream. Each comes with a barrier, so who
    /// sees it sees what is before it as well.
    #[inline]
    pub(crate) fn write_all<'w>(
        &mut self,
        words: impl Iterator<Item = (Word<'w>, u64)> + Clone,
    ) -> Result<Ticket, StartError> {
        let context = Arc::clone(self.stream.context());
        let _bound = context.bind()?;
        let words = words.map(|(word, value)| Write::new(&word, value));
        let flight = &self.flight;
        let behind = flight.mark.as_ref().map(|mark| mark.operation(flight.next_mark()));
        let (marked, failed) = match self.give_writes(words, behind) {
            Ok(marked) => (marked, None),
            Err(Refused { error, some: false }) => return Err(error.into()),
            // Those before it are under way, so the failure is told when they are done.
            Err(Refused { error, .. }) => (false, Some(error)),
        };
        Ok(self.flight.enter(&self.stream, Given { marked, failed, ..Given::default() }))
    }

    /// Gives the driver stores in their order: in one call, with what comes `behind` them, or one
    /// by one and without it. Whether that went along. The context is bound.
    fn give_writes(
        &mut self,
        writes: impl Iterator<Item = Write> + Clone,
        behind: Option<CUstreamBatchMemOpParams>,
    ) -> Result<bool, Refused> {
        match self.batch.give(&self.stream, writes.clone(), behind) {
            Some(Ok(())) => return Ok(behind.is_some()),
            // Some drivers list the function and refuse it.
            Some(Err(error)) if error.code == code::NOT_SUPPORTED => self.batch = Batch::default(),
            Some(Err(error)) => return Err(Refused { error, some: false }),
            None => {}
        }
        for (number, write) in writes.enumerate() {
            let given = write.give(&self.stream);
            given.map_err(|error| Refused { error, some: number != 0 })?;
        }
        Ok(false)
    }

    pub(crate) fn poll(&mut self) -> Option<Completed> {
        let mut failed = self.broken.clone();
        if failed.is_none() {
            match self.oldest_is_done() {
                Ok(false) => return None,
                Ok(true) => {}
                // What the driver tells here is that the context is gone, and all its work with it.
                Err(error) => {
                    self.broken = Some(error.clone());
                    failed = Some(error);
                }
            }
        }
        Some(self.flight.leave(failed))
    }

    #[inline]
    fn oldest_is_done(&mut self) -> Result<bool, CudaError> {
        let Self { stream, flight, looks, .. } = self;
        let Flight { mark, first, .. } = flight;
        let (mark, first) = (mark.as_ref(), *first);
        let index = (first % flight.entries.len() as u64) as usize;
        let entry = &mut flight.entries[index];
        let marked = mark.is_some_and(|mark| mark.reached(entry.mark));
        let (done, most) = match &mut entry.end {
            End::Mark => (marked, LOOKS_AT_MARK),
            // SAFETY: the host's side is kept until this has ended, by the entry or by who started
            // it.
            End::Bytes { watch, .. } => (marked || unsafe { watch.all_here() }, LOOKS_AT_BYTES),
            End::Event | End::Stream => (marked, 1),
        };
        *looks = if done { 0 } else { *looks + 1 };
        if done || *looks < most {
            return Ok(done);
        }
        *looks = 0;
        let _bound = stream.context().bind()?;
        match &mut entry.end {
            End::Bytes { recorded, .. } if !*recorded => {
                entry.event.record(stream)?;
                *recorded = true;
                Ok(false)
            }
            End::Bytes { .. } | End::Event => entry.event.is_done(),
            // Where a stream has nothing left, this is done as well.
            End::Mark | End::Stream => stream.is_done(),
        }
    }
}

impl Flight {
    #[inline]
    fn next_mark(&self) -> u32 {
        self.marks.wrapping_add(1)
    }

    #[inline]
    fn entry(&mut self, ticket: u64) -> &mut Entry {
        let index = (ticket % self.entries.len() as u64) as usize;
        &mut self.entries[index]
    }

    #[inline]
    fn word(&self, ticket: u64) -> usize {
        let index = (ticket % self.entries.len() as u64) as usize;
        self.words.addr() + MARK_ROOM + index * size_of::<u64>()
    }

    #[inline]
    fn enter(&mut self, stream: &Stream, given: Given) -> Ticket {
        let (ticket, mark) = (self.next, self.next_mark());
        self.next += 1;
        let index = (ticket % self.entries.len() as u64) as usize;
        let entry = &mut self.entries[index];
        let Given { load, host, failed, watch, marked } = given;
        (entry.mark, entry.host, entry.load, entry.failed) = (mark, host, load, failed);
        if marked {
            self.marks = mark;
        }
        let (end, told) = match watch {
            Some(watch) => (End::Bytes { watch, recorded: false }, Ok(())),
            None if marked => (End::Mark, Ok(())),
            None => (End::Event, entry.event.record(stream)),
        };
        entry.end = match told {
            Ok(()) => end,
            Err(error) => {
                entry.failed.get_or_insert(error);
                End::Stream
            }
        };
        Ticket(ticket)
    }

    #[inline]
    fn leave(&mut self, failed: Option<CudaError>) -> Completed {
        let ticket = self.first;
        self.first += 1;
        let word = self.word(ticket);
        let entry = self.entry(ticket);
        entry.host = None;
        let result = match (failed.or(entry.failed.take()), entry.load) {
            (Some(error), _) => Err(error),
            (None, None) => Ok(0),
            // SAFETY: the entry's own word, and the copy into it has ended.
            (None, Some(width)) => Ok(unsafe { load_host(word, width) }),
        };
        Completed { ticket: Ticket(ticket), result }
    }
}

/// Stores a word for a copy to fetch.
///
/// # Safety
/// `addr` is a word of page-locked memory, aligned to 8, that nobody else uses.
pub(crate) unsafe fn store_host(addr: usize, width: Width, value: u64) {
    // SAFETY: the caller's promise.
    unsafe {
        match width {
            Width::Two => {
                AtomicU16::from_ptr(addr as *mut u16).store(value as u16, Ordering::Release)
            }
            Width::Four => {
                AtomicU32::from_ptr(addr as *mut u32).store(value as u32, Ordering::Release)
            }
            Width::Eight => AtomicU64::from_ptr(addr as *mut u64).store(value, Ordering::Release),
        }
    }
}

/// Loads a word that a copy has brought.
///
/// # Safety
/// As [`store_host`].
unsafe fn load_host(addr: usize, width: Width) -> u64 {
    // SAFETY: the caller's promise.
    unsafe {
        match width {
            Width::Two => AtomicU16::from_ptr(addr as *mut u16).load(Ordering::Acquire).into(),
            Width::Four => AtomicU32::from_ptr(addr as *mut u32).load(Ordering::Acquire).into(),
            Width::Eight => AtomicU64::from_ptr(addr as *mut u64).load(Ordering::Acquire),
        }
    }
}
