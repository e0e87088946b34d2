//! A copy engine: a stream for copies and words, with the lists that are under way on it.
//!
//! What is started on it runs in the order of starting, and what is done is told in that order. So
//! a word stored behind a copy is there after the copy's bytes, with no waiting in between.

use std::iter;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::MEM;
use crate::copy::list::{Given, Lists};
use crate::copy::progress::{self, Mark, Watch};
use crate::copy::request::{CopyError, Direction, Step, Transfer, WordStores};
use crate::driver::context::Context;
use crate::driver::device::Device;
use crate::driver::error::CudaError;
use crate::driver::stream::{Event, Stream};
use crate::memory::pinned_memory::PinnedMemory;
use crate::memory::pointer::Kind;

/// Lists that are under way on an engine at once: one that the device is at, and one behind it.
/// What comes meanwhile goes together in the next.
pub(crate) const MAX_LISTS: usize = 2;

/// A stream for copies and words, with what is under way on it.
///
/// Starting and polling never wait, and allocate only to remember page-locked memory that is new.
/// An engine belongs to one thread at a time. Devices copy both ways at once: use one for each.
#[derive(Debug)]
pub struct CopyEngine {
    stream: Stream,
    entries: [Entry; MAX_LISTS],
    /// The oldest list under way, and the next to start.
    first: u64,
    next: u64,
    /// None where the stream sets none.
    mark: Option<Mark>,
    broken: Option<CudaError>,
    word_stores: WordStores,
    lists: Lists,
    /// Host memory of copies, for as long as the engine is there.
    kept: Vec<Arc<PinnedMemory>>,
    /// Looks since the oldest was last seen under way by the driver.
    looks: u32,
}

/// A list under way.
#[derive(Debug)]
struct Entry {
    /// Number given by the caller.
    number: u32,
    event: Event,
    end: End,
    /// The number of the mark that tells of it: its own, or that of the next one given behind it.
    mark: u32,
    /// Error after part of the list was started.
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

/// Looks at bytes that have not come, until an event is to tell as well: they may have the pattern
/// themselves. It is asked once in as many.
const LOOKS_AT_BYTES: u32 = 256;

/// Looks at a mark until the driver is asked: a failed context sets no more marks.
const LOOKS_AT_MARK: u32 = 1024;

const PATIENCE: Duration = Duration::from_secs(10);

impl CopyEngine {
    /// Makes an engine, which may wait for everything on the device.
    ///
    /// # Errors
    /// As the driver answers, for one when there is no page-locked memory left.
    pub fn new(context: &Arc<Context>) -> Result<Self, CudaError> {
        let stream = Stream::new(context)?;
        let word = PinnedMemory::new(context, progress::BYTES)?;
        let mark = match Mark::new(&stream, word) {
            Ok(mark) => Some(mark),
            Err(reason) => {
                log::info!(target: MEM, "events tell when words of {context} are stored, which is slower: {reason}");
                None
            }
        };
        let entry = || {
            let event = Event::new(context)?;
            Ok(Entry { number: 0, event, end: End::Stream, mark: 0, failed: None })
        };
        let entries = [entry()?, entry()?];
        let driver = context.driver();
        let attributes = Device::new(driver, context.device())?.attributes()?;
        let word_stores = WordStores {
            four: driver.api.cuStreamWriteValue32_v2.is_some(),
            eight: driver.api.cuStreamWriteValue64_v2.is_some() && attributes.stream_write_64,
        };
        let (lists, kept) = (Lists::new(driver), Vec::new());
        let (first, next, broken, looks) = (0, 0, None, 0);
        Ok(Self { stream, entries, first, next, mark, broken, word_stores, lists, kept, looks })
    }

    /// Cuts short copies to the device into rows from now on, if `rows`: copy engines do them then,
    /// also beside a kernel of another context.
    pub(crate) fn set_rows(&mut self, rows: bool) {
        self.lists.rows = rows;
    }

    /// Its context.
    pub fn context(&self) -> &Arc<Context> {
        self.stream.context()
    }

    /// How many lists are under way, done ones that were not polled yet among them.
    #[inline]
    pub fn in_flight(&self) -> usize {
        (self.next - self.first) as usize
    }

    #[inline]
    pub(crate) fn word_stores(&self) -> WordStores {
        self.word_stores
    }

    /// Page-locked memory that copies use stays until the engine is dropped.
    pub(crate) fn keep(&mut self, memory: &Arc<PinnedMemory>) {
        if !self.keeps(memory) {
            self.kept.push(Arc::clone(memory));
        }
    }

    fn keeps(&self, memory: &Arc<PinnedMemory>) -> bool {
        self.kept.iter().any(|kept| Arc::ptr_eq(kept, memory))
    }

    /// Starts a copy. A range that crosses borders of allocations is copied piece by piece. What is
    /// copied into page-locked memory that is in other use meanwhile is undefined there, and so is
    /// what is copied out. That memory stays until the engine is dropped.
    ///
    /// # Errors
    /// When it does not fit, and when the driver refuses it; then nothing was started.
    pub fn start(&mut self, transfer: &Transfer<'_>) -> Result<(), CopyError> {
        self.keep(transfer.memory);
        self.start_list(0, iter::once(Step::Copy { transfer: *transfer, is_ordered: false }))
    }

    /// Starts a list, each step after those before it but for unordered copies: all copies in
    /// one direction, of [kept](Self::keep) memory, and words that the stream
    /// [stores](Self::word_stores).
    ///
    /// # Errors
    /// As [`Self::start`].
    pub(crate) fn start_list<'a>(
        &mut self,
        number: u32,
        steps: impl Iterator<Item = Step<'a>> + Clone,
    ) -> Result<(), CopyError> {
        if let Some(error) = &self.broken {
            return Err(CopyError::Cuda(error.clone()));
        }
        if self.in_flight() == MAX_LISTS {
            return Err(CopyError::Full);
        }
        steps.clone().try_for_each(|step| self.check(&step))?;
        let mut watch = self.watch(steps.clone());
        let Self { stream, entries, mark, lists, next, .. } = self;
        let _bound = stream.context().bind()?;
        let (last, number_of_mark) = mark.as_ref().map(Mark::next).unzip();
        let mut given = Given::default();
        // SAFETY: each step was checked just now, and its memory is kept. What else the caller
        // does with that is undefined there, as he knows.
        let failed = unsafe { lists.give(stream, steps, last, &mut given) }.err();
        if let (Some(error), false) = (&failed, given.some) {
            // Nothing is under way: who asked may use its memory at once.
            return Err(CopyError::Cuda(error.clone()));
        }
        watch = watch.filter(|_| failed.is_none());
        let entry = &mut entries[(*next % MAX_LISTS as u64) as usize];
        // What was started is under way, so a failure is told when that is done.
        (entry.number, entry.failed) = (number, failed);
        entry.mark = number_of_mark.unwrap_or(0);
        entry.end = match (watch, mark) {
            (Some(watch), _) => End::Bytes { watch, recorded: false },
            (None, Some(mark)) if given.marked => {
                mark.count();
                End::Mark
            }
            (None, _) => match entry.event.record(stream) {
                Ok(()) => End::Event,
                Err(error) => {
                    entry.failed.get_or_insert(error);
                    End::Stream
                }
            },
        };
        *next += 1;
        Ok(())
    }

    /// Whether something may be started on these bytes.
    fn check(&self, step: &Step<'_>) -> Result<(), CopyError> {
        let (range, addr, len, fits) = match *step {
            Step::Copy { transfer: Transfer { range, addr, memory, offset, len, .. }, .. } => {
                let fits = offset.checked_add(len).is_some_and(|end| end <= memory.len());
                (range, addr, len, fits && len > 0 && self.keeps(memory))
            }
            Step::Store { word, .. } => {
                let (addr, len) = (word.addr, word.width.bytes());
                (word.range, addr, len, addr % len == 0)
            }
        };
        if !fits || !range.contains(addr, len) {
            return Err(CopyError::Bounds { addr, len });
        }
        // Any context of a device reaches all memory of it.
        if !range.context().has_device_of(self.context()) {
            let (memory, engine) = (range.context().to_string(), self.context().to_string());
            return Err(CopyError::Context { memory, engine });
        }
        Ok(())
    }

    /// The bytes to watch of a list that is one copy to the host.
    fn watch<'a>(&self, mut steps: impl Iterator<Item = Step<'a>>) -> Option<Watch> {
        let (Some(Step::Copy { transfer, .. }), None) = (steps.next(), steps.next()) else {
            return None;
        };
        let Transfer { direction, range, addr, memory, offset, len } = transfer;
        // What is managed may be copied by the CPU, byte by byte.
        let of_device = matches!(range.kind(), Kind::Device | Kind::DevicePool);
        let sides = (memory.addr() + offset, addr);
        let alone = self.in_flight() == 0;
        // SAFETY: checked and kept, and nobody else uses them, as the caller of `start` knows.
        let watch = || unsafe { Watch::new(sides, len, self.next, alone) };
        (direction == Direction::FromDevice && of_device).then(watch).flatten()
    }

    /// The number of the oldest list under way.
    #[inline]
    pub(crate) fn oldest(&self) -> Option<u32> {
        let entry = &self.entries[(self.first % MAX_LISTS as u64) as usize];
        (self.in_flight() > 0).then_some(entry.number)
    }

    /// How the oldest list has ended. None when it is under way still, or nothing is. After an
    /// error the destination is undefined. The driver is asked each time, but of stored words and
    /// short copies to the host only now and then, whether all is well.
    #[inline]
    pub fn poll(&mut self) -> Option<Result<(), CudaError>> {
        if self.in_flight() == 0 {
            return None;
        }
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
        let entry = &mut self.entries[(self.first % MAX_LISTS as u64) as usize];
        self.first += 1;
        Some(failed.or(entry.failed.take()).map_or(Ok(()), Err))
    }

    #[inline]
    fn oldest_is_done(&mut self) -> Result<bool, CudaError> {
        let Self { stream, entries, mark, first, looks, .. } = self;
        let entry = &mut entries[(*first % MAX_LISTS as u64) as usize];
        let marked = mark.as_ref().is_some_and(|mark| mark.reached(entry.mark));
        let (done, most) = match &mut entry.end {
            End::Mark => (marked, LOOKS_AT_MARK),
            // SAFETY: the host's side is kept.
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

impl Drop for CopyEngine {
    /// Waits for what is under way, so that its memory can be freed. What does not end in
    /// [`PATIENCE`] keeps its memory for ever: the device may still write to it.
    fn drop(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        while self.in_flight() > 0 {
            if self.poll().is_some() {
                continue;
            }
            if Instant::now() > deadline {
                log::error!(
                    target: MEM,
                    "{} copies on {} do not end; their memory is not freed",
                    self.in_flight(),
                    self.context(),
                );
                std::mem::forget((std::mem::take(&mut self.kept), self.mark.take()));
                return;
            }
            thread::sleep(Duration::from_micros(100));
        }
    }
}
