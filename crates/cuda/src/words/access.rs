//! CPU access to words and a few bytes of device memory, for signals and atomics.
//!
//! There are three methods: a CPU mapping of the memory by GDRCopy; one by the driver, of its
//! dma-bufs (CUDA 13.3); and copies and stream memory operations, which always work. The first that
//! passes is chosen once for each context, by a trial on memory of our own: a mapping is used if
//! the driver's copies read words that it wrote, and the reverse. The log names the method, its
//! cost, and the reasons against those before it.

use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::MEM;
use crate::copy::MAX_WRITES;
use crate::copy::request::CopyError;
use crate::copy::resident::ResidentKernel;
use crate::driver::context::Context;
use crate::driver::device::Device;
use crate::memory::device_memory::DeviceMemory;
use crate::words::deferred::{self, DeferredWrite, MAX_BYTES, WriteOrder};
use crate::words::gdrcopy::{GDRCOPY_LIBRARY, Gdrcopy};
use crate::words::mapping::{RangeMapping, Window};
use crate::words::stream_words::StreamWords;
use crate::words::word_range::{Mapper, WordRange};

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WordsOptions {
    /// Library of GDRCopy; None to not use it.
    pub gdrcopy: Option<String>,
    /// Whether the driver may map dma-bufs for the CPU.
    pub dma_buf: bool,
    /// Time limit for the device.
    pub patience: Duration,
}

impl Default for WordsOptions {
    fn default() -> Self {
        let gdrcopy = Some(GDRCOPY_LIBRARY.to_owned());
        Self { gdrcopy, dma_buf: true, patience: Duration::from_secs(30) }
    }
}

/// Access to words in device memory of one context. Complete when the call returns.
///
/// No access is atomic relative to the device or another thread: one thread, which has this value,
/// makes all changes of a word that have to be atomic relative to each other.
///
/// Creating and dropping this may wait for all work on the device.
#[derive(Debug)]
pub struct Words {
    stream: StreamWords,
    mapper: Mapper,
    /// Parts of the bytes being stored; empty between calls.
    parts: Vec<DeferredWrite>,
    /// Memory of the trial. Dropped after everything that maps it or copies to it.
    page: Option<DeviceMemory>,
}

struct Known {
    context: Arc<Context>,
    options: WordsOptions,
    mapper: Mapper,
}

static KNOWN: Mutex<Vec<Known>> = Mutex::new(Vec::new());

impl Words {
    /// Chooses the fastest method that works for a context, and logs its cost.
    ///
    /// # Errors
    /// Not even copies work.
    pub fn new(context: &Arc<Context>, options: &WordsOptions) -> Result<Self, CopyError> {
        let stream = StreamWords::new(context, options.patience)?;
        let parts = Vec::with_capacity(MAX_WRITES);
        let mut words = Self { stream, mapper: Mapper { window: None }, parts, page: None };
        // Locked meanwhile: two measurements of one device would disturb each other.
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let is_it = |of: &&Known| of.context.is(context) && of.options == *options;
        if let Some(Known { mapper, .. }) = known.iter().find(is_it) {
            words.mapper = *mapper;
            return Ok(words);
        }
        words.choose(options)?;
        // A context of the program may end, and another one take its address.
        if context.is_own() {
            let (context, options) = (Arc::clone(context), options.clone());
            known.push(Known { context, options, mapper: words.mapper });
        }
        Ok(words)
    }

    pub(crate) fn set_rows(&mut self, rows: bool) {
        self.stream.set_rows(rows);
    }

    pub(crate) fn set_resident(&mut self, resident: Option<&Arc<ResidentKernel>>) {
        self.stream.set_resident(resident);
    }

    /// Returns the mapper for ranges of the same context, for any thread.
    pub fn mapper(&self) -> Mapper {
        self.mapper
    }

    /// Loads a few bytes of a range of the same context; aligned words are loaded whole. Without a
    /// CPU mapping, each 256 bytes take a round trip to the device.
    ///
    /// # Errors
    /// The bytes are not all in the range, or the driver fails. The bytes in `into` are undefined
    /// then.
    pub(crate) fn load(
        &mut self,
        within: &WordRange,
        addr: usize,
        into: &mut [u8],
    ) -> Result<(), CopyError> {
        within.check(addr, into.len())?;
        match within.cpu_mapping(addr) {
            Some((mapped, addr)) => {
                // SAFETY: the bytes are in the range, as just checked. The mapping is the range's,
                // of its pages, or of none if the memory was freed.
                unsafe { mapped.load(addr, into) };
                Ok(())
            }
            None => self.stream.load(within.range(), addr, into),
        }
    }

    /// Stores a few bytes to a range of the same context; aligned words are stored whole. They are
    /// visible when it returns, before every word that is stored later and after everything that
    /// this thread has seen complete.
    ///
    /// # Errors
    /// As [`Self::load`]. The bytes in the range are undefined then.
    pub(crate) fn store(
        &mut self,
        within: &Arc<WordRange>,
        addr: usize,
        bytes: &[u8],
    ) -> Result<(), CopyError> {
        within.check(addr, bytes.len())?;
        if let Some((mapped, addr)) = within.cpu_mapping(addr) {
            // SAFETY: as in `load`.
            unsafe { mapped.store(addr, bytes) };
            return Ok(());
        }
        for (number, bytes) in bytes.chunks(MAX_BYTES).enumerate() {
            let addr = addr + number * MAX_BYTES;
            self.parts.extend(DeferredWrite::parts_of(0, within, addr, bytes, WriteOrder::After));
            let stored = self.stream.store_all(&self.parts);
            self.parts.clear();
            stored?;
        }
        Ok(())
    }

    /// Stores at most [`MAX_WRITES`] deferred writes to ranges without CPU mapping, as their orders
    /// demand. All are stored when it returns. Words that updates need are loaded before, in one
    /// round trip to the device.
    ///
    /// # Errors
    /// As [`Self::load`]. Any of the writes may be missing then.
    pub(crate) fn store_all(&mut self, words: &mut [DeferredWrite]) -> Result<(), CopyError> {
        for DeferredWrite { range, addr, len, .. } in &*words {
            range.check(*addr, (*len).into())?;
        }
        self.resolve(words)?;
        deferred::arrange(words);
        self.stream.store_all(words)
    }

    /// Computes the values of at most [`MAX_WRITES`] deferred writes, loading the words that
    /// updates need.
    pub(crate) fn resolve(&mut self, words: &mut [DeferredWrite]) -> Result<(), CopyError> {
        deferred::resolve(words, |words, unread| self.stream.load_all(words, unread))
    }

    fn choose(&mut self, options: &WordsOptions) -> Result<(), CopyError> {
        const ROUNDS: u32 = 32;
        let context = Arc::clone(self.stream.context());
        let page = Arc::clone(self.page.insert(DeviceMemory::page(&context)?).range());
        let unmapped = Arc::new(WordRange::unmapped(Arc::clone(&page)));
        let mut refused = String::new();
        let windows = [("GDRCopy", gdrcopy(options)), ("dma-bufs", dma_bufs(&context, options))];
        for (name, window) in windows {
            match window.and_then(|window| self.prove(&unmapped, window)) {
                Ok(window) => {
                    self.mapper.window = Some(window);
                    break;
                }
                Err(reason) => _ = write!(refused, "; not by {name}: {reason}"),
            }
        }
        let (addr, mut word) = (page.addr(), [0; 8]);
        let within = Arc::new(self.mapper.open(page, None));
        let start = Instant::now();
        (0..ROUNDS).try_for_each(|_| self.store(&within, addr, &word))?;
        let stored = Instant::now();
        (0..ROUNDS).try_for_each(|_| self.load(&within, addr, &mut word))?;
        let (store, load) = ((stored - start) / ROUNDS, stored.elapsed() / ROUNDS);
        let streams = || String::from("the driver's streams");
        let way = self.mapper.window.map_or_else(streams, |window| window.to_string());
        log::info!(
            target: MEM,
            "words in memory of {context} are reached by {way}: load {load:?}, store {store:?}{refused}",
        );
        Ok(())
    }

    /// Returns the window if words of a page come out through it as they went in.
    fn prove(&mut self, page: &Arc<WordRange>, window: Window) -> Result<Window, String> {
        let mapped = RangeMapping::new(page.range(), window)?;
        for len in [2, 4, 8] {
            let addr = page.range().addr() + 1024;
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
        Ok(window)
    }
}

fn gdrcopy(options: &WordsOptions) -> Result<Window, String> {
    let library = options.gdrcopy.as_ref().ok_or("switched off")?;
    Gdrcopy::load(library).map(Window::Gdrcopy).map_err(|error| error.to_string())
}

fn dma_bufs(context: &Context, options: &WordsOptions) -> Result<Window, String> {
    if !options.dma_buf {
        return Err(String::from("switched off"));
    }
    let attributes = Device::new(context.driver(), context.device())
        .and_then(|device| device.attributes())
        .map_err(|error| error.to_string())?;
    let reason = || String::from("the driver maps none for the CPU");
    attributes.dma_buf_mmap.then_some(Window::DmaBuf).ok_or_else(reason)
}
