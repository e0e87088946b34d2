//! The proxy thread's side of staging: copies between bounce buffers and memory, and single words.

mod lists;
mod words;

use std::sync::{Arc, Weak};

use crate::copy::MAX_WRITES;
use crate::copy::engine::CopyEngine;
use crate::driver::context::Ordinal;
use crate::driver::error::{CudaError, refused};
use crate::driver::library::Driver;
use crate::memory::pinned_memory::PinnedMemory;
use crate::memory::shared_memory::SharedMemory;
use crate::staging::flight::Flight;
use crate::staging::range_cache::RangeCache;
use crate::staging::registry::{ContextCopies, Staging, StagingError};
use crate::staging::same_host::SameHostPeers;
use crate::words::together::{self, MAX_BYTES, Soon};
use crate::words::word_range::WordRange;
use engine::atomic::{Atomic, Width};
use engine::ids::Pe;
use engine::port::copies::{
    Copied, Copy, CopyDirection, CopyPort, DeferredOrder, MAX_BATCH_COPIES, MAX_WORDS, OrderedStep,
    Reach, Stager, TaggedCopy, Window,
};
use engine::port::{PortError, Posted};
use lists::memory_of;
use words::Remembered;

// Each step may have a word.
const _: () = assert!(MAX_WORDS <= MAX_WRITES);

/// Copies and words, by the driver for what only that reaches, and by the CPU for the rest.
///
/// Registered ranges are known. Other memory is looked at when it is used, which takes a call of
/// the driver, and the first time a few and an allocation.
///
/// Dropping it waits for copies under way, and ends staging in this process.
#[derive(Debug)]
pub(crate) struct DeviceStager {
    staging: Arc<Staging>,
    /// The state of `staging` that the rest is of.
    epoch: u64,
    ranges: Vec<Entry>,
    /// Ranges whose words are remembered.
    remembering: Vec<usize>,
    contexts: Vec<OfContext>,
    /// Memory that nobody has registered, once the process has loaded CUDA.
    others: Option<RangeCache>,
    outward: Flight,
    inward: Flight,
    first: CopyDirection,
    bounce: OwnBounce,
    peers: SameHostPeers,
    by_cpu: u64,
    /// Where the memory of a list is that is being started. None: the CPU reaches it.
    places: Vec<Option<Place>>,
    /// Words of one context that are to be stored together, in this order.
    soon: Vec<Soon>,
    /// Why some of them are missing, until somebody is told.
    lost: Option<PortError>,
}

/// Bounce memory of this process.
#[derive(Debug)]
struct OwnBounce {
    addr: usize,
    len: usize,
    /// None where only the CPU copies from and to it: nothing of a device is staged yet.
    pinned: Option<Arc<PinnedMemory>>,
    _plain: Option<Arc<SharedMemory>>,
}

/// A registered range. Who releases it takes the CPU's window on it away, so it is not held here.
#[derive(Debug)]
struct Entry {
    addr: usize,
    len: usize,
    at: usize,
    context: usize,
    range: Weak<WordRange>,
    /// Values of its words, if only signals change them.
    words: Remembered,
}

/// Copies of one context.
#[derive(Debug)]
struct OfContext {
    copies: ContextCopies,
    /// Why nothing more is copied: the first copy that failed.
    failed: Option<CudaError>,
}

/// Where memory is that the driver reaches.
#[derive(Debug)]
struct Place {
    context: usize,
    range: Arc<WordRange>,
    addr: usize,
    /// Where the engine knows it.
    memory: usize,
    /// Its entry among the ranges, if words of that are remembered.
    remembered: Option<usize>,
}

impl Staging {
    /// What moves the bytes, once, after memory was registered.
    pub fn take_stager(self: &Arc<Self>) -> Option<Stager> {
        let (memory, peers, bounce) = self.take_bounce()?;
        let (addr, len) = (memory.addr(), memory.len());
        let memory = OwnBounce { addr, len, pinned: Some(memory), _plain: None };
        let stager = DeviceStager::new(Arc::clone(self), memory, peers);
        Some(Stager { copies: Box::new(stager), bounce })
    }

    /// What moves the bytes, once, where nothing is staged and host memory that nobody has
    /// registered has to be. Memory of devices that is registered later is served by it as well;
    /// its bounce memory is not shared with other PEs of the host. None where one was given out, or
    /// another thread is making one. It waits for no device.
    ///
    /// # Errors
    /// There is no memory for bounce buffers.
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
            remembering: Vec::new(),
            contexts: Vec::new(),
            others: bounce.pinned.as_ref().map(of_pinned),
            outward: Flight::new(),
            inward: Flight::new(),
            first: CopyDirection::Out,
            bounce,
            peers,
            by_cpu: 0,
            places: Vec::with_capacity(MAX_BATCH_COPIES),
            soon: Vec::with_capacity(MAX_WRITES),
            lost: None,
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
            self.others.get_or_insert_with(|| RangeCache::new(pinned.context().driver()));
            self.bounce.pinned = Some(pinned);
        }
        let arrivals = shared.arrivals.drain(..);
        let first = self.contexts.len();
        self.contexts.extend(arrivals.map(|copies| OfContext { copies, failed: None }));
        for OfContext { copies, .. } in &mut self.contexts[first..] {
            for memory in self.peers.all_memory().chain(&self.bounce.pinned) {
                copies.outward.keep(memory);
                copies.inward.keep(memory);
            }
        }
        let mut before = std::mem::take(&mut self.ranges);
        self.ranges.extend(shared.ranges.iter().map(|staged| Entry {
            addr: staged.addr,
            len: staged.range.range().len(),
            at: staged.range.range().addr(),
            context: staged.context,
            range: Arc::downgrade(&staged.range),
            words: if staged.is_signals {
                Remembered::of(&mut before, &staged.range)
            } else {
                Remembered::default()
            },
        }));
        drop(shared);
        self.ranges.sort_unstable_by_key(|entry| entry.addr);
        let all = self.ranges.iter().enumerate();
        let remembering = all.filter(|(_, entry)| !entry.words.is_empty());
        self.remembering = remembering.map(|(at, _)| at).collect();
    }

    /// The registered range that has `len` bytes at `addr`.
    #[inline]
    fn registered(&self, addr: usize, len: usize) -> Option<Place> {
        let behind = self.ranges.partition_point(|entry| entry.addr <= addr);
        // The last range that starts at or before it has it, unless ranges overlap.
        let at = self.ranges[..behind].iter().rposition(|entry| {
            let at = addr - entry.addr;
            at <= entry.len && len <= entry.len - at
        })?;
        let entry = &self.ranges[at];
        // None: it is being released, though it may not be while it is used.
        let range = entry.range.upgrade()?;
        let remembered = (!entry.words.is_empty()).then_some(at);
        let (memory, addr) = (addr, entry.at + (addr - entry.addr));
        Some(Place { context: entry.context, range, addr, memory, remembered })
    }

    /// Where memory is; none if the CPU reaches it.
    fn find(&mut self, addr: usize, len: usize) -> Result<Option<Place>, PortError> {
        self.sync();
        if let Some(place) = self.registered(addr, len) {
            return Ok(Some(place));
        }
        if len == 0 || addr.checked_add(len).is_none() {
            return Err(refused("examining memory", format!("{len} bytes at {addr:#x}")));
        }
        let contexts = &self.contexts;
        let within = |device: Ordinal| {
            let known = contexts.iter().map(|of| of.copies.inward.context());
            known.into_iter().find(|context| context.device() == device).map(Arc::clone)
        };
        let others = match &mut self.others {
            Some(others) => others,
            // A process may come to devices at any time.
            none => match Driver::of_process() {
                Ok(driver) => none.insert(RangeCache::new(driver)),
                Err(_) => return Ok(None),
            },
        };
        let Some(range) = others.look(addr, len, &within)? else { return Ok(None) };
        let known =
            |of: &OfContext| of.copies.inward.context().has_device_of(range.range().context());
        match self.contexts.iter().position(known) {
            Some(context) => {
                Ok(Some(Place { context, range, addr, memory: addr, remembered: None }))
            }
            // Making engines for it may wait for kernels, and those for this thread.
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

    fn staged(&mut self, addr: usize, len: usize) -> Result<Place, PortError> {
        self.find(addr, len)?.ok_or_else(|| {
            refused(
                "reaching memory of a device",
                format!("{len} bytes at {addr:#x} are host memory"),
            )
        })
    }
}

impl OfContext {
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

    fn room(&self, direction: CopyDirection) -> usize {
        match direction {
            CopyDirection::Out => self.outward.room(),
            CopyDirection::In => self.inward.room(),
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
        if self.room(direction) == 0 {
            return Ok(Posted::Again);
        }
        self.places.clear();
        for TaggedCopy { copy: Copy { memory, len, .. }, .. } in copies {
            let place = self.find(*memory, *len)?;
            if direction == CopyDirection::In && place.is_some() {
                self.forget(*memory, *len);
            }
            self.places.push(place);
        }
        let steps =
            copies.iter().map(|tagged| OrderedStep::Copy { copy: tagged.copy, is_ordered: false });
        let each = copies.chunk_by(|one, next| one.tag == next.tag);
        let started = self.start_list(direction, steps, each.map(|copies| copies[0].tag));
        // Whoever releases memory takes the CPU's window on it away.
        self.places.clear();
        started.map(|()| Posted::Yes)
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
        if self.room(CopyDirection::In) == 0 {
            return Ok(Some(Posted::Again));
        }
        self.places.clear();
        let started = self.start_steps(steps, tag);
        self.places.clear();
        self.soon.clear();
        started
    }

    fn poll(&mut self) -> Option<Copied> {
        // In turn, so that a busy direction does not keep the other waiting.
        let (first, second) = match self.first {
            CopyDirection::Out => (CopyDirection::Out, CopyDirection::In),
            CopyDirection::In => (CopyDirection::In, CopyDirection::Out),
        };
        self.first = second;
        self.poll_direction(first).or_else(|| self.poll_direction(second))
    }

    fn apply(&mut self, addr: usize, atomic: &Atomic) -> Result<u64, PortError> {
        self.settle_words()?;
        let place = self.word(addr, atomic.width)?;
        self.apply_at(&place, atomic)
    }

    fn load(&mut self, addr: usize, into: &mut [u8]) -> Result<(), PortError> {
        self.settle_words()?;
        let Place { context, range, addr, .. } = self.staged(addr, into.len())?;
        Ok(self.contexts[context].copies.words.load(&range, addr, into)?)
    }

    fn store(&mut self, addr: usize, bytes: &[u8]) -> Result<(), PortError> {
        self.settle_words()?;
        let place = self.staged(addr, bytes.len())?;
        self.forget(addr, bytes.len());
        self.store_at(&place, bytes)
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
        let place = self.staged(addr, bytes.len())?;
        if bytes.len() > MAX_BYTES || place.range.is_mapped() {
            return self.store(addr, bytes);
        }
        self.forget(addr, bytes.len());
        self.store_bytes_soon(&place, bytes, order)
    }

    fn queue_atomic(
        &mut self,
        addr: usize,
        atomic: &Atomic,
        order: DeferredOrder,
    ) -> Result<(), PortError> {
        let place = self.word(addr, atomic.width)?;
        if place.range.is_mapped() {
            return self.apply(addr, atomic).map(drop);
        }
        if order == DeferredOrder::Any
            && place.remembered.is_none()
            && together::joins(&mut self.soon, (place.context, place.addr), atomic)
        {
            return Ok(());
        }
        self.apply_at_soon(&place, atomic, order)
    }

    fn flush(&mut self) -> Result<(), PortError> {
        // It keeps its error.
        let _ = self.submit_deferred();
        self.lost.take().map_or(Ok(()), Err)
    }

    fn window(&self, pe: Pe) -> Option<Window> {
        self.peers.window(pe)
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
        // What has not been taken over is dropped outside the lock: it may wait for the device.
        let arrivals = self.staging.change(|shared| {
            shared.ended = true;
            std::mem::take(&mut shared.arrivals)
        });
        drop(arrivals);
    }
}
