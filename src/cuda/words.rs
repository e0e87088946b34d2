//! Single words in device memory, read and written by the CPU: what signals and atomics need.
//!
//! There are three ways. GDRCopy and, where the driver offers it, a mapped dma-buf let the CPU reach
//! the memory directly. Copies and stream memory operations always work. Which one is used is found
//! out once for each context, on memory of our own: a way counts when words written by it are read by
//! the driver's copies and the other way round. The log says what was taken, what it costs, and why
//! others were not.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use thiserror::Error;

use super::context::Context;
use super::copy::{StartError, Word};
use super::error::CudaError;
use super::gdrcopy::{GDRCOPY_LIBRARY, Gdrcopy};
use super::mapping::Mapped;
use super::range::DeviceRange;
use super::scratch::Scratch;
use super::stream_words::StreamWords;
use crate::engine::atomic::Width;
use crate::logging;

/// How words are reached.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Way {
    /// The CPU, through a mapping by GDRCopy.
    Gdrcopy,
    /// The CPU, through a mapping of the memory's dma-buf.
    DmaBuf,
    /// The driver: loads by copies, stores by stream memory operations or copies.
    Stream,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Way::Gdrcopy => "GDRCopy",
            Way::DmaBuf => "a mapped dma-buf",
            Way::Stream => "the driver's streams",
        })
    }
}

/// What a word costs, as measured at the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cost {
    /// A load of 8 bytes.
    pub load: Duration,
    /// A store of 8 bytes.
    pub store: Duration,
}

/// Which ways may be tried.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WordsOptions {
    /// The library of GDRCopy. None: not to be used.
    pub gdrcopy: Option<String>,
    /// Whether a dma-buf may be mapped.
    pub dma_buf: bool,
    /// How long the device may take for a word before that is an error.
    pub patience: Duration,
}

impl Default for WordsOptions {
    fn default() -> Self {
        let gdrcopy = Some(GDRCOPY_LIBRARY.to_owned());
        Self { gdrcopy, dma_buf: true, patience: Duration::from_secs(30) }
    }
}

/// Why a word was not read or written.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum WordError {
    /// No attached range has this word, or it is not aligned to its width.
    #[error("no word of {width} bytes at {addr:#x} in the attached memory of {context}")]
    NoWord {
        /// The address.
        addr: usize,
        /// The width in bytes.
        width: usize,
        /// The context.
        context: String,
    },
    /// The driver could not do it.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// The word could not be given to the driver.
    #[error(transparent)]
    Start(StartError),
}

impl From<StartError> for WordError {
    fn from(error: StartError) -> Self {
        match error {
            StartError::Cuda(error) => WordError::Cuda(error),
            other => WordError::Start(other),
        }
    }
}

/// Reads and writes of words, one after the other. Each is done when the call returns.
///
/// Nothing here is atomic with what the device or another thread does to the same word: all changes
/// of a word that have to be atomic among themselves come from the one thread that has this value.
pub trait WordAccess {
    /// Loads a word.
    ///
    /// # Errors
    /// When there is no such word, and when the driver fails.
    fn load(&mut self, addr: usize, width: Width) -> Result<u64, WordError>;

    /// Stores a word. What this thread has seen done before is visible to who sees the word.
    ///
    /// # Errors
    /// As [`Self::load`].
    fn store(&mut self, addr: usize, width: Width, value: u64) -> Result<(), WordError>;

    /// Loads a word, stores what `apply` makes of it, and returns the word before. Where it stays
    /// the same nothing is stored.
    ///
    /// # Errors
    /// As [`Self::load`]. After an error the word is as before, or as it should be.
    fn fetch_apply(
        &mut self,
        addr: usize,
        width: Width,
        apply: &mut dyn FnMut(u64) -> u64,
    ) -> Result<u64, WordError> {
        let before = self.load(addr, width)?;
        let after = apply(before) & width.mask();
        if after != before {
            self.store(addr, width, after)?;
        }
        Ok(before)
    }
}

/// Words in device memory of one context.
///
/// Ranges are attached when they are registered and detached before they are freed. Making and
/// dropping this may wait for everything on the device.
#[derive(Debug)]
pub struct Words {
    /// Ascending by address.
    attached: Vec<Attached>,
    stream: StreamWords,
    way: Way,
    cost: Cost,
    gdrcopy: Option<&'static Gdrcopy>,
    /// Dropped after everything that maps it or copies to it.
    _scratch: Scratch,
}

#[derive(Debug)]
struct Attached {
    range: Arc<DeviceRange>,
    /// None: by the stream.
    mapped: Option<Mapped>,
}

impl Words {
    /// Finds the best way that works for a context, measures it and says so in the log.
    ///
    /// # Errors
    /// When not even copies work.
    pub fn new(context: &Arc<Context>, options: &WordsOptions) -> Result<Self, CudaError> {
        let scratch = Scratch::new(context)?;
        let stream = StreamWords::new(context, options.patience)?;
        let cost = Cost { load: Duration::ZERO, store: Duration::ZERO };
        let attached = Vec::new();
        let mut words =
            Self { attached, stream, way: Way::Stream, cost, gdrcopy: None, _scratch: scratch };
        let mut refused = Vec::new();
        for way in [Way::Gdrcopy, Way::DmaBuf] {
            match words.try_way(way, options) {
                Ok(()) => {
                    words.way = way;
                    break;
                }
                Err(reason) => refused.push(format!("not by {way}: {reason}")),
            }
        }
        words.cost = words.measure().map_err(|error| words.fault(error))?;
        log::info!(
            target: logging::MEM,
            "words in memory of {context} are reached by {}: load {:?}, store {:?}{}{}",
            words.name(),
            words.cost.load,
            words.cost.store,
            if refused.is_empty() { "" } else { "; " },
            refused.join("; "),
        );
        Ok(words)
    }

    /// The way that is taken where nothing speaks against it.
    pub fn way(&self) -> Way {
        self.way
    }

    /// What a word costs by that way.
    pub fn cost(&self) -> Cost {
        self.cost
    }

    /// Makes the words of a range reachable, and tells by which way. Where the range cannot be
    /// mapped (a window too small for it, for one) the driver's streams serve it, and the log says
    /// why.
    ///
    /// # Errors
    /// When the range belongs to another context.
    pub fn attach(&mut self, range: &Arc<DeviceRange>) -> Result<Way, StartError> {
        let context = self.stream.engine().context();
        if !range.context().is(context) {
            let (memory, engine) = (range.context().to_string(), context.to_string());
            return Err(StartError::Context { memory, engine });
        }
        let mapped = match self.map(range, self.way) {
            Ok(mapped) => mapped,
            Err(reason) => {
                log::warn!(
                    target: logging::MEM,
                    "{} bytes at {:#x} of {context} cannot be reached by {}, and are by {}: {reason}",
                    range.len(),
                    range.addr(),
                    self.way,
                    Way::Stream,
                );
                None
            }
        };
        let way = if mapped.is_some() { self.way } else { Way::Stream };
        let at = self.attached.partition_point(|other| other.range.addr() < range.addr());
        self.attached.insert(at, Attached { range: Arc::clone(range), mapped });
        Ok(way)
    }

    /// Lets go of a range. One that is not attached is none to let go of.
    pub fn detach(&mut self, range: &DeviceRange) {
        let same = |other: &Attached| std::ptr::eq(&*other.range, range);
        if let Some(at) = self.attached.iter().position(same) {
            self.attached.remove(at);
        }
    }

    fn map(&self, range: &Arc<DeviceRange>, way: Way) -> Result<Option<Mapped>, String> {
        match (way, self.gdrcopy) {
            (Way::Gdrcopy, Some(gdrcopy)) => Mapped::by_gdrcopy(range, gdrcopy).map(Some),
            (Way::DmaBuf, _) => Mapped::by_dma_buf(range).map(Some),
            _ => Ok(None),
        }
    }

    /// Tries a way on memory of our own: what one side writes, the other has to read.
    fn try_way(&mut self, way: Way, options: &WordsOptions) -> Result<(), String> {
        match (way, &options.gdrcopy) {
            (Way::Gdrcopy, None) => return Err(String::from("switched off")),
            (Way::Gdrcopy, Some(library)) => {
                self.gdrcopy = Some(Gdrcopy::load(library).map_err(|error| error.to_string())?);
            }
            (Way::DmaBuf, _) if !options.dma_buf => return Err(String::from("switched off")),
            _ => {}
        }
        let range = Arc::clone(self._scratch.range());
        let Some(mapped) = self.map(&range, way)? else { return Err(String::from("no mapping")) };
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
        Ok(())
    }

    /// What loads and stores cost on average, on memory of our own.
    fn measure(&mut self) -> Result<Cost, WordError> {
        const ROUNDS: u32 = 32;
        let range = Arc::clone(self._scratch.range());
        self.attach(&range)?;
        let start = Instant::now();
        for round in 0..ROUNDS {
            self.store(range.addr(), Width::Eight, round.into())?;
        }
        let stored = Instant::now();
        for _ in 0..ROUNDS {
            self.load(range.addr(), Width::Eight)?;
        }
        let cost = Cost { load: stored.elapsed() / ROUNDS, store: (stored - start) / ROUNDS };
        self.detach(&range);
        Ok(cost)
    }

    /// The driver's part of an error while measuring; there is no other.
    fn fault(&self, error: WordError) -> CudaError {
        match error {
            WordError::Cuda(error) => error,
            other => CudaError {
                call: "cuMemcpyDtoHAsync_v2",
                subject: self.stream.engine().context().to_string(),
                code: super::error::code::INVALID_VALUE,
                name: String::from("CUDA_ERROR_INVALID_VALUE"),
                text: other.to_string(),
            },
        }
    }

    fn name(&self) -> String {
        match (self.way, self.gdrcopy) {
            (Way::Gdrcopy, Some(gdrcopy)) => gdrcopy.to_string(),
            (way, _) if way == Way::Stream => {
                let operations = self.stream.engine().writes_words(Width::Eight);
                let stores = if operations { "stream memory operations" } else { "copies" };
                format!("{way} (stores are {stores})")
            }
            (way, _) => way.to_string(),
        }
    }

    /// The attached range that has a word.
    #[inline]
    fn find(&self, addr: usize, width: Width) -> Result<usize, WordError> {
        let len = width.bytes();
        let behind = self.attached.partition_point(|other| other.range.addr() <= addr);
        let has = |index: &usize| self.attached[*index].range.contains(addr, len);
        // The last range that starts at or before the word has it, unless ranges overlap.
        let found = (0..behind).rev().find(has);
        found.filter(|_| addr % len == 0).ok_or_else(|| WordError::NoWord {
            addr,
            width: len,
            context: self.stream.engine().context().to_string(),
        })
    }
}

impl WordAccess for Words {
    #[inline]
    fn load(&mut self, addr: usize, width: Width) -> Result<u64, WordError> {
        let attached = &self.attached[self.find(addr, width)?];
        match &attached.mapped {
            // SAFETY: the word is in the range and aligned, as `find` has checked. The mapping is
            // ours until `detach`; behind it are the pages of the range, or none if it was freed.
            Some(mapped) => Ok(unsafe { mapped.load(addr, width) }),
            None => Ok(self.stream.load(&Word { range: &attached.range, addr, width })?),
        }
    }

    #[inline]
    fn store(&mut self, addr: usize, width: Width, value: u64) -> Result<(), WordError> {
        let attached = &self.attached[self.find(addr, width)?];
        match &attached.mapped {
            Some(mapped) => {
                // SAFETY: as in `load`.
                unsafe { mapped.store(addr, width, value) };
                Ok(())
            }
            None => Ok(self.stream.store(&Word { range: &attached.range, addr, width }, value)?),
        }
    }
}
