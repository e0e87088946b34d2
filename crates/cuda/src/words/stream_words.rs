//! Words in device memory by way of the driver: stream memory operations and small copies. It works
//! wherever copies do, and costs a trip to the device for each word.

use std::hint;
use std::ptr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::copy::MOST_WRITES;
use crate::copy::engine::CopyEngine;
use crate::copy::request::{Direction, PinnedTransfer, StartError, Ticket, Word};
use crate::driver::context::Context;
use crate::driver::error::{CudaError, code};
use crate::memory::pinned::PinnedMemory;
use crate::memory::range::DeviceRange;
use crate::words::together::{self, Piece, Soon};
use engine::atomic::Width;
use engine::patience::Wait;

/// Words by a stream of their own. Nothing is under way when a call has returned, but after a
/// time-out.
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

/// Bytes that one copy moves: the longest message of the engine. Behind them in the scratch are
/// words that lie side by side, and behind those words that are read together.
const SCRATCH: usize = 256;
const READ: usize = SCRATCH + MOST_WRITES * size_of::<u64>();

/// Words at most so far from one another are read by one copy, which takes no longer than that of
/// one of them.
const NEAR: usize = 256;

const DEPTH: usize = MOST_WRITES;

impl StreamWords {
    pub(crate) fn new(context: &Arc<Context>, patience: Duration) -> Result<Self, CudaError> {
        let engine = CopyEngine::new(context, DEPTH)?;
        let scratch = PinnedMemory::new(context, READ + MOST_WRITES * (NEAR + size_of::<u64>()))?;
        Ok(Self { engine, scratch, patience, stuck: None })
    }

    pub(crate) fn engine(&self) -> &CopyEngine {
        &self.engine
    }

    pub(crate) fn set_rows(&mut self, rows: bool) {
        self.engine.set_rows(rows);
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

    /// Stores parts in memory where the engine stores words by operations, at most [`MOST_WRITES`],
    /// in their order: those side by side by copies. All are there when it returns, or will never
    /// be.
    pub(crate) fn store_all(&mut self, words: &[Soon]) -> Result<(), StartError> {
        self.alive()?;
        let mut last = None;
        let mut failed = Ok(());
        for (at, piece) in together::pieces(words) {
            let started = match piece {
                Piece::SideBySide(words) => self.start_side_by_side(at, words).map(Some),
                Piece::Each(words) => self.start_each(words),
            };
            match started {
                Ok(ticket) => last = ticket.or(last),
                Err(error) => {
                    failed = Err(error);
                    break;
                }
            }
        }
        // What was started is waited for also after a failure: its bytes are in the scratch.
        // Another way to store waits for itself and all before it, so that nothing may be under way
        // any more.
        let under_way = self.engine.in_flight() > 0 && self.stuck.is_none();
        let ended = match (last, words.first()) {
            (Some(ticket), Some(first)) if under_way => self.wait(ticket, first.addr).map(drop),
            _ => Ok(()),
        };
        failed.and(ended)
    }

    pub(crate) fn load_all(
        &mut self,
        words: &mut [Soon],
        places: &[usize],
    ) -> Result<(), StartError> {
        self.alive()?;
        let (mut last, mut failed, mut offset) = (None, Ok(()), READ);
        let mut rest = places;
        while let Some(&place) = rest.first() {
            let (near, others) = rest.split_at(nearby(words, rest));
            let addr = words[place].addr;
            let mut len = 0;
            for place in near {
                let word = &mut words[*place];
                // Where in the scratch it is read to.
                word.value = (offset + word.addr - addr) as u64;
                len = len.max(word.end() - addr);
            }
            let (direction, memory) = (Direction::FromDevice, &self.scratch);
            let range = &**words[place].range.range();
            let transfer = PinnedTransfer { direction, range, addr, memory, offset, len };
            match self.engine.start_pinned(&transfer) {
                Ok(ticket) => last = Some((ticket, addr)),
                Err(error) => {
                    failed = Err(error);
                    break;
                }
            }
            (rest, offset) = (others, offset + len);
        }
        // What was started is waited for also after a failure: it writes to the scratch.
        if let Some((ticket, addr)) = last {
            self.wait(ticket, addr)?;
        }
        failed?;
        for place in places {
            let word = &mut words[*place];
            let mut bytes = [0; 8];
            // SAFETY: the copies above have filled these bytes, and have ended, as does every copy
            // of this engine before another one is started.
            unsafe {
                let held = (self.scratch.addr() + word.value as usize) as *const u8;
                ptr::copy_nonoverlapping(held, bytes.as_mut_ptr(), word.len.into());
            }
            word.value = u64::from_le_bytes(bytes);
        }
        Ok(())
    }

    fn start_side_by_side(&mut self, at: usize, words: &[Soon]) -> Result<Ticket, StartError> {
        let mut len = 0;
        let offset = SCRATCH + at * size_of::<u64>();
        for word in words {
            let bytes = word.value.to_le_bytes();
            // SAFETY: the scratch has room behind its first part for eight bytes of each word there
            // may be. No copy from there is under way but for words at other places: earlier ones
            // have ended, or have set `stuck`.
            unsafe {
                let to = (self.scratch.addr() + offset + len) as *mut u8;
                ptr::copy_nonoverlapping(bytes.as_ptr(), to, word.len.into());
            }
            len += usize::from(word.len);
        }
        let Soon { range, addr, .. } = &words[0];
        let (direction, memory) = (Direction::ToDevice, &self.scratch);
        let (range, addr) = (&**range.range(), *addr);
        self.engine.start_pinned(&PinnedTransfer { direction, range, addr, memory, offset, len })
    }

    fn start_each(&mut self, words: &[Soon]) -> Result<Option<Ticket>, StartError> {
        match self.engine.start_stores(words.iter().map(|soon| (soon.word(), soon.value))) {
            // Some drivers list what they refuse. A store alone finds another way, also of what was
            // stored already.
            Err(StartError::Cuda(error))
                if matches!(error.code, code::NOT_SUPPORTED | code::INVALID_VALUE) =>
            {
                for soon in words {
                    self.store(&soon.word(), soon.value)?;
                }
                Ok(None)
            }
            started => started.map(Some),
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
            // SAFETY: the scratch has these bytes, the copy into it has ended, and no other is
            // under way: one that did not end has set `stuck`, and nothing is copied after it.
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
        let width = match bytes.len() {
            4 => Some(Width::Four),
            8 => Some(Width::Eight),
            _ => None,
        };
        // A word is stored without a copy: a short one to the device may have to wait for a turn.
        let is_word = |width: &Width| {
            addr % width.bytes() == 0 && self.engine.stores_by_operation(range, *width)
        };
        if let Some(width) = width.filter(is_word) {
            let mut value = [0; 8];
            value[..bytes.len()].copy_from_slice(bytes);
            return self.store(&Word { range, addr, width }, u64::from_le_bytes(value));
        }
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
        const SPINS: u32 = 256;
        // Time in which this process was stopped is none that the device took.
        let mut waited = Wait::new();
        let mut polls = 0;
        let mut failed = None;
        loop {
            if let Some(completed) = self.engine.poll() {
                let value = completed.result.map_err(|error| failed.get_or_insert(error).clone());
                if completed.ticket == ticket {
                    return Ok(failed.map_or(value, Err)?);
                }
                continue;
            }
            polls += 1;
            if polls < SPINS {
                hint::spin_loop();
                continue;
            }
            if waited.left_of(self.patience).is_none() {
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

fn nearby(words: &[Soon], places: &[usize]) -> usize {
    let is_far = |pair: &[usize]| {
        let (one, next) = (&words[pair[0]], &words[pair[1]]);
        !Arc::ptr_eq(&one.range, &next.range) || next.addr - one.addr > NEAR
    };
    places.windows(2).position(is_far).map_or(places.len(), |at| at + 1)
}
