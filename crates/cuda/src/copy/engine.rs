//! A copy engine: copies and words between host and device, which run beside the CPU.
//!
//! An engine is a stream of its own. What is started on it runs in the order of starting, and what
//! is done is told in that order. So a word stored behind a copy is there after the copy's bytes,
//! with no waiting in between.

use std::iter;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::MEM;
use crate::copy::batch::Write;
use crate::copy::queue::{Checked, CopyQueue, Piece, Step, store_host};
use crate::copy::request::{
    Completed, Direction, PinnedTransfer, StartError, Ticket, Transfer, Word,
};
use crate::driver::context::Context;
use crate::driver::error::{CudaError, code};
use crate::memory::pinned::PinnedMemory;
use crate::memory::pointer::Kind;
use crate::memory::range::DeviceRange;
use ::engine::atomic::Width;

/// What is started in its order.
#[derive(Clone, Copy, Debug)]
pub(crate) enum InOrder<'a> {
    /// A copy to the device, and whether it comes behind all before it; else nothing orders it and
    /// the copies right before it.
    Copy(PinnedTransfer<'a>, bool),
    /// A store of a word, behind all before it.
    Store(Word<'a>, u64),
}

/// A stream for copies and words, with what is under way on it.
///
/// Starting and polling allocate nothing and never wait, unless something fails. An engine belongs
/// to one thread at a time. Devices copy both ways at once: use one engine for each direction.
#[derive(Debug)]
pub struct CopyEngine {
    /// Not dropped when what is under way does not end: see [`Drop`].
    queue: ManuallyDrop<CopyQueue>,
}

const PATIENCE: Duration = Duration::from_secs(10);

impl CopyEngine {
    /// Makes an engine that has up to `depth` things under way; at least one.
    ///
    /// # Errors
    /// As the driver answers, for one when there is no page-locked memory left.
    pub fn new(context: &Arc<Context>, depth: usize) -> Result<Self, CudaError> {
        Ok(Self { queue: ManuallyDrop::new(CopyQueue::new(context, depth.max(1))?) })
    }

    /// Cuts short copies to the device into rows from now on, if `rows`: copy engines do them then,
    /// also beside a kernel of another context.
    pub fn set_rows(&mut self, rows: bool) {
        self.queue.rows = rows;
    }

    /// Its context.
    pub fn context(&self) -> &Arc<Context> {
        self.queue.context()
    }

    /// How many things are under way, done ones that were not polled yet among them.
    pub fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }

    /// How many it takes at once.
    pub fn depth(&self) -> usize {
        self.queue.depth()
    }

    /// Whether words of a width in memory of the device are stored by stream memory operations, and
    /// not by copies.
    pub fn writes_words(&self, width: Width) -> bool {
        match width {
            Width::Two => false,
            Width::Four => self.queue.write_32,
            Width::Eight => self.queue.write_64,
        }
    }

    /// Whether the stream's marks tell when words are stored, and not events.
    pub fn has_mark(&self) -> bool {
        self.queue.has_mark()
    }

    /// For tests: as if so many things had been done on it, and so many words stored with a mark.
    /// Nothing is under way.
    #[doc(hidden)]
    pub fn count_from(&mut self, tickets: u64, marks: u32) {
        self.queue.count_from(tickets, marks);
    }

    /// Starts a copy. A range that crosses borders of allocations is copied piece by piece. A part
    /// of the bounce buffer that is copied into may be written to at once, so no copy out of it may
    /// be under way, not even one that was started before.
    ///
    /// # Errors
    /// When it does not fit, and when the driver refuses it; then nothing was started.
    #[inline]
    pub fn start(&mut self, transfer: &Transfer<'_>) -> Result<Ticket, StartError> {
        let Transfer { direction, range, addr, bounce, offset, len } = *transfer;
        let fits = offset.checked_add(len).is_some_and(|end| end <= bounce.len());
        if !fits {
            return Err(StartError::Bounds { addr, len });
        }
        let memory = bounce.memory();
        let offset = bounce.addr() - memory.addr() + offset;
        self.start_pinned(&PinnedTransfer { direction, range, addr, memory, offset, len })
    }

    /// As [`Self::start`], for who shares page-locked memory out by himself. What is copied into a
    /// part of it that is in other use meanwhile is undefined there, and so is what is copied out,
    /// also by what was started before.
    ///
    /// # Errors
    /// As [`Self::start`].
    #[inline]
    pub fn start_pinned(&mut self, transfer: &PinnedTransfer<'_>) -> Result<Ticket, StartError> {
        self.check(transfer)?;
        let PinnedTransfer { direction, range, addr, memory, offset, len } = *transfer;
        let copy = Checked { direction, range, addr, host: memory.addr() + offset, len };
        // SAFETY: the memory has these bytes, and is kept until the copy has ended.
        unsafe { self.queue.copy(&copy, Some(Arc::clone(memory)), None, true) }
    }

    #[inline]
    fn check(&self, transfer: &PinnedTransfer<'_>) -> Result<(), StartError> {
        let PinnedTransfer { range, addr, memory, offset, len, .. } = *transfer;
        let fits = offset.checked_add(len).is_some_and(|end| end <= memory.len());
        if !fits || len == 0 {
            return Err(StartError::Bounds { addr, len });
        }
        self.queue.check(range, addr, len)
    }

    #[inline]
    fn check_with_others(&self, transfer: &PinnedTransfer<'_>) -> Result<(), StartError> {
        if !self.queue.keeps(transfer.memory) {
            return Err(StartError::Bounds { addr: transfer.addr, len: transfer.len });
        }
        self.check(transfer)
    }

    pub(crate) fn gives_together(&self) -> bool {
        self.queue.gives_together()
    }

    pub(crate) fn keep(&mut self, memory: &Arc<PinnedMemory>) {
        self.queue.keep(memory);
    }

    /// Starts several copies in one direction as one thing, in no order. The caller has said of
    /// their page-locked memory that it is [kept](Self::keep).
    ///
    /// # Errors
    /// As [`Self::start`]; then none was started.
    pub(crate) fn start_many<'a>(
        &mut self,
        transfers: impl Iterator<Item = PinnedTransfer<'a>>,
    ) -> Result<Ticket, StartError> {
        self.queue.begin_many();
        let mut way = Direction::ToDevice;
        for transfer in transfers {
            self.check_with_others(&transfer)?;
            let PinnedTransfer { direction, range, addr, memory, offset, len } = transfer;
            for piece in Piece::of(range, addr, memory, offset, len) {
                self.queue.add_piece(piece);
            }
            way = direction;
        }
        // SAFETY: each was checked just now, and its memory is kept by the queue; what is in other
        // use meanwhile is undefined there, as the functions before say.
        unsafe { self.queue.give_many(way) }
    }

    /// Starts copies to the device and stores of words that [`Self::stores_by_operation`] in their
    /// order, as one thing. The caller has said of their page-locked memory that
    /// it is [kept](Self::keep).
    ///
    /// # Errors
    /// As [`Self::start`]; then none was started.
    pub(crate) fn start_in_order<'a>(
        &mut self,
        steps: impl Iterator<Item = InOrder<'a>> + Clone,
    ) -> Result<Ticket, StartError> {
        for step in steps.clone() {
            match step {
                InOrder::Copy(transfer, _) => self.check_with_others(&transfer)?,
                InOrder::Store(word, _) => self.queue.check_word(&word)?,
            }
        }
        let steps = steps.map(|step| match step {
            InOrder::Copy(transfer, behind) => Step::Copy(transfer, behind),
            InOrder::Store(word, value) => Step::Store(Write::new(&word, value)),
        });
        // SAFETY: each was checked just now, and its memory is kept by the queue.
        unsafe { self.queue.in_order(steps) }
    }

    /// Starts a store of a word. It is there after everything started before.
    ///
    /// # Errors
    /// As [`Self::start`].
    #[inline]
    pub fn start_store(&mut self, word: &Word<'_>, value: u64) -> Result<Ticket, StartError> {
        self.queue.check_word(word)?;
        if self.stores_by_operation(word.range, word.width) {
            match self.queue.write_all(iter::once((*word, value))) {
                // Some drivers list the function and refuse it. Then copies do it from now on.
                Err(StartError::Cuda(error)) if error.code == code::NOT_SUPPORTED => {
                    match word.width {
                        Width::Eight => self.queue.write_64 = false,
                        _ => self.queue.write_32 = false,
                    }
                }
                // Or they refuse some memory.
                Err(StartError::Cuda(error)) if error.code == code::INVALID_VALUE => {}
                other => return other,
            }
        }
        let copy = self.word_copy(Direction::ToDevice, word);
        // SAFETY: the word of a free entry, which nobody uses.
        unsafe { store_host(copy.host, word.width, value) };
        // SAFETY: checked above. The engine's own word stays as long as the engine's work.
        unsafe { self.queue.copy(&copy, None, None, false) }
    }

    /// Starts stores of several words, at most [`MOST_WRITES`], each of which
    /// [`Self::stores_by_operation`]: as one thing, in their order.
    ///
    /// # Errors
    /// As [`Self::start_store`].
    pub(crate) fn start_stores<'w>(
        &mut self,
        words: impl Iterator<Item = (Word<'w>, u64)> + Clone,
    ) -> Result<Ticket, StartError> {
        for (word, _) in words.clone() {
            self.queue.check_word(&word)?;
        }
        self.queue.write_all(words)
    }

    #[inline]
    pub(crate) fn stores_by_operation(&self, range: &DeviceRange, width: Width) -> bool {
        // The driver refuses them for managed memory and for a pool's, and copies always do.
        self.writes_words(width) && range.kind() == Kind::Device
    }

    /// Starts a load of a word: it has the value of after everything started before.
    ///
    /// # Errors
    /// As [`Self::start`].
    #[inline]
    pub fn start_load(&mut self, word: &Word<'_>) -> Result<Ticket, StartError> {
        self.queue.check_word(word)?;
        let copy = self.word_copy(Direction::FromDevice, word);
        // SAFETY: checked above. The engine's own word stays as long as the engine's work.
        unsafe { self.queue.copy(&copy, None, Some(word.width), true) }
    }

    fn word_copy<'a>(&self, direction: Direction, word: &Word<'a>) -> Checked<'a> {
        let (range, addr, len) = (word.range, word.addr, word.width.bytes());
        Checked { direction, range, addr, host: self.queue.next_word(), len }
    }

    /// The next thing that is done, in the order of starting. None when the oldest is under way
    /// still, or nothing is. Of words that are stored and short copies to the host the driver is
    /// asked only now and then, whether all is well; of other copies each time.
    #[inline]
    pub fn poll(&mut self) -> Option<Completed> {
        if self.queue.in_flight() == 0 { None } else { self.queue.poll() }
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
                return;
            }
            thread::sleep(Duration::from_micros(100));
        }
        // SAFETY: dropped once, here, and not used after.
        unsafe { ManuallyDrop::drop(&mut self.queue) };
    }
}
