//! The proxy thread's side of staging: copies between bounce buffers and memory, and single words.

mod in_order;
mod remembered;
mod soon;
mod starting;

use std::sync::{Arc, Weak};

use crate::copy::MOST_WRITES;
use crate::copy::engine::CopyEngine;
use crate::driver::context::Ordinal;
use crate::driver::error::{CudaError, refused};
use crate::driver::library::Driver;
use crate::memory::pinned::PinnedMemory;
use crate::memory::shared_memory::SharedMemory;
use crate::staging::flight::{By, Flight, MOST_CALLS};
use crate::staging::neighbours::Neighbours;
use crate::staging::range_cache::{Known, RangeCache};
use crate::staging::staged::{ContextCopies, Staging, StagingError};
use crate::words::together::{self, Soon};
use crate::words::word_range::WordRange;
use engine::atomic::{Atomic, Width};
use engine::ids::Pe;
use engine::port::copies::{
    Copied, Copy, CopyDirection, CopyPort, MOST_TOGETHER, MOST_WORDS, Reach, SoonOrder, Stager,
    Step, Tagged, Window,
};
use engine::port::{PortError, Posted};
use in_order::OrderedCalls;
use remembered::Remembered;
use starting::memory_of;

/// Most bytes that are stored with others: the longest message of the engine.
const MOST_SOON: usize = 256;

// Each step may have a word.
const _: () = assert!(MOST_WORDS <= MOST_WRITES);
// With the parts before the first word and behind the last one.
const _: () = assert!(MOST_SOON / 8 + 6 <= MOST_WRITES);

/// Copies and words, by the driver for what only that reaches, and by the CPU for the rest.
///
/// Registered ranges are known. Other memory is looked at when it is used, which takes a call of
/// the driver, and the first time a few and an allocation.
///
/// Dropping it waits for copies under way, as [`CopyEngine`] does, and ends staging in this
/// process.
#[derive(Debug)]
pub(crate) struct DeviceStager {
    staging: Arc<Staging>,
    /// The state of `staging` that the rest is of.
    epoch: u64,
    ranges: Vec<Entry>,
    remembering: Vec<usize>,
    contexts: Vec<OfContext>,
    /// Memory that nobody has registered, once the process has loaded CUDA.
    others: Option<RangeCache>,
    outward: Flight,
    inward: Flight,
    first: CopyDirection,
    bounce: OwnBounce,
    neighbours: Neighbours,
    by_cpu: u64,
    /// Where the memory of copies is that are being started.
    places: Vec<Option<Place>>,
    /// Words of one context that are to be stored together, in this order.
    soon: Vec<Soon>,
    /// Why some of them are missing, until somebody is told.
    lost: Option<PortError>,
    in_order: OrderedCalls,
}

#[derive(Debug)]
enum OwnBounce {
    /// That only the CPU copies from and to: nothing of a device is staged yet.
    Plain(Arc<SharedMemory>),
    Pinned(Arc<PinnedMemory>),
}

impl OwnBounce {
    fn addr(&self) -> usize {
        match self {
            Self::Plain(memory) => memory.addr(),
            Self::Pinned(memory) => memory.addr(),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Plain(memory) => memory.len(),
            Self::Pinned(memory) => memory.len(),
        }
    }

    fn pinned(&self) -> Option<&Arc<PinnedMemory>> {
        match self {
            Self::Plain(_) => None,
            Self::Pinned(memory) => Some(memory),
        }
    }
}

/// A registered range. Who releases it takes the CPU's window on it away, so it is not held here.
#[derive(Debug)]
struct Entry {
    addr: usize,
    len: usize,
    at: usize,
    context: usize,
    range: Weak<WordRange>,
    /// What its words hold, if only signals change them.
    words: Remembered,
}

/// What moves the bytes of a context.
#[derive(Debug)]
struct OfContext {
    copies: ContextCopies,
    /// Why nothing more is copied: the first copy that failed.
    failed: Option<CudaError>,
}

#[derive(Debug)]
struct Place {
    context: usize,
    range: Arc<WordRange>,
    addr: usize,
    memory: usize,
    /// Its entry among the ranges, if words of that are remembered.
    remembered: Option<usize>,
}

enum Any {
    Host,
    Device(Place),
}

impl Staging {
    /// What moves the bytes, once, after memory was registered.
    pub fn take_stager(self: &Arc<Self>) -> Option<Stager> {
        let (memory, neighbours, bounce) = self.take_bounce()?;
        let memory = OwnBounce::Pinned(memory);
        let stager = DeviceStager::new(Arc::clone(self), memory, neighbours, self.depth());
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
        let (memory, neighbours) = (OwnBounce::Plain(memory), Neighbours::default());
        let stager = DeviceStager::new(Arc::clone(self), memory, neighbours, self.depth());
        Ok(Some(Stager { copies: Box::new(stager), bounce }))
    }
}

impl DeviceStager {
    /// `depth`: copies that each engine, and so each direction, takes at once.
    fn new(staging: Arc<Staging>, bounce: OwnBounce, neighbours: Neighbours, depth: usize) -> Self {
        Self {
            staging,
            epoch: 0,
            ranges: Vec::new(),
            remembering: Vec::new(),
            contexts: Vec::new(),
            others: bounce.pinned().map(|pinned| RangeCache::new(pinned.context().driver())),
            outward: Flight::new(depth),
            inward: Flight::new(depth),
            first: CopyDirection::Out,
            bounce,
            neighbours,
            by_cpu: 0,
            places: Vec::with_capacity(MOST_TOGETHER),
            soon: Vec::with_capacity(MOST_WRITES),
            lost: None,
            in_order: OrderedCalls::new(depth),
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
            self.bounce = OwnBounce::Pinned(pinned);
        }
        let arrivals = shared.arrivals.drain(..);
        let first = self.contexts.len();
        self.contexts.extend(arrivals.map(|copies| OfContext { copies, failed: None }));
        for OfContext { copies, .. } in &mut self.contexts[first..] {
            for memory in self.neighbours.all_memory().chain(self.bounce.pinned()) {
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
                Remembered::of(&mut before, &staged.range, staged.range.range().len())
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

    fn any(&mut self, addr: usize, len: usize) -> Result<Any, PortError> {
        self.sync();
        if let Some(place) = self.registered(addr, len) {
            return Ok(Any::Device(place));
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
                Err(_) => return Ok(Any::Host),
            },
        };
        let range = match others.look(addr, len, &within)? {
            Known::Host => return Ok(Any::Host),
            Known::Device(range) => range,
        };
        let known =
            |of: &OfContext| of.copies.inward.context().has_device_of(range.range().context());
        match self.contexts.iter().position(known) {
            Some(context) => {
                Ok(Any::Device(Place { context, range, addr, memory: addr, remembered: None }))
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

    #[inline]
    fn staged(&mut self, addr: usize, len: usize) -> Result<Place, PortError> {
        match self.any(addr, len)? {
            Any::Device(place) => Ok(place),
            Any::Host => Err(refused(
                "reaching memory of a device",
                format!("{len} bytes at {addr:#x} are host memory"),
            )),
        }
    }

    #[inline]
    fn flight(&mut self, direction: CopyDirection) -> &mut Flight {
        match direction {
            CopyDirection::Out => &mut self.outward,
            CopyDirection::In => &mut self.inward,
        }
    }

    fn poll_direction(&mut self, direction: CopyDirection) -> Option<Copied> {
        loop {
            let result = match self.flight_of(direction).first() {
                None => Ok(()),
                Some(By::Cpu) => Ok(()),
                Some(By::Refused(error)) => Err(error.clone()),
                Some(&By::Engine(context)) => {
                    let of = &mut self.contexts[context];
                    let completed = of.engine(direction).poll()?;
                    completed.result.map(drop).map_err(|error| {
                        of.failed.get_or_insert_with(|| error.clone());
                        PortError::from(error)
                    })
                }
            };
            let flight = self.flight(direction);
            if flight.first().is_some() {
                flight.end_first(result);
            }
            match flight.next_ended() {
                Some((tag, result)) => {
                    if direction == CopyDirection::In {
                        self.in_order.ended(tag);
                    }
                    return Some(Copied { tag, result });
                }
                // A call that ends nothing is over, or there is none.
                None if flight.calls() == 0 => return None,
                None => {}
            }
        }
    }

    #[inline]
    fn flight_of(&self, direction: CopyDirection) -> &Flight {
        match direction {
            CopyDirection::Out => &self.outward,
            CopyDirection::In => &self.inward,
        }
    }

    fn gives_together(&self) -> bool {
        let mut engines = self.contexts.iter().map(|of| &of.copies.inward);
        engines.all(CopyEngine::gives_together)
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
        Ok(match self.any(addr, len)? {
            Any::Host => Reach::Direct,
            Any::Device(_) => Reach::Staged,
        })
    }

    fn room(&self, direction: CopyDirection) -> usize {
        let (flight, together) = (self.flight_of(direction), self.gives_together());
        if together && flight.calls() >= MOST_CALLS { 0 } else { flight.room() }
    }

    fn start_all(&mut self, copies: &[Tagged]) -> Result<Posted, PortError> {
        self.flush()?;
        let Some(&Tagged { copy: Copy { direction, .. }, .. }) = copies.first() else {
            return Ok(Posted::Yes);
        };
        for Tagged { copy, .. } in copies {
            memory_of(&self.bounce, &self.neighbours, copy)?;
        }
        let is_told = |pair: &&[Tagged]| pair[0].tag != pair[1].tag;
        let tags = 1 + copies.windows(2).filter(is_told).count();
        if tags > self.flight_of(direction).room() {
            return Ok(Posted::Again);
        }
        self.places.clear();
        for Tagged { copy: Copy { memory, len, .. }, .. } in copies {
            let place = match self.any(*memory, *len)? {
                Any::Host => None,
                Any::Device(place) => Some(place),
            };
            if let (CopyDirection::In, Some(place)) = (direction, &place) {
                self.forget(place, *len);
            }
            self.places.push(place);
        }
        let started = self.start_placed(copies);
        // Whoever releases memory takes the CPU's window on it away.
        self.places.clear();
        started
    }

    fn start_in_order(&mut self, steps: &[Step], tag: u32) -> Result<Option<Posted>, PortError> {
        self.flush()?;
        for step in steps {
            if let Step::Copy { copy, .. } = step {
                memory_of(&self.bounce, &self.neighbours, copy)?;
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
        if let Some(copied) = self.in_order.told.pop_front() {
            return Some(copied);
        }
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
        let place = self.staged(addr, atomic.width.bytes())?;
        let known = self.recall(&place, atomic.width);
        self.forget(&place, atomic.width.bytes());
        let Place { context, ref range, addr, .. } = place;
        let words = &mut self.contexts[context].copies.words;
        let before = known.map_or_else(|| words.load_in(range, addr, atomic.width), Ok)?;
        let after = atomic.apply(before);
        if after != before {
            words.store_in(range, addr, atomic.width, after)?;
        }
        self.remember(&place, atomic.width, after);
        Ok(before)
    }

    fn load(&mut self, addr: usize, into: &mut [u8]) -> Result<(), PortError> {
        self.settle_words()?;
        let Place { context, range, addr, .. } = self.staged(addr, into.len())?;
        let words = &mut self.contexts[context].copies.words;
        Ok(words.load_bytes_in(&range, addr, into)?)
    }

    fn store(&mut self, addr: usize, bytes: &[u8]) -> Result<(), PortError> {
        self.settle_words()?;
        let place = self.staged(addr, bytes.len())?;
        self.forget(&place, bytes.len());
        let Place { context, range, addr, .. } = place;
        let words = &mut self.contexts[context].copies.words;
        Ok(words.store_bytes_in(&range, addr, bytes)?)
    }

    fn store_soon(&mut self, addr: usize, bytes: &[u8], order: SoonOrder) -> Result<(), PortError> {
        let place = self.staged(addr, bytes.len())?;
        self.forget(&place, bytes.len());
        if bytes.len() <= MOST_SOON && self.stores_together(&place) {
            return self.store_bytes_soon(&place, bytes, order);
        }
        self.settle_words()?;
        let Place { context, range, addr, .. } = place;
        Ok(self.contexts[context].copies.words.store_bytes_in(&range, addr, bytes)?)
    }

    fn apply_soon(
        &mut self,
        addr: usize,
        atomic: &Atomic,
        order: SoonOrder,
    ) -> Result<(), PortError> {
        let place = self.staged(addr, atomic.width.bytes())?;
        let is_word = atomic.width != Width::Two && place.addr % atomic.width.bytes() == 0;
        if !is_word || !self.stores_together(&place) {
            return self.apply(addr, atomic).map(drop);
        }
        if order == SoonOrder::Any
            && place.remembered.is_none()
            && together::joins(&mut self.soon, (place.context, place.addr), atomic)
        {
            return Ok(());
        }
        let before = match self.recall(&place, atomic.width) {
            None if atomic.op.sets() => None,
            None if place.remembered.is_none() => return self.change_soon(&place, atomic, order),
            // It is read once.
            None => Some(self.load_word(&place, atomic.width)?),
            known => known,
        };
        let after = atomic.apply(before.unwrap_or(0));
        self.forget(&place, atomic.width.bytes());
        if before != Some(after) {
            let bytes = after.to_le_bytes();
            let bytes = &bytes[..atomic.width.bytes()];
            self.store_bytes_soon(&place, bytes, order)?;
        }
        self.remember(&place, atomic.width, after);
        Ok(())
    }

    fn settle(&mut self) -> Result<(), PortError> {
        // It keeps its error.
        let _ = self.flush();
        self.lost.take().map_or(Ok(()), Err)
    }

    fn has_words_on_their_way(&self) -> bool {
        self.in_order.has_words()
    }

    fn window(&self, pe: Pe) -> Option<Window> {
        self.neighbours.window(pe)
    }

    fn is_seen_by(&self, pe: Pe) -> bool {
        self.neighbours.is_seen_by(pe)
    }

    fn announce(&mut self) {
        self.neighbours.announce(true);
    }

    fn has_ended(&self, pe: Pe) -> bool {
        self.neighbours.has_ended(pe)
    }

    fn bytes_by_cpu(&self) -> u64 {
        self.by_cpu
    }

    fn store_flag(&mut self, addr: usize, flag: u64) -> Result<(), PortError> {
        self.settle_words()?;
        let place = self.staged(addr, size_of::<u64>())?;
        self.forget(&place, size_of::<u64>());
        let Place { context, range, addr, .. } = place;
        let words = &mut self.contexts[context].copies.words;
        Ok(words.store_in(&range, addr, Width::Eight, flag)?)
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
