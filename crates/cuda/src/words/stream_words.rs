//! Words in device memory by way of the driver: stream memory operations and small copies. It works
//! wherever copies do, and costs a trip to the device for each list.

use std::hint;
use std::ptr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::copy::MAX_WRITES;
use crate::copy::engine::CopyEngine;
use crate::copy::request::{CopyError, Direction, Step, Transfer, WordStores};
use crate::driver::context::Context;
use crate::driver::error::{CudaError, code};
use crate::memory::pinned_memory::PinnedMemory;
use crate::memory::range::DeviceRange;
use crate::words::together::{self, MAX_BYTES, Soon};
use engine::patience::Wait;

/// Words by a stream of their own. Nothing is in flight after a call, except after a time-out.
#[derive(Debug)]
pub(crate) struct StreamWords {
    engine: CopyEngine,
    /// Stores by stream operations, as far as the driver takes them.
    stores: WordStores,
    /// Where words wait to be stored, and behind those what is loaded.
    scratch: Arc<PinnedMemory>,
    /// How long the device may take.
    patience: Duration,
    /// Set when it took longer: it is not asked again.
    stuck: Option<CudaError>,
}

/// Where in the scratch what is loaded begins.
const LOADED: usize = MAX_WRITES * size_of::<u64>();

/// Words at most so far apart are loaded by one copy, which takes no longer than one word.
const NEAR: usize = 256;

impl StreamWords {
    pub(crate) fn new(context: &Arc<Context>, patience: Duration) -> Result<Self, CudaError> {
        let mut engine = CopyEngine::new(context)?;
        let scratch = PinnedMemory::new(context, LOADED + MAX_WRITES * (NEAR + 8))?;
        engine.keep(&scratch);
        let stores = engine.word_stores();
        Ok(Self { engine, stores, scratch, patience, stuck: None })
    }

    pub(crate) fn set_rows(&mut self, rows: bool) {
        self.engine.set_rows(rows);
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        self.engine.context()
    }

    /// Whether words of eight bytes are stored by operations.
    pub(crate) fn has_operations(&self) -> bool {
        self.stores.eight
    }

    /// Stores parts, at most [`MAX_WRITES`], in their order: those side by side that nothing
    /// orders, and what is no word, by copies. All are there when it returns, or will never be.
    pub(crate) fn store_all(&mut self, parts: &[Soon]) -> Result<(), CopyError> {
        match self.try_store(parts) {
            // Some drivers list operations and refuse them, at all or for some memory. Copies find
            // another way, also of what was stored already.
            Err(CopyError::Cuda(error))
                if (self.stores.four || self.stores.eight)
                    && matches!(error.code, code::NOT_SUPPORTED | code::INVALID_VALUE) =>
            {
                let stores = std::mem::take(&mut self.stores);
                let stored = self.try_store(parts);
                if error.code == code::INVALID_VALUE {
                    self.stores = stores;
                }
                stored
            }
            done => done,
        }
    }

    fn try_store(&mut self, parts: &[Soon]) -> Result<(), CopyError> {
        self.alive()?;
        let Some(first) = parts.first() else { return Ok(()) };
        let Self { engine, scratch, stores, .. } = self;
        let memory = &*scratch;
        for (at, run) in together::runs(parts) {
            for part in run {
                let held = memory.addr() + 8 * at + (part.addr - run[0].addr);
                let bytes = part.value.to_le_bytes();
                // SAFETY: the scratch has room for eight bytes of each part there may be, and no
                // copy from it is under way: earlier ones have ended, or have set `stuck`.
                unsafe {
                    ptr::copy_nonoverlapping(bytes.as_ptr(), held as *mut u8, part.len.into());
                }
            }
        }
        let stores = *stores;
        let steps = together::runs(parts).flat_map(move |(at, run)| {
            let Soon { ref range, addr, .. } = run[0];
            let len = run[run.len() - 1].end() - addr;
            let is_word = |part: &Soon| {
                part.width().is_some_and(|width| stores.has(part.range.range(), width))
            };
            let is_copy = run.len() >= together::FEWEST || !run.iter().all(is_word);
            let (direction, range, offset) = (Direction::ToDevice, &**range.range(), 8 * at);
            let transfer = Transfer { direction, range, addr, memory, offset, len };
            let copy = is_copy.then_some(Step::Copy { transfer, is_ordered: true });
            let words = if is_copy { &[] } else { run };
            copy.into_iter().chain(words.iter().filter_map(Soon::store))
        });
        engine.start_list(0, steps)?;
        self.wait(first.addr)
    }

    /// Loads what words hold, into their values. Their places in the list are ascending by address.
    pub(crate) fn load_all(
        &mut self,
        words: &mut [Soon],
        places: &[usize],
    ) -> Result<(), CopyError> {
        self.alive()?;
        let Some(first) = places.first().map(|place| words[*place].addr) else { return Ok(()) };
        let mut offset = LOADED;
        let mut rest = places;
        while let Some(&place) = rest.first() {
            let near = nearby(words, rest);
            let addr = words[place].addr;
            let mut len = 0;
            for place in &rest[..near] {
                let word = &mut words[*place];
                // Where in the scratch it is loaded to.
                word.value = (offset + word.addr - addr) as u64;
                len = len.max(word.end() - addr);
            }
            rest = &rest[near..];
            offset += len;
        }
        let Self { engine, scratch, .. } = self;
        let (memory, loaded): (_, &[Soon]) = (&*scratch, words);
        let mut rest = places;
        let steps = std::iter::from_fn(move || {
            let &place = rest.first()?;
            let (near, others) = rest.split_at(nearby(loaded, rest));
            rest = others;
            let Soon { ref range, addr, value, .. } = loaded[place];
            let len = near.iter().map(|place| loaded[*place].end() - addr).max()?;
            let (direction, range, offset) =
                (Direction::FromDevice, &**range.range(), value as usize);
            let transfer = Transfer { direction, range, addr, memory, offset, len };
            // Each in a call of its own: a call for several beside a kernel was not measured.
            Some(Step::Copy { transfer, is_ordered: true })
        });
        engine.start_list(0, steps)?;
        self.wait(first)?;
        for place in places {
            let word = &mut words[*place];
            let mut bytes = [0; 8];
            self.take(word.value as usize, &mut bytes[..word.len.into()]);
            word.value = u64::from_le_bytes(bytes);
        }
        Ok(())
    }

    /// Loads bytes, all of which are in the range.
    pub(crate) fn load(
        &mut self,
        range: &DeviceRange,
        addr: usize,
        into: &mut [u8],
    ) -> Result<(), CopyError> {
        for (number, part) in into.chunks_mut(MAX_BYTES).enumerate() {
            self.alive()?;
            let addr = addr + number * MAX_BYTES;
            let (direction, memory, offset) = (Direction::FromDevice, &self.scratch, LOADED);
            let transfer = Transfer { direction, range, addr, memory, offset, len: part.len() };
            self.engine.start(&transfer)?;
            self.wait(addr)?;
            self.take(LOADED, part);
        }
        Ok(())
    }

    /// Takes what was loaded from the scratch.
    fn take(&self, offset: usize, into: &mut [u8]) {
        debug_assert!(offset + into.len() <= self.scratch.len());
        // SAFETY: the scratch has these bytes, the copy into it has ended, and no other is under
        // way: one that did not end has set `stuck`, and nothing is copied after it.
        unsafe {
            let held = (self.scratch.addr() + offset) as *const u8;
            ptr::copy_nonoverlapping(held, into.as_mut_ptr(), into.len());
        }
    }

    fn alive(&self) -> Result<(), CopyError> {
        self.stuck.clone().map_or(Ok(()), |error| Err(CopyError::Cuda(error)))
    }

    /// Waits for what was started, even if part of it was refused: its bytes are in the scratch.
    fn wait(&mut self, addr: usize) -> Result<(), CopyError> {
        const SPINS: u32 = 256;
        // Time in which this process was stopped is none that the device took.
        let mut waited = Wait::new();
        let mut polls = 0;
        loop {
            if let Some(ended) = self.engine.poll() {
                return Ok(ended?);
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

/// How many of the first of these places are loaded by one copy.
fn nearby(words: &[Soon], places: &[usize]) -> usize {
    let is_far = |pair: &[usize]| {
        let (one, next) = (&words[pair[0]], &words[pair[1]]);
        !Arc::ptr_eq(&one.range, &next.range) || next.addr - one.addr > NEAR
    };
    places.windows(2).position(is_far).map_or(places.len(), |at| at + 1)
}
