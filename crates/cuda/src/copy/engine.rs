//! A copy engine: a stream for batches of copies and words.
//!
//! Batches run, and are reported as done, in the order in which they were started. So a word that
//! is stored after a copy becomes visible after the copy's bytes, without a wait in between.
//!
//! A batch is the stream's or the [resident kernel](ResidentKernel)'s. The two are not in order, so
//! only one of them has batches of an engine in flight.

use std::iter;
use std::sync::Arc;
use std::time::Duration;

use crate::MEM;
use crate::copy::batch::{BatchSubmitter, Submitted};
use crate::copy::progress::{self, PatternWatch, ProgressCounter};
use crate::copy::request::{CopyError, Direction, StreamOp, Transfer, WordStores};
use crate::copy::resident::ResidentKernel;
use crate::driver::context::Context;
use crate::driver::device::Device;
use crate::driver::error::CudaError;
use crate::driver::stream::{Event, Stream, wait_for};
use crate::memory::pinned_memory::PinnedMemory;
use crate::memory::pointer::Kind;
use crate::memory::range::fits;

/// Maximum number of batches in flight: one that the device executes, and one after it. Operations
/// that arrive meanwhile share the next.
pub(crate) const MAX_BATCHES: usize = 2;

/// A stream for copies and words, and the batches in flight on it.
///
/// Starting and polling never wait, and allocate only to hold new page-locked memory. One thread at
/// a time uses an engine. Devices copy both ways at once: use one engine for each direction.
#[derive(Debug)]
pub struct CopyEngine {
    stream: Stream,
    batches: [Batch; MAX_BATCHES],
    /// Numbers of the oldest batch in flight and of the next to start, from 0.
    first: u64,
    next: u64,
    /// None if the stream cannot set it.
    counter: Option<ProgressCounter>,
    broken: Option<CudaError>,
    word_stores: WordStores,
    queue: BatchSubmitter,
    resident: Option<Arc<ResidentKernel>>,
    /// Page-locked memory of copies, until the engine is dropped.
    held: Vec<Arc<PinnedMemory>>,
    /// Polls since the driver was last asked about the oldest batch.
    polls: u32,
}

#[derive(Debug)]
struct Batch {
    /// The caller's number for it.
    number: u32,
    event: Event,
    done_by: DoneBy,
    /// The destination, if it is watched.
    watch: Option<PatternWatch>,
    /// Value of the counter at which the batch is done: its own, or that of the next batch with
    /// one. Or the resident kernel's number.
    sequence: u32,
    /// Error after part of the batch was started.
    failed: Option<CudaError>,
}

#[derive(Clone, Copy, Debug)]
enum DoneBy {
    /// The counter reaches its value.
    Counter,
    /// The destination's pattern is overwritten, or as [`DoneBy::Event`] once `recorded`.
    Bytes { recorded: bool },
    /// Its event has completed, or the counter has reached a later value.
    Event,
    /// The whole stream is idle: the event could not be recorded.
    Stream,
    /// The resident kernel has reported its orders, or the destination's pattern is overwritten.
    Resident,
}

/// Polls of a destination between two questions to the driver, the first of which records an event:
/// the bytes may equal the pattern.
const POLLS_OF_BYTES: u32 = 256;

/// Polls of the counter between two questions to the driver: a failed context never advances it.
const POLLS_OF_COUNTER: u32 = 1024;

/// Polls between two looks at a resident kernel that has not ended.
const POLLS_OF_RESIDENT: u32 = 128;

const PATIENCE: Duration = Duration::from_secs(10);

impl CopyEngine {
    /// Creates an engine. May wait for all work on the device.
    pub fn new(context: &Arc<Context>) -> Result<Self, CudaError> {
        let stream = Stream::new(context)?;
        let word = PinnedMemory::new(context, progress::BYTES)?;
        let counter = ProgressCounter::new(&stream, word)
            .inspect_err(|reason| {
                log::info!(target: MEM, "events tell when words of {context} are stored, which is slower: {reason}");
            })
            .ok();
        let batch = || {
            let event = Event::new(context)?;
            let (done_by, watch) = (DoneBy::Stream, None);
            Ok(Batch { number: 0, event, done_by, watch, sequence: 0, failed: None })
        };
        let batches = [batch()?, batch()?];
        let driver = context.driver();
        let attributes = Device::new(driver, context.device())?.attributes()?;
        let word_stores = WordStores {
            four: driver.api.cuStreamWriteValue32_v2.is_some(),
            eight: driver.api.cuStreamWriteValue64_v2.is_some() && attributes.stream_write_64,
        };
        let (queue, held) = (BatchSubmitter::new(driver), Vec::new());
        let (first, next, broken, polls, resident) = (0, 0, None, 0, None);
        Ok(Self {
            stream,
            batches,
            first,
            next,
            counter,
            broken,
            word_stores,
            queue,
            resident,
            held,
            polls,
        })
    }

    /// Sets whether copies go in rows from now on: short ones to the device, which its copy engines
    /// then execute, also beside a kernel of another context, and equal ones from it.
    pub(crate) fn set_rows(&mut self, rows: bool) {
        self.queue.rows = rows;
    }

    /// Sets the kernel that executes short batches from now on, in the same context.
    pub(crate) fn set_resident(&mut self, resident: Option<&Arc<ResidentKernel>>) {
        self.resident = resident.map(Arc::clone);
    }

    pub fn context(&self) -> &Arc<Context> {
        self.stream.context()
    }

    /// Returns the number of batches in flight, including those that are done and not polled.
    #[inline]
    pub fn in_flight(&self) -> usize {
        (self.next - self.first) as usize
    }

    #[inline]
    pub(crate) fn word_stores(&self) -> WordStores {
        self.word_stores
    }

    pub(crate) fn hold(&mut self, memory: &Arc<PinnedMemory>) {
        if !self.holds(memory) {
            self.held.push(Arc::clone(memory));
        }
    }

    fn holds(&self, memory: &Arc<PinnedMemory>) -> bool {
        self.held.iter().any(|held| Arc::ptr_eq(held, memory))
    }

    /// Starts a copy. A range of several allocations is copied piece by piece. If the page-locked
    /// memory is in other use meanwhile, the copied bytes are undefined. It is held until the
    /// engine is dropped.
    ///
    /// # Errors
    /// The copy does not fit, or the driver refuses it. Nothing was started then.
    pub fn start(&mut self, transfer: &Transfer<'_>) -> Result<(), CopyError> {
        self.hold(transfer.memory);
        self.start_batch(0, iter::once(StreamOp::Copy { transfer: *transfer, is_ordered: false }))
    }

    /// Starts a batch, in which each operation but an unordered copy follows all before it. All
    /// copies are in one direction and of [held](Self::hold) memory; the stream can store the words
    /// ([`Self::word_stores`]).
    pub(crate) fn start_batch<'a>(
        &mut self,
        number: u32,
        ops: impl Iterator<Item = StreamOp<'a>> + Clone,
    ) -> Result<(), CopyError> {
        if let Some(error) = &self.broken {
            return Err(CopyError::Cuda(error.clone()));
        }
        if self.in_flight() == MAX_BATCHES {
            return Err(CopyError::Full);
        }
        ops.clone().try_for_each(|op| self.check(&op))?;
        let watch = self.watch(ops.clone());
        if self.start_at_resident(number, ops.clone(), watch)? {
            return Ok(());
        }
        let Self { stream, batches, counter, queue, next, .. } = self;
        let _bound = stream.context().bind()?;
        let (last, sequence) = counter.as_ref().map(ProgressCounter::next).unzip();
        let mut submitted = Submitted::default();
        // SAFETY: each operation was checked just now, and its memory is held. The caller knows
        // that other use of that memory leaves its bytes undefined.
        let failed = unsafe { queue.submit(stream, ops, last, &mut submitted) }.err();
        if let (Some(error), false) = (&failed, submitted.any) {
            // Nothing is in flight: the caller may use its memory at once.
            return Err(CopyError::Cuda(error.clone()));
        }
        let batch = &mut batches[(*next % MAX_BATCHES as u64) as usize];
        // A part is in flight, so the failure is reported when that part is done.
        (batch.number, batch.failed) = (number, failed);
        batch.watch = watch.filter(|_| batch.failed.is_none());
        batch.sequence = sequence.unwrap_or(0);
        batch.done_by = match (batch.watch, counter) {
            (Some(_), _) => DoneBy::Bytes { recorded: false },
            (None, Some(counter)) if submitted.counted => {
                counter.advance();
                DoneBy::Counter
            }
            (None, _) => match batch.event.record(stream) {
                Ok(()) => DoneBy::Event,
                Err(error) => {
                    batch.failed.get_or_insert(error);
                    DoneBy::Stream
                }
            },
        };
        *next += 1;
        Ok(())
    }

    /// Returns true if the batches in flight are the resident kernel's.
    pub(crate) fn is_at_resident(&self) -> bool {
        let last = &self.batches[(self.next.wrapping_sub(1) % MAX_BATCHES as u64) as usize];
        self.in_flight() > 0 && matches!(last.done_by, DoneBy::Resident)
    }

    /// Starts a batch at the resident kernel, if that takes it.
    fn start_at_resident<'a>(
        &mut self,
        number: u32,
        ops: impl Iterator<Item = StreamOp<'a>> + Clone,
        watch: Option<PatternWatch>,
    ) -> Result<bool, CopyError> {
        let is_there = self.is_at_resident();
        let Some(resident) = self.resident.as_ref().filter(|_| is_there || self.in_flight() == 0)
        else {
            return Ok(false);
        };
        let submitted = {
            let _bound = self.stream.context().bind()?;
            resident.submit(ops)
        };
        let Some(sequence) = submitted else {
            return if is_there { Err(CopyError::Full) } else { Ok(false) };
        };
        let batch = &mut self.batches[(self.next % MAX_BATCHES as u64) as usize];
        (batch.number, batch.failed, batch.watch) = (number, None, watch);
        (batch.done_by, batch.sequence) = (DoneBy::Resident, sequence);
        self.next += 1;
        Ok(true)
    }

    /// Checks that the bytes are inside their memory, aligned, and of the engine's device.
    fn check(&self, op: &StreamOp<'_>) -> Result<(), CopyError> {
        let (range, addr, len, fits) = match *op {
            StreamOp::Copy {
                transfer: Transfer { range, addr, memory, offset, len, .. }, ..
            } => {
                let fits = fits(offset, len, memory.len()) && len > 0 && self.holds(memory);
                (range, addr, len, fits)
            }
            StreamOp::Store { range, addr, width, .. } => {
                let len = width.bytes();
                (range, addr, len, addr % len == 0)
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

    /// Fills the destination of a batch that is one copy to the host with a pattern to watch.
    fn watch<'a>(&self, mut ops: impl Iterator<Item = StreamOp<'a>>) -> Option<PatternWatch> {
        let (Some(StreamOp::Copy { transfer, .. }), None) = (ops.next(), ops.next()) else {
            return None;
        };
        let Transfer { direction, range, addr, memory, offset, len } = transfer;
        // The CPU may copy managed memory, byte by byte.
        let of_device = matches!(range.kind(), Kind::Device | Kind::DevicePool);
        let sides = (memory.addr() + offset, addr);
        let alone = self.in_flight() == 0;
        // SAFETY: checked and held, and nobody else uses them, as the caller of `start` knows.
        let watch = || unsafe { PatternWatch::new(sides, len, self.next, alone) };
        (direction == Direction::FromDevice && of_device).then(watch).flatten()
    }

    #[inline]
    pub(crate) fn oldest(&self) -> Option<u32> {
        let batch = &self.batches[(self.first % MAX_BATCHES as u64) as usize];
        (self.in_flight() > 0).then_some(batch.number)
    }

    /// Returns the result of the oldest batch once it is done, else None. After an error the
    /// destination is undefined. Most polls of stored words and of short copies to the host are
    /// loads; the others call the driver.
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
                // The context has failed, and all its work with it.
                Err(error) => {
                    self.broken = Some(error.clone());
                    failed = Some(error);
                }
            }
        }
        let batch = &mut self.batches[(self.first % MAX_BATCHES as u64) as usize];
        self.first += 1;
        Some(failed.or(batch.failed.take()).map_or(Ok(()), Err))
    }

    #[inline]
    fn oldest_is_done(&mut self) -> Result<bool, CudaError> {
        let Self { stream, batches, counter, first, polls, resident, .. } = self;
        let batch = &mut batches[(*first % MAX_BATCHES as u64) as usize];
        let reached = counter.as_ref().is_some_and(|counter| counter.reached(batch.sequence));
        // SAFETY: page-locked memory that `held` keeps; until then only the device stores to it.
        let arrived = batch.watch.as_mut().is_some_and(|watch| unsafe { watch.has_arrived() });
        let (done, most) = match (batch.done_by, &*resident) {
            (DoneBy::Resident, Some(resident)) => {
                let most = if resident.has_ended() { 1 } else { POLLS_OF_RESIDENT };
                (arrived || resident.reached(batch.sequence), most)
            }
            (DoneBy::Counter, _) => (reached, POLLS_OF_COUNTER),
            (DoneBy::Bytes { .. }, _) => (reached || arrived, POLLS_OF_BYTES),
            (DoneBy::Event | DoneBy::Stream | DoneBy::Resident, _) => (reached, 1),
        };
        *polls = if done { 0 } else { *polls + 1 };
        if done || *polls < most {
            return Ok(done);
        }
        *polls = 0;
        let _bound = stream.context().bind()?;
        match &mut batch.done_by {
            DoneBy::Resident => {
                resident.as_ref().map_or(Ok(true), |it| it.attend().map(|()| false))
            }
            DoneBy::Bytes { recorded, .. } if !*recorded => {
                batch.event.record(stream)?;
                *recorded = true;
                Ok(false)
            }
            DoneBy::Bytes { .. } | DoneBy::Event => batch.event.is_done(),
            // An idle stream has done this batch as well.
            DoneBy::Counter | DoneBy::Stream => stream.is_done(),
        }
    }
}

impl Drop for CopyEngine {
    /// Waits for batches in flight, so that their memory can be freed. After `PATIENCE` the
    /// memory is leaked: the device may still write to it.
    fn drop(&mut self) {
        let is_done = || {
            while self.poll().is_some() {}
            self.in_flight() == 0
        };
        if !wait_for(PATIENCE, is_done) {
            log::error!(
                target: MEM,
                "{} copies on {} do not end; their memory is not freed",
                self.in_flight(),
                self.context(),
            );
            let held = std::mem::take(&mut self.held);
            std::mem::forget((held, self.counter.take(), self.resident.take()));
        }
    }
}
