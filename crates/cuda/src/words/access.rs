//! Access to single words in device memory by the CPU: what signals and atomics need.
//!
//! There are two ways. GDRCopy lets the CPU reach the memory directly. Copies and stream memory
//! operations always work. Which one is used is found out once for each context, on memory of our
//! own: GDRCopy counts when words written by it are read by the driver's copies and the other way
//! round. The log says what was taken, what it costs, and why GDRCopy was not.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::MEM;
use crate::copy::request::Word;
use crate::driver::context::Context;
use crate::driver::error::CudaError;
use crate::memory::scratch::Scratch;
use crate::words::gdrcopy::Gdrcopy;
use crate::words::mapping::Mapped;
use crate::words::stream_words::StreamWords;
use crate::words::together::{self, Soon};
use crate::words::way::{Cost, Way, WordError, WordsOptions};
use crate::words::word_range::{Mapper, WordRange};
use engine::atomic::Width;

/// Words in device memory of one context, read and written one after the other. Each is done when
/// the call returns.
///
/// Nothing here is atomic with what the device or another thread does to the same word: all changes
/// of a word that have to be atomic among themselves come from the one thread that has this value.
///
/// Making and dropping this may wait for everything on the device.
#[derive(Debug)]
pub struct Words {
    stream: StreamWords,
    mapper: Mapper,
    cost: Cost,
    /// Dropped after everything that maps it or copies to it.
    _scratch: Scratch,
}

struct Known {
    context: Arc<Context>,
    gdrcopy: Option<String>,
    mapper: Mapper,
    cost: Cost,
}

static KNOWN: Mutex<Vec<Known>> = Mutex::new(Vec::new());

impl Words {
    /// Finds the best way that works for a context, measures it and says so in the log.
    ///
    /// # Errors
    /// When not even copies work.
    pub fn new(context: &Arc<Context>, options: &WordsOptions) -> Result<Self, CudaError> {
        let scratch = Scratch::new(context)?;
        let stream = StreamWords::new(context, options.patience)?;
        let cost = Cost { load: Duration::ZERO, store: Duration::ZERO };
        let mapper = Mapper { gdrcopy: None };
        let mut words = Self { stream, mapper, cost, _scratch: scratch };
        // Held meanwhile: two measurements of one device would disturb one another.
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let is_it = |of: &&Known| of.context.is(context) && of.gdrcopy == options.gdrcopy;
        if let Some(Known { mapper, cost, .. }) = known.iter().find(is_it) {
            (words.mapper, words.cost) = (*mapper, *cost);
            return Ok(words);
        }
        let refused = match words.try_gdrcopy(options) {
            Ok(mapper) => {
                words.mapper = mapper;
                String::new()
            }
            Err(reason) => format!("; not by {}: {reason}", Way::Gdrcopy),
        };
        words.cost = words.measure().map_err(|error| words.fault(error))?;
        log::info!(
            target: MEM,
            "words in memory of {context} are reached by {}: load {:?}, store {:?}{refused}",
            words.name(),
            words.cost.load,
            words.cost.store,
        );
        // One of the program's may end, and another one take its address.
        if context.is_own() {
            let (context, gdrcopy) = (Arc::clone(context), options.gdrcopy.clone());
            known.push(Known { context, gdrcopy, mapper: words.mapper, cost: words.cost });
        }
        Ok(words)
    }

    pub(crate) fn set_rows(&mut self, rows: bool) {
        self.stream.set_rows(rows);
    }

    /// The way that is taken where nothing speaks against it.
    pub fn way(&self) -> Way {
        self.mapper.way()
    }

    /// What makes ranges of the same context reachable by that way, on any thread.
    pub fn mapper(&self) -> Mapper {
        self.mapper
    }

    /// What a word costs by that way.
    pub fn cost(&self) -> Cost {
        self.cost
    }

    /// Loads a word of a range of the same context.
    ///
    /// # Errors
    /// When there is no such word, and when the driver fails.
    #[inline]
    pub fn load_in(
        &mut self,
        within: &WordRange,
        addr: usize,
        width: Width,
    ) -> Result<u64, WordError> {
        self.check(within, addr, width)?;
        match within.window(addr) {
            // SAFETY: the word is in the range and aligned, as just checked. The window is the
            // range's; behind it are the pages of the range, or none if it was freed.
            Some((mapped, addr)) => Ok(unsafe { mapped.load(addr, width) }),
            None => Ok(self.stream.load(&Word { range: within.range(), addr, width })?),
        }
    }

    /// Stores a word of a range of the same context. What this thread has seen done before is
    /// visible to who sees the word.
    ///
    /// # Errors
    /// As [`Self::load_in`].
    #[inline]
    pub fn store_in(
        &mut self,
        within: &WordRange,
        addr: usize,
        width: Width,
        value: u64,
    ) -> Result<(), WordError> {
        self.check(within, addr, width)?;
        match within.window(addr) {
            Some((mapped, addr)) => {
                // SAFETY: as in `load_in`.
                unsafe { mapped.store(addr, width, value) };
                Ok(())
            }
            None => Ok(self.stream.store(&Word { range: within.range(), addr, width }, value)?),
        }
    }

    /// Whether stores in a range of the same context are those that [`Self::store_all`] takes.
    #[inline]
    pub(crate) fn stores_together(&self, within: &WordRange, addr: usize) -> bool {
        let by_operation = |width| self.stream.engine().stores_by_operation(within.range(), width);
        within.window(addr).is_none() && by_operation(Width::Four) && by_operation(Width::Eight)
    }

    /// Stores parts, at most [`MOST_WRITES`] and each in a range that [`Self::stores_together`], in
    /// their order, but for those that are free of it. All are there when it returns. What some
    /// are made of is read before, all of it in one trip to the device.
    ///
    /// # Errors
    /// As [`Self::load_in`]. Then any of them may be missing.
    pub(crate) fn store_all(&mut self, words: &mut [Soon]) -> Result<(), WordError> {
        for Soon { range, addr, len, .. } in &*words {
            self.check_bytes(range, *addr, (*len).into())?;
        }
        self.resolve(words)?;
        together::arrange(words);
        Ok(self.stream.store_all(words)?)
    }

    /// Reads what the values of words are made of that are to be stored, at most [`MOST_WRITES`].
    ///
    /// # Errors
    /// As [`Self::load_in`].
    pub(crate) fn resolve(&mut self, words: &mut [Soon]) -> Result<(), WordError> {
        Ok(together::resolve(words, |words, unread| self.stream.load_all(words, unread))?)
    }

    /// Loads bytes at any address of a range of the same context. Meant for few: a window is read
    /// word by word, and without one each 256 bytes are a trip to the device.
    ///
    /// # Errors
    /// As [`Self::load_in`]. Then the bytes in `into` are undefined.
    #[inline]
    pub fn load_bytes_in(
        &mut self,
        within: &WordRange,
        addr: usize,
        into: &mut [u8],
    ) -> Result<(), WordError> {
        self.check_bytes(within, addr, into.len())?;
        match within.window(addr) {
            Some((mapped, addr)) => {
                // SAFETY: the bytes are in the range, as just checked; else as in `load_in`.
                unsafe { mapped.load_bytes(addr, into) };
                Ok(())
            }
            None => Ok(self.stream.load_bytes(within.range(), addr, into)?),
        }
    }

    /// Stores bytes at any address of a range of the same context. They are there when it returns,
    /// and before every word that is stored later. Meant for few, as [`Self::load_bytes_in`].
    ///
    /// # Errors
    /// As [`Self::load_in`]. Then the bytes in the range are undefined.
    #[inline]
    pub fn store_bytes_in(
        &mut self,
        within: &WordRange,
        addr: usize,
        bytes: &[u8],
    ) -> Result<(), WordError> {
        self.check_bytes(within, addr, bytes.len())?;
        match within.window(addr) {
            Some((mapped, addr)) => {
                // SAFETY: as in `load_bytes_in`.
                unsafe { mapped.store_bytes(addr, bytes) };
                Ok(())
            }
            None => Ok(self.stream.store_bytes(within.range(), addr, bytes)?),
        }
    }

    fn try_gdrcopy(&mut self, options: &WordsOptions) -> Result<Mapper, String> {
        let Some(library) = &options.gdrcopy else { return Err(String::from("switched off")) };
        let gdrcopy = Gdrcopy::load(library).map_err(|error| error.to_string())?;
        let range = Arc::clone(self._scratch.range());
        let mapped = Mapped::by_gdrcopy(&range, gdrcopy)?;
        for (index, width) in [Width::Two, Width::Four, Width::Eight].into_iter().enumerate() {
            let addr = range.addr() + 64 * index + width.bytes();
            let word = Word { range: &range, addr, width };
            let (first, second) = (0x8192_a3b4_c5d6_e7f8 & width.mask(), 0x17 << index);
            // SAFETY: a word of our own memory, aligned, and mapped.
            unsafe { mapped.store(addr, width, first) };
            let read = self.stream.load(&word).map_err(|error| error.to_string())?;
            self.stream.store(&word, second).map_err(|error| error.to_string())?;
            // SAFETY: the same word.
            let seen = unsafe { mapped.load(addr, width) };
            if (read, seen) != (first, second) {
                return Err(format!(
                    "a word of {} bytes came out as {read:#x} and {seen:#x}, not {first:#x} and \
                     {second:#x}",
                    width.bytes(),
                ));
            }
        }
        Ok(Mapper { gdrcopy: Some(gdrcopy) })
    }

    fn measure(&mut self) -> Result<Cost, WordError> {
        const ROUNDS: u32 = 32;
        let range = Arc::clone(self._scratch.range());
        let within = self.mapper.open(Arc::clone(&range), None);
        let start = Instant::now();
        for round in 0..ROUNDS {
            self.store_in(&within, range.addr(), Width::Eight, round.into())?;
        }
        let stored = Instant::now();
        for _ in 0..ROUNDS {
            self.load_in(&within, range.addr(), Width::Eight)?;
        }
        Ok(Cost { load: stored.elapsed() / ROUNDS, store: (stored - start) / ROUNDS })
    }

    fn fault(&self, error: WordError) -> CudaError {
        match error {
            WordError::Cuda(error) => error,
            other => CudaError {
                call: "cuMemcpyDtoHAsync_v2",
                subject: self.stream.engine().context().to_string(),
                code: crate::driver::error::code::INVALID_VALUE,
                name: String::from("CUDA_ERROR_INVALID_VALUE"),
                text: other.to_string(),
            },
        }
    }

    fn name(&self) -> String {
        if let Some(gdrcopy) = self.mapper.gdrcopy {
            return gdrcopy.to_string();
        }
        let operations = self.stream.engine().writes_words(Width::Eight);
        let stores = if operations { "stream memory operations" } else { "copies" };
        format!("{} (stores are {stores})", Way::Stream)
    }

    #[inline]
    fn check(&self, within: &WordRange, addr: usize, width: Width) -> Result<(), WordError> {
        if addr % width.bytes() != 0 {
            return Err(self.no_word(addr, width.bytes()));
        }
        self.check_bytes(within, addr, width.bytes())
    }

    #[inline]
    fn check_bytes(&self, within: &WordRange, addr: usize, len: usize) -> Result<(), WordError> {
        if within.range().contains(addr, len) { Ok(()) } else { Err(self.no_word(addr, len)) }
    }

    #[cold]
    fn no_word(&self, addr: usize, width: usize) -> WordError {
        WordError::NoWord { addr, width, context: self.stream.engine().context().to_string() }
    }
}
