//! Access to words and a few bytes in device memory by the CPU: what signals and atomics need.
//!
//! There are two ways. GDRCopy lets the CPU reach the memory directly. Copies and stream memory
//! operations always work. Which one is used is found out once for each context, on memory of our
//! own: GDRCopy counts when words written by it are read by the driver's copies and the other way
//! round. The log says what was taken, what it costs, and why GDRCopy was not.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::MEM;
use crate::copy::MAX_WRITES;
use crate::copy::request::CopyError;
use crate::driver::context::Context;
use crate::memory::device_memory::DeviceMemory;
use crate::words::gdrcopy::{GDRCOPY_LIBRARY, Gdrcopy};
use crate::words::mapping::Mapped;
use crate::words::stream_words::StreamWords;
use crate::words::together::{self, MAX_BYTES, Soon, Tie};
use crate::words::word_range::{Mapper, WordRange};

/// How words may be reached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WordsOptions {
    /// The library of GDRCopy. None: not to be used.
    pub gdrcopy: Option<String>,
    /// How long the device may take for a word before that is an error.
    pub patience: Duration,
}

impl Default for WordsOptions {
    fn default() -> Self {
        let gdrcopy = Some(GDRCOPY_LIBRARY.to_owned());
        Self { gdrcopy, patience: Duration::from_secs(30) }
    }
}

/// Words in device memory of one context. Each access is complete when the call returns.
///
/// Nothing here is atomic with what the device or another thread does to the same word: all changes
/// of a word that have to be atomic among themselves come from the one thread that has this value.
///
/// Making and dropping this may wait for everything on the device.
#[derive(Debug)]
pub struct Words {
    stream: StreamWords,
    mapper: Mapper,
    /// Parts of bytes that are being stored.
    parts: Vec<Soon>,
    /// What the ways were tried on. Dropped after everything that maps it or copies to it.
    page: Option<DeviceMemory>,
}

struct Known {
    context: Arc<Context>,
    gdrcopy: Option<String>,
    mapper: Mapper,
}

static KNOWN: Mutex<Vec<Known>> = Mutex::new(Vec::new());

impl Words {
    /// Finds the best way that works for a context, measures it and says so in the log.
    ///
    /// # Errors
    /// When not even copies work.
    pub fn new(context: &Arc<Context>, options: &WordsOptions) -> Result<Self, CopyError> {
        let stream = StreamWords::new(context, options.patience)?;
        let parts = Vec::with_capacity(MAX_WRITES);
        let mut words = Self { stream, mapper: Mapper { gdrcopy: None }, parts, page: None };
        // Held meanwhile: two measurements of one device would disturb one another.
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let is_it = |of: &&Known| of.context.is(context) && of.gdrcopy == options.gdrcopy;
        if let Some(Known { mapper, .. }) = known.iter().find(is_it) {
            words.mapper = *mapper;
            return Ok(words);
        }
        words.choose(options)?;
        // One of the program's may end, and another one take its address.
        if context.is_own() {
            let (context, gdrcopy) = (Arc::clone(context), options.gdrcopy.clone());
            known.push(Known { context, gdrcopy, mapper: words.mapper });
        }
        Ok(words)
    }

    pub(crate) fn set_rows(&mut self, rows: bool) {
        self.stream.set_rows(rows);
    }

    /// What makes ranges of the same context reachable by the way that was found, on any thread.
    pub fn mapper(&self) -> Mapper {
        self.mapper
    }

    /// Loads a few bytes at any address of a range of the same context, aligned words whole.
    /// Without a window, each 256 bytes are a trip to the device.
    ///
    /// # Errors
    /// When the range does not have them, and when the driver fails. Then the bytes in `into` are
    /// undefined.
    pub(crate) fn load(
        &mut self,
        within: &WordRange,
        addr: usize,
        into: &mut [u8],
    ) -> Result<(), CopyError> {
        within.check(addr, into.len())?;
        match within.window(addr) {
            Some((mapped, addr)) => {
                // SAFETY: the bytes are in the range, as just checked. The window is the range's;
                // behind it are the pages of the range, or none if it was freed.
                unsafe { mapped.load(addr, into) };
                Ok(())
            }
            None => self.stream.load(within.range(), addr, into),
        }
    }

    /// Stores a few bytes at any address of a range of the same context; a word that is aligned is
    /// stored whole. They are there when it returns, and before every word that is stored later.
    /// What this thread has seen done before is visible to who sees them.
    ///
    /// # Errors
    /// As [`Self::load`]. Then the bytes in the range are undefined.
    pub(crate) fn store(
        &mut self,
        within: &Arc<WordRange>,
        addr: usize,
        bytes: &[u8],
    ) -> Result<(), CopyError> {
        within.check(addr, bytes.len())?;
        if let Some((mapped, addr)) = within.window(addr) {
            // SAFETY: as in `load`.
            unsafe { mapped.store(addr, bytes) };
            return Ok(());
        }
        for (number, bytes) in bytes.chunks(MAX_BYTES).enumerate() {
            let addr = addr + number * MAX_BYTES;
            self.parts.extend(Soon::parts_of(0, within, addr, bytes, Tie::Behind));
            let stored = self.stream.store_all(&self.parts);
            self.parts.clear();
            stored?;
        }
        Ok(())
    }

    /// Stores parts, at most [`MAX_WRITES`] and each in a range on which the CPU has no window, in
    /// their order, but for those that are free of it. All are there when it returns. What some are
    /// made of is read before, all of it in one trip to the device.
    ///
    /// # Errors
    /// As [`Self::load`]. Then any of them may be missing.
    pub(crate) fn store_all(&mut self, words: &mut [Soon]) -> Result<(), CopyError> {
        for Soon { range, addr, len, .. } in &*words {
            range.check(*addr, (*len).into())?;
        }
        self.resolve(words)?;
        together::arrange(words);
        self.stream.store_all(words)
    }

    /// Reads what the values of words are made of that are to be stored, at most [`MAX_WRITES`].
    ///
    /// # Errors
    /// As [`Self::load`].
    pub(crate) fn resolve(&mut self, words: &mut [Soon]) -> Result<(), CopyError> {
        together::resolve(words, |words, unread| self.stream.load_all(words, unread))
    }

    fn choose(&mut self, options: &WordsOptions) -> Result<(), CopyError> {
        const ROUNDS: u32 = 32;
        let context = Arc::clone(self.stream.context());
        let page = Arc::clone(self.page.insert(DeviceMemory::page(&context)?).range());
        let unmapped = Arc::new(WordRange::unmapped(Arc::clone(&page)));
        let refused = match self.try_gdrcopy(&unmapped, options) {
            Ok(gdrcopy) => {
                self.mapper = Mapper { gdrcopy: Some(gdrcopy) };
                String::new()
            }
            Err(reason) => format!("; not by GDRCopy: {reason}"),
        };
        let (addr, mut word) = (page.addr(), [0; 8]);
        let within = Arc::new(self.mapper.open(page, None));
        let start = Instant::now();
        (0..ROUNDS).try_for_each(|_| self.store(&within, addr, &word))?;
        let stored = Instant::now();
        (0..ROUNDS).try_for_each(|_| self.load(&within, addr, &mut word))?;
        let (store, load) = ((stored - start) / ROUNDS, stored.elapsed() / ROUNDS);
        let way = match self.mapper.gdrcopy {
            Some(gdrcopy) => gdrcopy.to_string(),
            None if self.stream.has_operations() => {
                String::from("the driver's streams (stores are stream memory operations)")
            }
            None => String::from("the driver's streams (stores are copies)"),
        };
        log::info!(
            target: MEM,
            "words in memory of {context} are reached by {way}: load {load:?}, store {store:?}{refused}",
        );
        Ok(())
    }

    fn try_gdrcopy(
        &mut self,
        page: &Arc<WordRange>,
        options: &WordsOptions,
    ) -> Result<&'static Gdrcopy, String> {
        let Some(library) = &options.gdrcopy else { return Err(String::from("switched off")) };
        let gdrcopy = Gdrcopy::load(library).map_err(|error| error.to_string())?;
        let mapped = Mapped::by_gdrcopy(page.range(), gdrcopy)?;
        for len in [2, 4, 8] {
            let addr = page.range().addr() + 64 * len + len;
            let (first, second) =
                (&0x8192_a3b4_c5d6_e7f8_u64.to_le_bytes()[..len], &[0x17; 8][..len]);
            let (mut read, mut seen) = ([0; 8], [0; 8]);
            // SAFETY: a word of our own memory, and mapped.
            unsafe { mapped.store(addr, first) };
            self.load(page, addr, &mut read[..len]).map_err(|error| error.to_string())?;
            self.store(page, addr, second).map_err(|error| error.to_string())?;
            // SAFETY: the same word.
            unsafe { mapped.load(addr, &mut seen[..len]) };
            let (read, seen) = (&read[..len], &seen[..len]);
            if (read, seen) != (first, second) {
                return Err(format!(
                    "a word of {len} bytes came out as {read:x?} and {seen:x?}, not {first:x?} and \
                     {second:x?}",
                ));
            }
        }
        Ok(gdrcopy)
    }
}
