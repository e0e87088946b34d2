//! Registry of the staged device memory of this process, and of the engines that copy it.
//!
//! Any thread registers and releases memory; the proxy thread copies it, through the stager. Their
//! shared state is behind one lock, held for a few instructions; the stager reads it anew when the
//! epoch has changed.
//!
//! # Why nobody waits for a kernel
//! Creating engines and page-locked memory may wait for all kernels of a device, and a kernel may
//! wait for the proxy thread. So the thread that registers a device's first memory creates them,
//! under a lock that the proxy thread never waits for.

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

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StagingOptions {
    /// Bytes of a bounce buffer: a multiple of 4096, and not 0.
    pub bounce_len: usize,
    /// Bounce buffers for each direction: 1 to [`MAX_BOUNCE_BUFFERS`].
    pub bounces: u16,
    pub words: WordsOptions,
    /// Context in which memory is copied.
    pub context: StagingContext,
    /// Time for a launch of the resident kernel to start, after which streams do its work; also its
    /// longest time for a short copy. None to have none.
    pub resident: Option<Duration>,
}

impl StagingOptions {
    /// Bytes of all bounce buffers.
    pub fn bounce_bytes(&self) -> usize {
        self.bounce_len.saturating_mul(2 * usize::from(self.bounces))
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
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

/// Staged device memory of this process, with what copies it.
///
/// # Threads
/// Any, at once.
#[derive(Debug)]
pub struct Staging {
    options: StagingOptions,
    /// Incremented after each change of `shared`, under its lock.
    epoch: AtomicU64,
    /// Held for a few instructions: the proxy thread takes it.
    shared: Mutex<Shared>,
    /// Locked while engines and memory are created, which may wait for the device. The proxy thread
    /// only tries to lock it.
    setup: Mutex<Setup>,
}

/// Tables that the stager reads.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) ranges: Vec<StagedRange>,
    /// Copy engines created for contexts and not yet taken by the stager, in the order of their
    /// indices.
    pub(crate) new_contexts: Vec<ContextCopies>,
    /// The stager's bounce memory, if it was page-locked after the stager had taken it.
    pub(crate) pinned: Option<Arc<PinnedMemory>>,
    pub(crate) ended: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct StagedRange {
    /// Address that the protocol engine uses; the driver's may differ.
    pub(crate) addr: usize,
    pub(crate) context: usize,
    /// Whether it was registered with [`Access::Signals`].
    pub(crate) is_signals: bool,
    pub(crate) range: Arc<WordRange>,
}

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
struct Setup {
    devices: Vec<StagedDevice>,
    bounce: Option<(Arc<PinnedMemory>, SameHostPeers)>,
    /// The stager's pageable bounce memory, until there is a device to page-lock it for.
    plain: Option<Arc<SharedMemory>>,
    /// Memory to be shared, until bounce memory is created.
    shares: Option<Shares>,
    bounce_taken: bool,
}

#[derive(Debug)]
struct StagedDevice {
    context: Arc<Context>,
    mapper: Mapper,
}

/// Registration of staged memory, until dropped. No operation may then be using the memory.
#[derive(Debug)]
pub struct StagedRegion {
    staging: Arc<Staging>,
    range: Arc<WordRange>,
    /// Whether its copies are in a context of the transport's own.
    of_own_context: bool,
}

impl Staging {
    /// Creates an empty registry, without calls of the driver.
    pub fn new(options: StagingOptions) -> Arc<Self> {
        Arc::new(Self {
            options,
            epoch: AtomicU64::new(1),
            shared: Mutex::default(),
            setup: Mutex::default(),
        })
    }

    /// Sets the memory to use as bounce memory, shared with other processes of this host.
    pub fn share(&self, shares: Shares) {
        lock(&self.setup).shares = Some(shares);
    }

    /// Stages a range, for which the protocol engine uses addresses from `addr` on; the range has
    /// the driver's addresses of the same memory. `alias`, also of the same memory, is mapped for
    /// the CPU if the range itself cannot be.
    ///
    /// Words of [`Access::Signals`] are read once, and then shadowed in host memory.
    ///
    /// The first range of a device creates its copy engines, which may take a second and waits for
    /// kernels.
    ///
    /// # Errors
    /// The driver has no memory for the engines, or the stager has ended.
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
        let (context, mapper, of_own_context) = self.staged_device(&range)?;
        let range = Arc::new(mapper.open(Arc::new(range), alias.map(Arc::new)));
        let is_signals = access == Access::Signals;
        let staged = StagedRange { addr, context, is_signals, range: Arc::clone(&range) };
        self.change(|shared| shared.ranges.push(staged));
        Ok(StagedRegion { staging: Arc::clone(self), range, of_own_context })
    }

    /// Takes the bounce memory for the stager; None before memory is registered, and once taken.
    pub(super) fn take_bounce(&self) -> Option<(Arc<PinnedMemory>, SameHostPeers, Bounce)> {
        let mut setup = lock(&self.setup);
        let (memory, peers) = setup.bounce.take()?;
        setup.bounce_taken = true;
        drop(setup);
        let bounce = self.bounce_at(memory.addr());
        Some((memory, peers, bounce))
    }

    pub(super) fn patience(&self) -> Duration {
        self.options.words.patience
    }

    /// Creates pageable bounce memory, without a call of the driver, to stage unregistered host
    /// memory in a process that has staged nothing. Returns None if there is a stager, or another
    /// thread is creating its memory. Never waits.
    pub(super) fn make_plain_bounce(
        &self,
    ) -> Result<Option<(Arc<SharedMemory>, Bounce)>, StagingError> {
        let mut setup = match self.setup.try_lock() {
            Ok(setup) => setup,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(None),
        };
        if setup.bounce_taken || setup.bounce.is_some() {
            return Ok(None);
        }
        let len = self.bounce_bytes()?;
        let (memory, _) = SharedMemory::create(len)
            .map_err(|error| StagingError::Memory { len, why: error.to_string() })?;
        let memory = Arc::new(memory);
        setup.bounce_taken = true;
        setup.plain = Some(Arc::clone(&memory));
        drop(setup);
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

    /// Returns the number of staged ranges.
    pub fn ranges(&self) -> usize {
        lock(&self.shared).ranges.len()
    }

    /// Returns the index of a range's device, the mapper for its words, and whether the device has
    /// a context of the transport's own. Creates the device's copy engines if it has none.
    fn staged_device(&self, range: &DeviceRange) -> Result<(usize, Mapper, bool), StagingError> {
        let mut setup = lock(&self.setup);
        let known = |of: &StagedDevice| of.context.has_device_of(range.context());
        if let Some(index) = setup.devices.iter().position(known) {
            let of = &setup.devices[index];
            return Ok((index, of.mapper, of.context.is_own()));
        }
        let StagingOptions { bounce_len, bounces, ref words, context, resident } = self.options;
        let len = self.bounce_bytes()?;
        // A failure from here on leaves nothing behind, but no memory is shared after it.
        let Serving { ref context, rows, resident } =
            serving_context::choose(range.context(), context, resident);
        let bounce = match (setup.bounce_taken, &setup.bounce) {
            (false, None) => {
                let shares =
                    setup.shares.take().filter(|shares| shares.layout.bounce_bytes() == len);
                Some(match shares.and_then(|shares| SameHostPeers::pin(shares, context)) {
                    Some(shared) => shared,
                    None => (PinnedMemory::new(context, len)?, SameHostPeers::default()),
                })
            }
            _ => None,
        };
        let plain = setup.plain.as_ref();
        let pinned = plain.map(|plain| PinnedMemory::register(context, plain, plain.len()));
        let pinned = pinned.transpose()?;
        let mut copies = match ContextCopies::new(context, words) {
            Ok(copies) => copies,
            Err(error) => {
                let shared = bounce.as_ref().map(|(_, peers)| peers.pes().count());
                if shared.is_some_and(|shared| shared != 0) {
                    // The shared memory is dropped with it.
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
        copies.outward.set_rows(rows);
        copies.inward.set_rows(rows);
        copies.words.set_rows(rows);
        copies.outward.set_resident(resident.as_ref());
        copies.inward.set_resident(resident.as_ref());
        copies.words.set_resident(resident.as_ref());
        let mapper = copies.words.mapper();
        let (index, is_own) = (setup.devices.len(), context.is_own());
        setup.devices.push(StagedDevice { context: Arc::clone(context), mapper });
        if bounce.is_some() {
            setup.bounce = bounce;
        }
        if pinned.is_some() {
            setup.plain = None;
        }
        // Before the stager can find any range of the device.
        self.change(|shared| {
            shared.new_contexts.push(copies);
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
        // Read under the lock: the tables have exactly the changes up to this epoch.
        let epoch = self.epoch();
        (shared, epoch)
    }

    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Shared) -> T) -> T {
        let mut shared = lock(&self.shared);
        let changed = change(&mut shared);
        // Under the lock, so that a thread that sees the new epoch also finds the change.
        self.epoch.fetch_add(1, Ordering::Release);
        changed
    }
}

impl StagedRegion {
    /// Returns the range that the driver's copies reach.
    pub fn range(&self) -> &Arc<DeviceRange> {
        self.range.range()
    }

    /// Returns true if calls of the program delay its copies although they are in a context of the
    /// transport's own, since a context of the program owns the memory.
    pub fn is_held_up(&self) -> bool {
        self.of_own_context && self.range().is_owned()
    }

    /// Returns true if the memory has a CPU mapping.
    pub fn is_mapped(&self) -> bool {
        self.range.is_mapped()
    }
}

impl Drop for StagedRegion {
    fn drop(&mut self) {
        // Dropped outside the lock: unmapping takes system calls. The stager holds the range only
        // while it uses it.
        let taken = self.staging.change(|shared| {
            let same = |other: &StagedRange| Arc::ptr_eq(&other.range, &self.range);
            let at = shared.ranges.iter().position(same)?;
            Some(shared.ranges.swap_remove(at))
        });
        drop(taken);
    }
}

/// Locks a mutex whose state no panic leaves inconsistent, also if it is poisoned.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
