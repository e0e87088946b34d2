//! Copies between host and device that run beside the CPU.
//!
//! An engine is a stream of its own. What is started on it runs in the order of starting, and what
//! is done is told in that order. So a word stored behind a copy is there after the copy's bytes,
//! with no waiting in between.

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::cuda::copy::queue::{Checked, Ring, store_host};
use crate::cuda::driver::context::Context;
use crate::cuda::driver::error::{CudaError, code};
use crate::cuda::memory::pinned::{Chunk, PinnedMemory};
use crate::cuda::memory::pointer::Kind;
use crate::cuda::memory::range::DeviceRange;
use crate::engine::atomic::Width;
use crate::logging;

/// Something that an engine was given to do. Numbered in the order of starting, from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub u64);

/// Which way a copy goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From the chunk to the device.
    ToDevice,
    /// From the device to the chunk.
    FromDevice,
}

/// A copy between a range of a device and a page-locked chunk.
#[derive(Clone, Copy, Debug)]
pub struct Transfer<'a> {
    /// Which way.
    pub direction: Direction,
    /// The memory that the driver reaches.
    pub range: &'a DeviceRange,
    /// The first address in it.
    pub addr: usize,
    /// The host's side.
    pub chunk: &'a Chunk,
    /// Where in the chunk, in bytes.
    pub offset: usize,
    /// How many bytes.
    pub len: usize,
}

/// A copy between a range of a device and any part of page-locked memory.
#[derive(Clone, Copy, Debug)]
pub struct PinnedTransfer<'a> {
    /// Which way.
    pub direction: Direction,
    /// The memory that the driver reaches.
    pub range: &'a DeviceRange,
    /// The first address in it.
    pub addr: usize,
    /// The host's side.
    pub memory: &'a Arc<PinnedMemory>,
    /// Where in that, in bytes.
    pub offset: usize,
    /// How many bytes.
    pub len: usize,
}

/// A word in device memory, aligned to its width.
#[derive(Clone, Copy, Debug)]
pub struct Word<'a> {
    /// The memory that the driver reaches.
    pub range: &'a DeviceRange,
    /// Its address in it.
    pub addr: usize,
    /// Its width.
    pub width: Width,
}

/// Why something could not be started. Nothing was.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum StartError {
    /// As much is under way as the engine takes. Poll, and try again.
    #[error("as many copies are under way as the engine takes")]
    Full,
    /// The range, the chunk or the word does not have these bytes.
    #[error("{len} bytes at {addr:#x} are not in the range, not in the chunk, or not aligned")]
    Bounds {
        /// The address in the range.
        addr: usize,
        /// How many bytes.
        len: usize,
    },
    /// The memory belongs to another context than the engine.
    #[error("memory of {memory} cannot be copied by an engine of {engine}")]
    Context {
        /// The memory's.
        memory: String,
        /// The engine's.
        engine: String,
    },
    /// The driver refused it, or something before it has failed and the engine with it.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

/// Something that is done, or has failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Completed {
    /// What.
    pub ticket: Ticket,
    /// For a load, the word. For anything else, 0. After an error the bytes at the destination are
    /// undefined, and the memory on both sides is no longer used.
    pub result: Result<u64, CudaError>,
}

/// A stream for copies and words, with what is under way on it.
///
/// Starting and polling allocate nothing and never wait, unless something fails. An engine belongs
/// to one thread at a time. Devices copy both ways at once: use one engine for each direction.
#[derive(Debug)]
pub struct CopyEngine {
    /// Not dropped when what is under way does not end: see [`Drop`].
    ring: ManuallyDrop<Ring>,
}

/// How long a dropped engine waits for what is under way.
const PATIENCE: Duration = Duration::from_secs(10);

impl CopyEngine {
    /// Makes an engine that has up to `depth` things under way; at least one.
    ///
    /// # Errors
    /// As the driver answers, for one when there is no page-locked memory left.
    pub fn new(context: &Arc<Context>, depth: usize) -> Result<Self, CudaError> {
        Ok(Self { ring: ManuallyDrop::new(Ring::new(context, depth.max(1))?) })
    }

    /// Its context.
    pub fn context(&self) -> &Arc<Context> {
        self.ring.context()
    }

    /// How many things are under way, done ones that were not polled yet among them.
    pub fn in_flight(&self) -> usize {
        self.ring.in_flight()
    }

    /// How many it takes at once.
    pub fn depth(&self) -> usize {
        self.ring.depth()
    }

    /// Whether words of a width in memory of the device are stored by stream memory operations, and not
    /// by copies.
    pub fn writes_words(&self, width: Width) -> bool {
        match width {
            Width::Two => false,
            Width::Four => self.ring.write_32,
            Width::Eight => self.ring.write_64,
        }
    }

    /// Starts a copy. A range that crosses borders of allocations is copied piece by piece.
    ///
    /// # Errors
    /// When it does not fit, and when the driver refuses it; then nothing was started.
    #[inline]
    pub fn start(&mut self, transfer: &Transfer<'_>) -> Result<Ticket, StartError> {
        let Transfer { direction, range, addr, chunk, offset, len } = *transfer;
        let fits = offset.checked_add(len).is_some_and(|end| end <= chunk.len());
        if !fits {
            return Err(StartError::Bounds { addr, len });
        }
        let memory = chunk.memory();
        let offset = chunk.addr() - memory.addr() + offset;
        self.start_pinned(&PinnedTransfer { direction, range, addr, memory, offset, len })
    }

    /// As [`Self::start`], for who shares page-locked memory out by himself. What is copied into a part
    /// of it that is in other use meanwhile is undefined there, and so is what is copied out.
    ///
    /// # Errors
    /// As [`Self::start`].
    #[inline]
    pub fn start_pinned(&mut self, transfer: &PinnedTransfer<'_>) -> Result<Ticket, StartError> {
        let PinnedTransfer { direction, range, addr, memory, offset, len } = *transfer;
        let fits = offset.checked_add(len).is_some_and(|end| end <= memory.len());
        if !fits || len == 0 {
            return Err(StartError::Bounds { addr, len });
        }
        self.ring.check(range, addr, len)?;
        let copy = Checked { direction, range, addr, host: memory.addr() + offset, len };
        // SAFETY: the memory has these bytes, and is kept until the copy has ended.
        unsafe { self.ring.copy(&copy, Some(Arc::clone(memory)), None) }
    }

    /// Starts a copy between a range and host memory of any kind. When that is not page-locked the
    /// driver copies before it returns, and may wait for the device.
    ///
    /// # Errors
    /// As [`Self::start`].
    ///
    /// # Safety
    /// `host` is valid for `len` bytes, to be read or written as the direction says, until the
    /// ticket was polled; no reference to them is used until then. An engine that is dropped before
    /// may give up on the copy, so then the memory is never freed.
    pub unsafe fn start_raw(
        &mut self,
        direction: Direction,
        range: &DeviceRange,
        addr: usize,
        host: usize,
        len: usize,
    ) -> Result<Ticket, StartError> {
        if len == 0 {
            return Err(StartError::Bounds { addr, len });
        }
        self.ring.check(range, addr, len)?;
        // SAFETY: the caller's promise.
        unsafe { self.ring.copy(&Checked { direction, range, addr, host, len }, None, None) }
    }

    /// Starts a store of a word. It is there after everything started before.
    ///
    /// # Errors
    /// As [`Self::start`].
    #[inline]
    pub fn start_store(&mut self, word: &Word<'_>, value: u64) -> Result<Ticket, StartError> {
        self.ring.check_word(word)?;
        // The driver refuses them for managed memory, and copies always do.
        if self.writes_words(word.width) && word.range.kind() == Kind::Device {
            match self.ring.write(word, value) {
                // Some drivers list the function and refuse it. Then copies do it from now on.
                Err(StartError::Cuda(error)) if error.code == code::NOT_SUPPORTED => {
                    match word.width {
                        Width::Eight => self.ring.write_64 = false,
                        _ => self.ring.write_32 = false,
                    }
                }
                other => return other,
            }
        }
        let copy = self.word_copy(Direction::ToDevice, word);
        // SAFETY: the word of a free entry, which nobody uses.
        unsafe { store_host(copy.host, word.width, value) };
        // SAFETY: checked above. The engine's own word stays as long as the engine's work.
        unsafe { self.ring.copy(&copy, None, None) }
    }

    /// Starts a load of a word: it has the value of after everything started before.
    ///
    /// # Errors
    /// As [`Self::start`].
    #[inline]
    pub fn start_load(&mut self, word: &Word<'_>) -> Result<Ticket, StartError> {
        self.ring.check_word(word)?;
        let copy = self.word_copy(Direction::FromDevice, word);
        // SAFETY: checked above. The engine's own word stays as long as the engine's work.
        unsafe { self.ring.copy(&copy, None, Some(word.width)) }
    }

    /// The copy of a word from or to the page-locked word of the next entry.
    fn word_copy<'a>(&self, direction: Direction, word: &Word<'a>) -> Checked<'a> {
        let (range, addr, len) = (word.range, word.addr, word.width.bytes());
        Checked { direction, range, addr, host: self.ring.next_word(), len }
    }

    /// The next thing that is done, in the order of starting. None when the oldest is under way
    /// still, or nothing is. Asks the driver once, or not at all.
    #[inline]
    pub fn poll(&mut self) -> Option<Completed> {
        if self.ring.in_flight() == 0 { None } else { self.ring.poll() }
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
                    target: logging::MEM,
                    "{} copies on {} do not end; their memory is not freed",
                    self.in_flight(),
                    self.context(),
                );
                return;
            }
            thread::sleep(Duration::from_micros(100));
        }
        // SAFETY: dropped once, here, and not used after.
        unsafe { ManuallyDrop::drop(&mut self.ring) };
    }
}
