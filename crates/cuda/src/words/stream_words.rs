//! Words in device memory through the driver: stream memory operations and small copies. They work
//! wherever copies do, and cost a round trip to the device for each batch.

use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use crate::copy::MAX_WRITES;
use crate::copy::engine::CopyEngine;
use crate::copy::request::{CopyError, Direction, StreamOp, Transfer, WordStores};
use crate::copy::resident::ResidentKernel;
use crate::driver::context::Context;
use crate::driver::error::{CudaError, code};
use crate::driver::stream::wait_for;
use crate::memory::pinned_memory::PinnedMemory;
use crate::memory::range::DeviceRange;
use crate::words::deferred::{self, DeferredWrite, MAX_BYTES};

/// Access to words through a stream of its own. Nothing is in flight after a call, except after a
/// timeout.
#[derive(Debug)]
pub(crate) struct StreamWords {
    engine: CopyEngine,
    /// Widths that stream memory operations store, as far as the driver takes them.
    stores: WordStores,
    /// Words to be stored, or loaded bytes.
    scratch: Arc<PinnedMemory>,
    patience: Duration,
    /// The timeout, after which nothing more is submitted.
    stuck: Option<CudaError>,
}

/// Words in the scratch memory are aligned as in the device's, for the resident kernel.
const WORD: usize = 8;

/// Maximum distance in bytes of words that one copy loads, which takes no longer than one word.
const MAX_GAP: usize = 256;

impl StreamWords {
    pub(crate) fn new(context: &Arc<Context>, patience: Duration) -> Result<Self, CudaError> {
        let mut engine = CopyEngine::new(context)?;
        let scratch = PinnedMemory::new(context, MAX_WRITES * (MAX_GAP + 8))?;
        engine.hold(&scratch);
        let stores = engine.word_stores();
        Ok(Self { engine, stores, scratch, patience, stuck: None })
    }

    pub(crate) fn set_rows(&mut self, rows: bool) {
        self.engine.set_rows(rows);
    }

    pub(crate) fn set_resident(&mut self, resident: Option<&Arc<ResidentKernel>>) {
        self.engine.set_resident(resident);
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        self.engine.context()
    }

    /// Stores at most [`MAX_WRITES`] parts in order: runs of adjacent unordered parts, and parts
    /// that are no words, by copies. All are stored when it returns; after an error, some never
    /// are.
    pub(crate) fn store_all(&mut self, parts: &[DeferredWrite]) -> Result<(), CopyError> {
        match self.try_store(parts) {
            // Some drivers have the operations and refuse them, always or for some memory. Copies
            // then store everything, also what was stored already.
            Err(CopyError::Cuda(error))
                if matches!(error.code, code::NOT_SUPPORTED | code::INVALID_VALUE) =>
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

    fn try_store(&mut self, parts: &[DeferredWrite]) -> Result<(), CopyError> {
        self.check_alive()?;
        let Some(first) = parts.first() else { return Ok(()) };
        let Self { engine, scratch, stores, .. } = self;
        let memory = &*scratch;
        for (at, run) in deferred::runs(parts) {
            for part in run {
                let held = memory.addr() + offset_of(at, run) + (part.addr - run[0].addr);
                let bytes = part.value.to_le_bytes();
                // SAFETY: the scratch memory has 16 bytes for each of MAX_WRITES parts, and no
                // copy from it is in flight: earlier ones have ended, or have set `stuck`.
                unsafe {
                    ptr::copy_nonoverlapping(bytes.as_ptr(), held as *mut u8, part.len.into());
                }
            }
        }
        let stores = *stores;
        let ops = deferred::runs(parts).flat_map(move |(at, run)| {
            let DeferredWrite { ref range, addr, .. } = run[0];
            let len = run[run.len() - 1].end() - addr;
            let is_word = |part: &DeferredWrite| {
                part.width().is_some_and(|width| stores.has(part.range.range(), width))
            };
            let is_copy = run.len() >= deferred::MIN_COPY_PARTS || !run.iter().all(is_word);
            let (direction, range, offset) =
                (Direction::ToDevice, &**range.range(), offset_of(at, run));
            let transfer = Transfer { direction, range, addr, memory, offset, len };
            let copy = is_copy.then_some(StreamOp::Copy { transfer, is_ordered: true });
            let words = if is_copy { &[] } else { run };
            copy.into_iter().chain(words.iter().filter_map(DeferredWrite::store))
        });
        engine.start_batch(0, ops)?;
        self.wait(first.addr)
    }

    /// Loads the words with these indices, ascending by address, into their values.
    pub(crate) fn load_all(
        &mut self,
        words: &mut [DeferredWrite],
        indices: &[usize],
    ) -> Result<(), CopyError> {
        self.check_alive()?;
        let Some(first) = indices.first().map(|index| words[*index].addr) else { return Ok(()) };
        let mut offset = 0_usize;
        let mut rest = indices;
        while let Some(&index) = rest.first() {
            let near = nearby(words, rest);
            let addr = words[index].addr;
            offset = offset.next_multiple_of(WORD) + addr % WORD;
            let mut len = 0;
            for index in &rest[..near] {
                let word = &mut words[*index];
                // Meanwhile the offset of the loaded word in the scratch memory.
                word.value = (offset + word.addr - addr) as u64;
                len = len.max(word.end() - addr);
            }
            rest = &rest[near..];
            offset += len;
        }
        let Self { engine, scratch, .. } = self;
        let (memory, loaded): (_, &[DeferredWrite]) = (&*scratch, words);
        let mut rest = indices;
        let ops = std::iter::from_fn(move || {
            let &index = rest.first()?;
            let (near, others) = rest.split_at(nearby(loaded, rest));
            rest = others;
            let DeferredWrite { ref range, addr, value, .. } = loaded[index];
            let len = near.iter().map(|index| loaded[*index].end() - addr).max()?;
            let (direction, range, offset) =
                (Direction::FromDevice, &**range.range(), value as usize);
            let transfer = Transfer { direction, range, addr, memory, offset, len };
            // One call each: a batch call beside a kernel was not measured.
            Some(StreamOp::Copy { transfer, is_ordered: true })
        });
        engine.start_batch(0, ops)?;
        self.wait(first)?;
        for index in indices {
            let word = &mut words[*index];
            let mut bytes = [0; 8];
            self.take(word.value as usize, &mut bytes[..word.len.into()]);
            word.value = u64::from_le_bytes(bytes);
        }
        Ok(())
    }

    /// Loads bytes, which must be inside the range.
    pub(crate) fn load(
        &mut self,
        range: &DeviceRange,
        addr: usize,
        into: &mut [u8],
    ) -> Result<(), CopyError> {
        for (number, part) in into.chunks_mut(MAX_BYTES).enumerate() {
            self.check_alive()?;
            let addr = addr + number * MAX_BYTES;
            let (direction, memory, offset) = (Direction::FromDevice, &self.scratch, addr % WORD);
            let transfer = Transfer { direction, range, addr, memory, offset, len: part.len() };
            self.engine.start(&transfer)?;
            self.wait(addr)?;
            self.take(addr % WORD, part);
        }
        Ok(())
    }

    fn take(&self, offset: usize, into: &mut [u8]) {
        debug_assert!(offset + into.len() <= self.scratch.len());
        // SAFETY: the scratch memory has these bytes, the copy into it has ended, and no other is
        // in flight: one that did not end has set `stuck`, and nothing is copied after it.
        unsafe {
            let held = (self.scratch.addr() + offset) as *const u8;
            ptr::copy_nonoverlapping(held, into.as_mut_ptr(), into.len());
        }
    }

    fn check_alive(&self) -> Result<(), CopyError> {
        self.stuck.clone().map_or(Ok(()), |error| Err(CopyError::Cuda(error)))
    }

    /// Waits for the batch, also if a part was refused: the rest uses the scratch memory.
    fn wait(&mut self, addr: usize) -> Result<(), CopyError> {
        let mut ended = None;
        wait_for(self.patience, || {
            ended = self.engine.poll();
            ended.is_some()
        });
        Ok(ended.unwrap_or_else(|| Err(self.give_up(addr)))?)
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

/// Returns the offset in the scratch memory of a run whose first part has an index.
fn offset_of(index: usize, run: &[DeferredWrite]) -> usize {
    2 * WORD * index + run[0].addr % WORD
}

/// Returns how many of the first indices one copy loads.
fn nearby(words: &[DeferredWrite], indices: &[usize]) -> usize {
    let is_far = |pair: &[usize]| {
        let (one, next) = (&words[pair[0]], &words[pair[1]]);
        !Arc::ptr_eq(&one.range, &next.range) || next.addr - one.addr > MAX_GAP
    };
    indices.windows(2).position(is_far).map_or(indices.len(), |at| at + 1)
}
