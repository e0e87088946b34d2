//! Words in device memory by way of the driver: stream memory operations and small copies. It works
//! wherever copies do, and costs a trip to the device for each word.

use std::hint;
use std::ptr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

#[cfg(doc)]
use crate::cuda::copy::MOST_WRITES;
use crate::cuda::copy::engine::CopyEngine;
use crate::cuda::copy::request::{Direction, PinnedTransfer, StartError, Ticket, Word};
use crate::cuda::driver::context::Context;
use crate::cuda::driver::error::{CudaError, code};
use crate::cuda::memory::pinned::PinnedMemory;
use crate::cuda::memory::range::DeviceRange;

/// Words by a stream of their own. One thing is under way at a time.
#[derive(Debug)]
pub(crate) struct StreamWords {
    engine: CopyEngine,
    /// Where bytes wait to be copied.
    scratch: Arc<PinnedMemory>,
    /// How long the device may take for a word.
    patience: Duration,
    /// Set when it took longer: it is not asked again.
    stuck: Option<CudaError>,
}

/// Bytes that one copy moves: the longest message of the engine.
const SCRATCH: usize = 256;

impl StreamWords {
    pub(crate) fn new(context: &Arc<Context>, patience: Duration) -> Result<Self, CudaError> {
        // One for the word asked for, the rest is never used but after a time-out.
        let engine = CopyEngine::new(context, 2)?;
        let scratch = PinnedMemory::new(context, SCRATCH)?;
        Ok(Self { engine, scratch, patience, stuck: None })
    }

    pub(crate) fn engine(&self) -> &CopyEngine {
        &self.engine
    }

    pub(crate) fn load(&mut self, word: &Word<'_>) -> Result<u64, StartError> {
        self.alive()?;
        let ticket = self.engine.start_load(word)?;
        self.wait(ticket, word.addr)
    }

    pub(crate) fn store(&mut self, word: &Word<'_>, value: u64) -> Result<(), StartError> {
        self.alive()?;
        let ticket = self.engine.start_store(word, value)?;
        self.wait(ticket, word.addr).map(drop)
    }

    /// Stores words that the engine stores by operations, in their order; at most [`MOST_WRITES`]. All are there when it
    /// returns.
    pub(crate) fn store_all<'w>(
        &mut self,
        words: impl Iterator<Item = (Word<'w>, u64)> + Clone,
    ) -> Result<(), StartError> {
        self.alive()?;
        let Some((first, _)) = words.clone().next() else { return Ok(()) };
        match self.engine.start_stores(words.clone()) {
            Ok(ticket) => self.wait(ticket, first.addr).map(drop),
            // Some drivers list what they refuse. A store alone finds another way, also of what was stored already.
            Err(StartError::Cuda(error)) if error.code == code::NOT_SUPPORTED => {
                for (word, value) in words {
                    self.store(&word, value)?;
                }
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Loads bytes, all of which are in the range.
    pub(crate) fn load_bytes(
        &mut self,
        range: &DeviceRange,
        addr: usize,
        into: &mut [u8],
    ) -> Result<(), StartError> {
        let mut at = addr;
        for part in into.chunks_mut(SCRATCH) {
            self.copy_scratch(Direction::FromDevice, range, at, part.len())?;
            // SAFETY: the scratch has these bytes, the copy into it has ended, and no other is under
            // way: one that did not end has set `stuck`, and nothing is copied after it.
            unsafe {
                ptr::copy_nonoverlapping(
                    self.scratch.addr() as *const u8,
                    part.as_mut_ptr(),
                    part.len(),
                );
            }
            at += part.len();
        }
        Ok(())
    }

    /// Stores bytes, all of which are to be in the range.
    pub(crate) fn store_bytes(
        &mut self,
        range: &DeviceRange,
        addr: usize,
        bytes: &[u8],
    ) -> Result<(), StartError> {
        let mut at = addr;
        for part in bytes.chunks(SCRATCH) {
            self.alive()?;
            // SAFETY: the scratch has room for these bytes, and no copy from it is under way: one
            // that did not end has set `stuck`.
            unsafe {
                ptr::copy_nonoverlapping(part.as_ptr(), self.scratch.addr() as *mut u8, part.len());
            }
            self.copy_scratch(Direction::ToDevice, range, at, part.len())?;
            at += part.len();
        }
        Ok(())
    }

    fn copy_scratch(
        &mut self,
        direction: Direction,
        range: &DeviceRange,
        addr: usize,
        len: usize,
    ) -> Result<(), StartError> {
        self.alive()?;
        let memory = &self.scratch;
        let transfer = PinnedTransfer { direction, range, addr, memory, offset: 0, len };
        let ticket = self.engine.start_pinned(&transfer)?;
        self.wait(ticket, addr).map(drop)
    }

    fn alive(&self) -> Result<(), StartError> {
        match &self.stuck {
            Some(error) => Err(StartError::Cuda(error.clone())),
            None => Ok(()),
        }
    }

    fn wait(&mut self, ticket: Ticket, addr: usize) -> Result<u64, StartError> {
        /// Polls before the processor is offered to others: what a word takes, as a poll is a look at memory.
        const SPINS: u32 = 256;
        let start = Instant::now();
        let mut polls = 0;
        loop {
            if let Some(completed) = self.engine.poll() {
                if completed.ticket == ticket {
                    return Ok(completed.result?);
                }
                continue;
            }
            polls += 1;
            if polls < SPINS {
                hint::spin_loop();
                continue;
            }
            if start.elapsed() > self.patience {
                return Err(self.give_up(addr).into());
            }
            thread::yield_now();
        }
    }

    #[cold]
    fn give_up(&mut self, addr: usize) -> CudaError {
        let context = self.engine.context();
        let error = CudaError {
            call: "cuStreamQuery",
            subject: format!("the word at {addr:#x} of {context}"),
            code: code::TIMEOUT,
            name: String::from("CUDA_ERROR_TIMEOUT"),
            text: format!("the device did not finish in {:?}", self.patience),
        };
        self.stuck = Some(error.clone());
        error
    }
}
