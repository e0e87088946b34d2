//! The device memory of this process that is staged, and what moves its bytes.
//!
//! Memory is registered and released by any thread, and moved by one, the proxy's, whose side is
//! the stager. What they share is behind one lock, held for a few instructions, and read anew by
//! the stager when a number has changed.
//!
//! # Why nobody waits for a kernel
//! Making engines and page-locked memory may wait for all kernels of a device, and a kernel may
//! wait for the proxy thread. So they are made by the thread that registers memory, when it is the
//! first of its context, under a lock that the proxy thread never takes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use thiserror::Error;

use crate::MEM;
use crate::copy::engine::CopyEngine;
use crate::copy::request::CopyError;
use crate::driver::context::Context;
use crate::driver::error::{CudaError, refused};
use crate::driver::hazards;
use crate::memory::pinned_memory::PinnedMemory;
use crate::memory::range::DeviceRange;
use crate::memory::shared_memory::SharedMemory;
use crate::staging::same_host::{SameHostPeers, Shares};
use crate::staging::serving_context::{self, Serving, StagingContext};
use crate::words::access::{Words, WordsOptions};
use crate::words::word_range::{Mapper, WordRange};
use engine::port::copies::{Bounce, MAX_BOUNCE_BUFFERS};
use engine::port::{Access, PortError};

/// How to stage.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StagingOptions {
    /// Bytes of a bounce buffer of bounce memory: a multiple of 4096, and not 0.
    pub bounce_len: usize,
    /// Bounce buffers for each direction: 1 to [`MAX_BOUNCE_BUFFERS`].
    pub bounces: u16,
    /// How words are reached.
    pub words: WordsOptions,
    /// In which context.
    pub context: StagingContext,
}

impl StagingOptions {
    /// Bytes of all bounce buffers.
    pub fn bounce_bytes(&self) -> usize {
        self.bounce_len.saturating_mul(2 * usize::from(self.bounces))
    }
}

/// Why memory cannot be staged.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the texts of errors say it")]
pub enum StagingError {
    #[error(transparent)]
    Cuda(#[from] CudaError),
    #[error(transparent)]
    Words(#[from] CopyError),
    #[error("{bounces} bounce buffers of {bounce_len} bytes cannot be staged with")]
    Options { bounces: u16, bounce_len: usize },
    #[error("{len} bytes of bounce memory: {why}")]
    Memory { len: usize, why: String },
    #[error("staging has ended in this process, with what went wrong before")]
    Ended,
}

impl From<StagingError> for PortError {
    fn from(error: StagingError) -> Self {
        match error {
            StagingError::Cuda(error) => error.into(),
            StagingError::Words(error) => error.into(),
            other => refused("staging memory", other.to_string()),
        }
    }
}

/// Staged ranges of this process.
///
/// # Threads
/// Any, at once.
#[derive(Debug)]
pub struct Staging {
    options: StagingOptions,
    /// Rises with each change of `shared`, after the change.
    epoch: AtomicU64,
    /// Held for a few instructions: the proxy thread takes it.
    shared: Mutex<Shared>,
    /// Held while things are made, which may wait for the device. Never taken by the proxy thread.
    making: Mutex<Making>,
}

/// Tables that the stager reads.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) ranges: Vec<Staged>,
    /// Copy engines made for contexts and not taken yet, in the order of their indices.
    pub(crate) arrivals: Vec<ContextCopies>,
    /// The stager's bounce memory, page-locked since it was given that.
    pub(crate) pinned: Option<Arc<PinnedMemory>>,
    pub(crate) ended: bool,
}

/// A range that is staged.
#[derive(Clone, Debug)]
pub(crate) struct Staged {
    /// Where the engine knows it; the driver may know it elsewhere.
    pub(crate) addr: usize,
    pub(crate) context: usize,
    /// Whether it is [`Access::Signals`].
    pub(crate) is_signals: bool,
    pub(crate) range: Arc<WordRange>,
}

/// Copies of one device, all in one context.
#[derive(Debug)]
pub(crate) struct ContextCopies {
    pub(crate) outward: CopyEngine,
    pub(crate) inward: CopyEngine,
    pub(crate) words: Words,
}

impl ContextCopies {
    fn new(context: &Arc<Context>, words: &WordsOptions) -> Result<Self, StagingError> {
        Ok(Self {
            outward: CopyEngine::new(context)?,
            inward: CopyEngine::new(context)?,
            words: Words::new(context, words)?,
        })
    }
}

#[derive(Debug, Default)]
struct Making {
    /// Devices with engines; their index is their place here.
    devices: Vec<OfDevice>,
    bounce: Option<(Arc<PinnedMemory>, SameHostPeers)>,
    /// Bounce memory of the stager until there is a device to page-lock it for.
    plain: Option<Arc<SharedMemory>>,
    /// Memory to be shared, until bounce memory is made.
    shares: Option<Shares>,
    given: bool,
}

#[derive(Debug)]
struct OfDevice {
    context: Arc<Context>,
    mapper: Mapper,
}

/// Staged memory. Dropping it ends that: no operation may be using it.
#[derive(Debug)]
pub struct StagedRegion {
    staging: Arc<Staging>,
    range: Arc<WordRange>,
    /// Whether what moves its bytes has a context of our own.
    of_own_context: bool,
}

impl Staging {
    /// Nothing is staged. Costs nothing.
    pub fn new(options: StagingOptions) -> Arc<Self> {
        Arc::new(Self {
            options,
            epoch: AtomicU64::new(1),
            shared: Mutex::default(),
            making: Mutex::default(),
        })
    }

    /// Bounce memory is to be shared with other processes of this host, if there will be any.
    pub fn share(&self, shares: Shares) {
        lock(&self.making).shares = Some(shares);
    }

    /// Stages a range, which the engine knows from `addr` on. The driver's copies may go to other
    /// addresses of the same memory: those of the range. `alias` is where a window for the CPU may
    /// be opened if it cannot be on the range itself.
    ///
    /// Words of [`Access::Signals`] are read once, and remembered.
    ///
    /// A device's first range makes what moves its bytes, in a second maybe, waiting for kernels.
    ///
    /// # Errors
    /// When the driver has no memory for that, and when the stager is gone.
    pub fn register(
        self: &Arc<Self>,
        addr: usize,
        range: DeviceRange,
        alias: Option<DeviceRange>,
        access: Access,
    ) -> Result<StagedRegion, StagingError> {
        if lock(&self.shared).ended {
            return Err(StagingError::Ended);
        }
        let (context, mapper, of_own_context) = self.device(&range)?;
        let range = Arc::new(mapper.open(Arc::new(range), alias.map(Arc::new)));
        let is_signals = access == Access::Signals;
        let staged = Staged { addr, context, is_signals, range: Arc::clone(&range) };
        self.change(|shared| shared.ranges.push(staged));
        Ok(StagedRegion { staging: Arc::clone(self), range, of_own_context })
    }

    /// Takes the bounce memory, once, after memory was registered: for the stager.
    pub(super) fn take_bounce(&self) -> Option<(Arc<PinnedMemory>, SameHostPeers, Bounce)> {
        let mut making = lock(&self.making);
        let (memory, peers) = making.bounce.take()?;
        making.given = true;
        drop(making);
        let bounce = self.bounce_at(memory.addr());
        Some((memory, peers, bounce))
    }

    pub(super) fn patience(&self) -> Duration {
        self.options.words.patience
    }

    /// Bounce memory for host memory that nobody has registered, in a process that has staged
    /// nothing. It is not page-locked, and so is made without asking a device. None where there is
    /// a stager, or another thread is about to have one. It never waits.
    pub(super) fn make_plain_bounce(
        &self,
    ) -> Result<Option<(Arc<SharedMemory>, Bounce)>, StagingError> {
        let mut making = match self.making.try_lock() {
            Ok(making) => making,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(None),
        };
        if making.given || making.bounce.is_some() {
            return Ok(None);
        }
        let len = self.bounce_bytes()?;
        let (memory, _) = SharedMemory::create(len)
            .map_err(|error| StagingError::Memory { len, why: error.to_string() })?;
        let memory = Arc::new(memory);
        making.given = true;
        making.plain = Some(Arc::clone(&memory));
        drop(making);
        let StagingOptions { bounce_len, bounces, .. } = self.options;
        log::info!(
            target: MEM,
            "local memory that nobody has registered is staged: {bounces} bounce buffers of {bounce_len} bytes each way",
        );
        let bounce = self.bounce_at(memory.addr());
        Ok(Some((memory, bounce)))
    }

    fn bounce_at(&self, addr: usize) -> Bounce {
        let StagingOptions { bounce_len, bounces, .. } = self.options;
        Bounce { addr, bounce_len, out: bounces, inward: bounces }
    }

    fn bounce_bytes(&self) -> Result<usize, StagingError> {
        let StagingOptions { bounce_len, bounces, .. } = self.options;
        if bounce_len == 0 || bounce_len % 4096 != 0 || !(1..=MAX_BOUNCE_BUFFERS).contains(&bounces)
        {
            return Err(StagingError::Options { bounces, bounce_len });
        }
        Ok(self.options.bounce_bytes())
    }

    /// How many ranges are staged.
    pub fn len(&self) -> usize {
        lock(&self.shared).ranges.len()
    }

    /// Whether nothing is staged.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The index of a range's device, what maps its words, and whether it is staged in a context of
    /// our own; makes what moves its bytes.
    fn device(&self, range: &DeviceRange) -> Result<(usize, Mapper, bool), StagingError> {
        let mut making = lock(&self.making);
        let known = |of: &OfDevice| of.context.has_device_of(range.context());
        if let Some(index) = making.devices.iter().position(known) {
            let of = &making.devices[index];
            return Ok((index, of.mapper, of.context.is_own()));
        }
        let StagingOptions { bounce_len, bounces, ref words, context } = self.options;
        let len = self.bounce_bytes()?;
        // What fails here leaves nothing behind.
        let Serving { ref context, rows } = serving_context::choose(range.context(), context);
        let bounce = match (making.given, &making.bounce) {
            (false, None) => {
                let shares =
                    making.shares.take().filter(|shares| shares.layout.bounce_bytes() == len);
                Some(match shares.and_then(|shares| SameHostPeers::pin(shares, context)) {
                    Some(shared) => shared,
                    None => (PinnedMemory::new(context, len)?, SameHostPeers::default()),
                })
            }
            _ => None,
        };
        let plain = making.plain.as_ref();
        let pinned = plain.map(|plain| PinnedMemory::register(context, plain, plain.len()));
        let pinned = pinned.transpose()?;
        let mut copies = match ContextCopies::new(context, words) {
            Ok(copies) => copies,
            Err(error) => {
                let shared = bounce.as_ref().map(|(_, peers)| peers.pes().count());
                if shared.is_some_and(|shared| shared != 0) {
                    // What was shared goes with it.
                    log::warn!(
                        target: MEM,
                        "bounce memory is not shared with other PEs of this host from now on, and what goes between them \
                         goes through the fabric: {error}"
                    );
                }
                return Err(error);
            }
        };
        log::info!(
            target: MEM,
            "memory of {context} is staged: {bounces} bounce buffers of {bounce_len} bytes each way{}",
            if bounce.is_some() || pinned.is_some() { ", page-locked now" } else { ", the same as for others" },
        );
        if let Some((_, peers)) = &bounce {
            let pes: Vec<String> = peers.pes().map(|pe| pe.to_string()).collect();
            if !pes.is_empty() {
                log::info!(
                    target: MEM,
                    "bounce memory is shared with {} of this host: no processor copies what goes between them",
                    pes.join(", "),
                );
            }
        }
        if !context.is_own() {
            hazards::warn(context.driver());
        }
        copies.inward.set_rows(rows);
        copies.words.set_rows(rows);
        let mapper = copies.words.mapper();
        let (index, is_own) = (making.devices.len(), context.is_own());
        making.devices.push(OfDevice { context: Arc::clone(context), mapper });
        if bounce.is_some() {
            making.bounce = bounce;
        }
        if pinned.is_some() {
            making.plain = None;
        }
        // Before any range of it is there to be found.
        self.change(|shared| {
            shared.arrivals.push(copies);
            shared.pinned = pinned.or(shared.pinned.take());
        });
        Ok((index, mapper, is_own))
    }

    #[inline(always)]
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    pub(crate) fn read(&self) -> (MutexGuard<'_, Shared>, u64) {
        let shared = lock(&self.shared);
        // Read under the lock: what is read holds exactly the changes up to this number.
        let epoch = self.epoch();
        (shared, epoch)
    }

    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Shared) -> T) -> T {
        let mut shared = lock(&self.shared);
        let changed = change(&mut shared);
        // Under the lock, so that who sees the new number also finds the change.
        self.epoch.fetch_add(1, Ordering::Release);
        changed
    }
}

impl StagedRegion {
    /// The range that the driver's copies reach.
    pub fn range(&self) -> &Arc<DeviceRange> {
        self.range.range()
    }

    /// Whether calls of the program hold it up though it is copied in a context of our own, since
    /// it belongs to one of the program. Where there is none of our own, the log has said so.
    pub fn is_held_up(&self) -> bool {
        self.of_own_context && self.range().is_owned()
    }

    /// Whether the CPU has a window on it.
    pub fn is_mapped(&self) -> bool {
        self.range.is_mapped()
    }
}

impl Drop for StagedRegion {
    fn drop(&mut self) {
        // Taken out and dropped outside the lock: it may be a window, whose end is system calls.
        // The stager has no hold on it but while it uses it.
        let taken = self.staging.change(|shared| {
            let same = |other: &Staged| Arc::ptr_eq(&other.range, &self.range);
            let at = shared.ranges.iter().position(same)?;
            Some(shared.ranges.swap_remove(at))
        });
        drop(taken);
    }
}

/// Locks what no panic leaves inconsistent: each change of it is one step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
