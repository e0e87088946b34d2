//! The stager, the proxy thread's side of staging: copies through bounce buffers, and words.

mod batches;
mod words;

use std::sync::{Arc, Weak};

use crate::copy::MAX_WRITES;
use crate::copy::engine::CopyEngine;
use crate::driver::context::Ordinal;
use crate::driver::error::{CudaError, refused};
use crate::driver::library::Driver;
use crate::memory::pinned_memory::PinnedMemory;
use crate::memory::range::fits;
use crate::memory::shared_memory::SharedMemory;
use crate::staging::in_flight::InFlight;
use crate::staging::range_cache::RangeCache;
use crate::staging::registry::{ContextCopies, Staging, StagingError};
use crate::staging::same_host::SameHostPeers;
use crate::words::deferred::{self, DeferredWrite, MAX_BYTES};
use crate::words::word_range::WordRange;
use batches::memory_of;
use engine::atomic::{Atomic, Width};
use engine::ids::Pe;
use engine::port::copies::{
    Copied, Copy, CopyDirection, CopyPort, DeferredOrder, MAX_BATCH_COPIES, MAX_WORDS, OrderedStep,
    PeerBounce, Reach, Stager, TaggedCopy,
};
use engine::port::{PortError, Posted};
use words::SignalShadow;

// Each step may have a word.
const _: () = assert!(MAX_WORDS <= MAX_WRITES);

/// Copies and accesses words, through the driver where the CPU does not reach the memory.
///
/// Registered ranges are in a table. Other memory is looked up at each use, which takes a driver
/// call, and the first time a few and an allocation.
///
/// Dropping it waits for copies in flight, and ends staging in this process.
#[derive(Debug)]
pub(crate) struct DeviceStager {
    staging: Arc<Staging>,
    /// Epoch of `staging` at the last refresh.
    epoch: u64,
    ranges: Vec<RangeEntry>,
    /// Indices of the ranges with a signal shadow.
    shadowed: Vec<usize>,
    contexts: Vec<ContextState>,
    /// Cache of unregistered memory, once the process has loaded CUDA.
    unregistered: Option<RangeCache>,
    outward: InFlight,
    inward: InFlight,
    first: CopyDirection,
    bounce: OwnBounce,
    peers: SameHostPeers,
    by_cpu: u64,
    /// Locations of the memory of the batch being started; None if the CPU reaches it.
    locations: Vec<Option<Location>>,
    /// Deferred writes, all of one context, in order.
    deferred: Vec<DeferredWrite>,
    /// Error of a deferred write, until the next flush reports it.
    flush_error: Option<PortError>,
}

#[derive(Debug)]
struct OwnBounce {
    addr: usize,
    len: usize,
    /// None while only the CPU copies from and to it: no device memory is staged.
    pinned: Option<Arc<PinnedMemory>>,
    _plain: Option<Arc<SharedMemory>>,
}

/// A registered range, held weakly: its release ends the CPU mapping.
#[derive(Debug)]
struct RangeEntry {
    addr: usize,
    len: usize,
    driver_addr: usize,
    context: usize,
    range: Weak<WordRange>,
    /// Host copies of its words, if only signals change them.
    words: SignalShadow,
}

#[derive(Debug)]
struct ContextState {
    copies: ContextCopies,
    /// Error of the first copy that failed; nothing more is copied then.
    failed: Option<CudaError>,
}

/// Location of memory that the driver reaches.
#[derive(Debug)]
struct Location {
    context: usize,
    range: Arc<WordRange>,
    addr: usize,
    /// Address that the protocol engine uses; `addr` is the driver's.
    memory: usize,
    /// Index of its range, if that has a signal shadow.
    shadow: Option<usize>,
}

impl Staging {
    /// Returns the stager, once, after memory was registered.
    pub fn take_stager(self: &Arc<Self>) -> Option<Stager> {
        let (memory, peers, bounce) = self.take_bounce()?;
        let (addr, len) = (memory.addr(), memory.len());
        let memory = OwnBounce { addr, len, pinned: Some(memory), _plain: None };
        let stager = DeviceStager::new(Arc::clone(self), memory, peers);
        Some(Stager { copies: Box::new(stager), bounce })
    }

    /// Creates a stager for unregistered host memory, in a process that has staged nothing. It also
    /// serves device memory that is registered later, but does not share its bounce memory with
    /// other PEs of the host. Returns None if a stager was given out, or another thread is creating
    /// one. Does not wait for a device.
    pub fn make_stager(self: &Arc<Self>) -> Result<Option<Stager>, StagingError> {
        let Some((memory, bounce)) = self.make_plain_bounce()? else { return Ok(None) };
        let (addr, len) = (memory.addr(), memory.len());
        let memory = OwnBounce { addr, len, pinned: None, _plain: Some(memory) };
        let stager = DeviceStager::new(Arc::clone(self), memory, SameHostPeers::default());
        Ok(Some(Stager { copies: Box::new(stager), bounce }))
    }
}

impl DeviceStager {
    fn new(staging: Arc<Staging>, bounce: OwnBounce, peers: SameHostPeers) -> Self {
        let of_pinned = |pinned: &Arc<PinnedMemory>| RangeCache::new(pinned.context().driver());
        Self {
            staging,
            epoch: 0,
            ranges: Vec::new(),
            shadowed: Vec::new(),
            contexts: Vec::new(),
            unregistered: bounce.pinned.as_ref().map(of_pinned),
            outward: InFlight::new(),
            inward: InFlight::new(),
            first: CopyDirection::Out,
            bounce,
            peers,
            by_cpu: 0,
            locations: Vec::with_capacity(MAX_BATCH_COPIES),
            deferred: Vec::with_capacity(MAX_WRITES),
            flush_error: None,
        }
    }

    #[inline]
    fn sync(&mut self) {
        if self.epoch != self.staging.epoch() {
            self.refresh();
        }
    }

    #[cold]
    fn refresh(&mut self) {
        let (mut shared, epoch) = self.staging.read();
        self.epoch = epoch;
        if let Some(pinned) = shared.pinned.take() {
            self.unregistered.get_or_insert_with(|| RangeCache::new(pinned.context().driver()));
            self.bounce.pinned = Some(pinned);
        }
        let new_contexts = shared.new_contexts.drain(..);
        let first = self.contexts.len();
        self.contexts.extend(new_contexts.map(|copies| ContextState { copies, failed: None }));
        for ContextState { copies, .. } in &mut self.contexts[first..] {
            for memory in self.peers.all_memory().chain(&self.bounce.pinned) {
                copies.outward.hold(memory);
                copies.inward.hold(memory);
            }
        }
        let mut before = std::mem::take(&mut self.ranges);
        self.ranges.extend(shared.ranges.iter().map(|staged| RangeEntry {
            addr: staged.addr,
            len: staged.range.range().len(),
            driver_addr: staged.range.range().addr(),
            context: staged.context,
            range: Arc::downgrade(&staged.range),
            words: if staged.is_signals {
                SignalShadow::of(&mut before, &staged.range)
            } else {
                SignalShadow::default()
            },
        }));
        drop(shared);
        self.ranges.sort_unstable_by_key(|entry| entry.addr);
        let all = self.ranges.iter().enumerate();
        let shadowed = all.filter(|(_, entry)| !entry.words.is_empty());
        self.shadowed = shadowed.map(|(at, _)| at).collect();
    }

    #[inline]
    fn registered(&self, addr: usize, len: usize) -> Option<Location> {
        let behind = self.ranges.partition_point(|entry| entry.addr <= addr);
        // The last range that starts at or before `addr` has it, unless ranges overlap.
        let has = |entry: &RangeEntry| fits(addr - entry.addr, len, entry.len);
        let at = self.ranges[..behind].iter().rposition(has)?;
        let entry = &self.ranges[at];
        // None if the range is being released, which the caller must not do while it is in use.
        let range = entry.range.upgrade()?;
        let shadow = (!entry.words.is_empty()).then_some(at);
        let (memory, addr) = (addr, entry.driver_addr + (addr - entry.addr));
        Some(Location { context: entry.context, range, addr, memory, shadow })
    }

    /// Returns the location of memory; None if the CPU reaches it.
    fn find(&mut self, addr: usize, len: usize) -> Result<Option<Location>, PortError> {
        self.sync();
        if let Some(location) = self.registered(addr, len) {
            return Ok(Some(location));
        }
        if len == 0 || addr.checked_add(len).is_none() {
            return Err(refused("examining memory", format!("{len} bytes at {addr:#x}")));
        }
        let contexts = &self.contexts;
        let context_of = |device: Ordinal| {
            let known = contexts.iter().map(|of| of.copies.inward.context());
            known.into_iter().find(|context| context.device() == device).map(Arc::clone)
        };
        let unregistered = match &mut self.unregistered {
            Some(unregistered) => unregistered,
            // A process may load CUDA at any time.
            none => match Driver::of_process() {
                Ok(driver) => none.insert(RangeCache::new(driver)),
                Err(_) => return Ok(None),
            },
        };
        let Some(range) = unregistered.lookup(addr, len, &context_of)? else { return Ok(None) };
        let known =
            |of: &ContextState| of.copies.inward.context().has_device_of(range.range().context());
        match self.contexts.iter().position(known) {
            Some(context) => {
                Ok(Some(Location { context, range, addr, memory: addr, shadow: None }))
            }
            // Creating engines for it may wait for kernels, and those for this thread.
            None => Err(refused(
                "copying memory that is not registered",
                format!(
                    "{len} bytes at {addr:#x} are {} of {}, of which nothing is registered with \
                     NVSHMEM",
                    range.range().kind(),
                    range.range().context(),
                ),
            )),
        }
    }

    fn staged(&mut self, addr: usize, len: usize) -> Result<Location, PortError> {
        self.find(addr, len)?.ok_or_else(|| {
            refused(
                "reaching memory of a device",
                format!("{len} bytes at {addr:#x} are host memory"),
            )
        })
    }
}

impl ContextState {
    #[inline]
    fn engine(&mut self, direction: CopyDirection) -> &mut CopyEngine {
        match direction {
            CopyDirection::Out => &mut self.copies.outward,
            CopyDirection::In => &mut self.copies.inward,
        }
    }
}

impl CopyPort for DeviceStager {
    fn reach(&mut self, addr: usize, len: usize) -> Result<Reach, PortError> {
        Ok(self.find(addr, len)?.map_or(Reach::Direct, |_| Reach::Staged))
    }

    fn capacity(&self, direction: CopyDirection) -> usize {
        match direction {
            CopyDirection::Out => self.outward.capacity(),
            CopyDirection::In => self.inward.capacity(),
        }
    }

    fn start_all(&mut self, copies: &[TaggedCopy]) -> Result<Posted, PortError> {
        self.submit_deferred()?;
        let Some(&TaggedCopy { copy: Copy { direction, .. }, .. }) = copies.first() else {
            return Ok(Posted::Yes);
        };
        for TaggedCopy { copy, .. } in copies {
            memory_of(&self.bounce, &self.peers, copy)?;
        }
        if self.capacity(direction) == 0 {
            return Ok(Posted::Again);
        }
        let steps =
            copies.iter().map(|tagged| OrderedStep::Copy { copy: tagged.copy, is_ordered: false });
        let each = || copies.chunk_by(|one, next| one.tag == next.tag);
        let tags = || each().map(|copies| copies[0].tag);
        if direction == CopyDirection::In && self.store_steps(steps.clone(), tags())? {
            return Ok(Posted::Yes);
        }
        self.locations.clear();
        for TaggedCopy { copy: Copy { memory, len, .. }, .. } in copies {
            let location = self.find(*memory, *len)?;
            if direction == CopyDirection::In {
                self.invalidate(*memory, *len);
            }
            self.locations.push(location);
        }
        let started = self.start_batch(direction, steps, tags());
        // Not held any longer: the release of a range ends its CPU mapping.
        self.locations.clear();
        started
    }

    fn start_in_order(
        &mut self,
        steps: &[OrderedStep],
        tag: u32,
    ) -> Result<Option<Posted>, PortError> {
        self.submit_deferred()?;
        for step in steps {
            if let OrderedStep::Copy { copy, .. } = step {
                memory_of(&self.bounce, &self.peers, copy)?;
            }
        }
        if self.capacity(CopyDirection::In) == 0 {
            return Ok(Some(Posted::Again));
        }
        let started = self.start_ordered(steps, tag);
        self.locations.clear();
        self.deferred.clear();
        started
    }

    fn poll(&mut self) -> Option<Copied> {
        // Alternates, so that a busy direction does not delay the other.
        let (first, second) = match self.first {
            CopyDirection::Out => (CopyDirection::Out, CopyDirection::In),
            CopyDirection::In => (CopyDirection::In, CopyDirection::Out),
        };
        self.first = second;
        self.poll_direction(first).or_else(|| self.poll_direction(second))
    }

    fn apply(&mut self, addr: usize, atomic: &Atomic) -> Result<u64, PortError> {
        self.complete_words()?;
        let location = self.word(addr, atomic.width)?;
        self.apply_at(&location, atomic)
    }

    fn load(&mut self, addr: usize, into: &mut [u8]) -> Result<(), PortError> {
        self.complete_words()?;
        let Location { context, range, addr, .. } = self.staged(addr, into.len())?;
        Ok(self.contexts[context].copies.words.load(&range, addr, into)?)
    }

    fn store(&mut self, addr: usize, bytes: &[u8]) -> Result<(), PortError> {
        self.complete_words()?;
        let location = self.staged(addr, bytes.len())?;
        self.invalidate(addr, bytes.len());
        self.store_at(&location, bytes)
    }

    fn store_flag(&mut self, addr: usize, flag: u64) -> Result<(), PortError> {
        self.word(addr, Width::Eight)?;
        self.store(addr, &flag.to_le_bytes())
    }

    fn queue_write(
        &mut self,
        addr: usize,
        bytes: &[u8],
        order: DeferredOrder,
    ) -> Result<(), PortError> {
        let location = self.staged(addr, bytes.len())?;
        if bytes.len() > MAX_BYTES || location.range.is_mapped() {
            return self.store(addr, bytes);
        }
        self.invalidate(addr, bytes.len());
        self.defer_bytes(&location, bytes, order)
    }

    fn queue_atomic(
        &mut self,
        addr: usize,
        atomic: &Atomic,
        order: DeferredOrder,
    ) -> Result<(), PortError> {
        let location = self.word(addr, atomic.width)?;
        if location.range.is_mapped() {
            return self.apply(addr, atomic).map(drop);
        }
        if order == DeferredOrder::Any
            && location.shadow.is_none()
            && deferred::merge_atomic(&mut self.deferred, (location.context, location.addr), atomic)
        {
            return Ok(());
        }
        self.defer_atomic(&location, atomic, order)
    }

    fn flush(&mut self) -> Result<(), PortError> {
        // Its error is in `flush_error`.
        let _ = self.submit_deferred();
        self.flush_error.take().map_or(Ok(()), Err)
    }

    fn peer_bounce(&self, pe: Pe) -> Option<PeerBounce> {
        self.peers.peer_bounce(pe)
    }

    fn is_mapped_by(&self, pe: Pe) -> bool {
        self.peers.is_mapped_by(pe)
    }

    fn announce(&mut self) {
        self.peers.announce(true);
    }

    fn has_ended(&self, pe: Pe) -> bool {
        self.peers.has_ended(pe)
    }

    fn bytes_by_cpu(&self) -> u64 {
        self.by_cpu
    }
}

impl Drop for DeviceStager {
    fn drop(&mut self) {
        // Dropped outside the lock: dropping engines may wait for the device.
        let new_contexts = self.staging.change(|shared| {
            shared.ended = true;
            std::mem::take(&mut shared.new_contexts)
        });
        drop(new_contexts);
    }
}
