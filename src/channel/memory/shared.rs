//! A channel's shared memory: the kernels' context, rings, table of regions, error.
//!
//! It is in three blocks, zeroed at first. Near producers are the context, the table of regions,
//! rings, `nlf_producers`, `nlf_own_producers` and the claims of the error; in host memory, for
//! both sides, are slots, `nlf_own` and the error; `nlf_published` is near producers where the CPU
//! can write there. Who writes what:
//! - slots, `nlf_producers`, `nlf_own_producers`: producers;
//! - `nlf_own`: the fabric;
//! - `nlf_published`: the proxy thread, by way of [`Ring`];
//! - the table of regions and `n_regions`: user threads that register memory, under the channel's
//!   lock;
//! - the error: the first producer that claims it. The proxy's side has a record of its own;
//! - the rest: nobody, after the start.

use std::mem::offset_of;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use channel_sys as c;

use crate::channel::error::ChannelError;
use crate::channel::memory::SharedBlock;
use crate::channel::memory::host_memory::HostMemory;
use crate::channel::memory::mirrored_memory::mirrored;
use crate::channel::memory::published_memory::published;
use crate::channel::ring::region_entry::{RegionEntry, ShownRegion};
use crate::channel::ring::{Ring, RingMemory, slots_log2};
use cuda::{Direction, WordsOptions, drain_writes};

/// Sizes of a context, checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) rings: u32,
    pub(crate) slots_log2: u32,
}

impl Sizes {
    pub(crate) fn new(rings: u32, slots: u64) -> Result<Self, ChannelError> {
        if !rings.is_power_of_two() || rings > c::NLF_MAX_RINGS {
            return Err(ChannelError::Rings { rings });
        }
        Ok(Self { rings, slots_log2: slots_log2(slots)? })
    }
}

/// Offsets of a block's parts. Each starts on a page, so no cache line has two writers.
#[derive(Clone, Copy, Debug)]
struct Layout {
    mirrored: MirroredLayout,
    error: usize,
    proxy_error: usize,
    own: usize,
    slots: usize,
    slots_each: usize,
    end: usize,
}

#[derive(Clone, Copy, Debug)]
struct MirroredLayout {
    regions: usize,
    rings: usize,
    producers: usize,
    claims: usize,
    own: usize,
    end: usize,
}

const PAGE: usize = 4096;

impl Layout {
    fn new(sizes: Sizes) -> Self {
        let rings = sizes.rings as usize;
        let mut end = PAGE;
        let mirrored = MirroredLayout {
            regions: part(&mut end, size_of::<c::nlf_region>() * c::NLF_MAX_REGIONS as usize),
            rings: part(&mut end, size_of::<c::nlf_ring>() * rings),
            producers: part(&mut end, size_of::<c::nlf_producers>() * rings),
            claims: part(&mut end, size_of::<u32>()),
            own: part(&mut end, size_of::<c::nlf_own_producers>()),
            end,
        };
        let mut end = 0;
        let slots_each = size_of::<c::nlf_slot>() << sizes.slots_log2;
        Self {
            mirrored,
            error: part(&mut end, size_of::<c::nlf_error>()),
            proxy_error: part(&mut end, size_of::<c::nlf_error>()),
            own: part(&mut end, size_of::<c::nlf_own>()),
            slots: part(&mut end, slots_each * rings),
            slots_each,
            end,
        }
    }
}

/// Appends a part of `bytes` bytes to a block and returns its offset.
fn part(end: &mut usize, bytes: usize) -> usize {
    let at = *end;
    *end += bytes.next_multiple_of(PAGE);
    at
}

#[derive(Debug)]
pub(crate) struct Shared {
    mirrored: Box<dyn SharedBlock>,
    memory: HostMemory,
    published: Box<dyn SharedBlock>,
    layout: Layout,
    sizes: Sizes,
    reported: AtomicBool,
}

/// An error for producers, as the header has it: a code, and what it is about.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Fault(pub(crate) c::nlf_error);

impl Shared {
    pub(crate) fn new(
        sizes: Sizes,
        me: u32,
        n_pes: u32,
        spins: u64,
        words: &WordsOptions,
    ) -> Result<Self, ChannelError> {
        let layout = Layout::new(sizes);
        let (mirrored, memory) = (mirrored(layout.mirrored.end)?, HostMemory::new(layout.end)?);
        let published = published(size_of::<c::nlf_published>() * sizes.rings as usize, words)?;
        let reported = AtomicBool::new(false);
        let shared = Self { mirrored, memory, published, layout, sizes, reported };
        for ring in 0..sizes.rings as usize {
            let entry = c::nlf_ring {
                slots: shared.at(layout.slots + ring * layout.slots_each),
                producers: shared.for_producers(
                    layout.mirrored.producers + ring * size_of::<c::nlf_producers>(),
                ),
                published: (shared.published.addr() + ring * size_of::<c::nlf_published>())
                    as *const _,
            };
            // SAFETY: a part of the block, aligned, that nobody else knows yet.
            unsafe {
                shared.mirrored_at::<c::nlf_ring>(layout.mirrored.rings).add(ring).write(entry)
            };
        }
        let context = c::nlf_context {
            version: c::NLF_RING_VERSION,
            me,
            n_pes,
            n_rings: sizes.rings,
            slots_log2: sizes.slots_log2,
            n_regions: 0,
            spins,
            rings: shared.for_producers(layout.mirrored.rings),
            regions: shared.for_producers(layout.mirrored.regions),
            error: shared.at(layout.error),
            error_claims: shared.for_producers(layout.mirrored.claims),
            proxy_error: shared.at(layout.proxy_error),
            own: shared.at(layout.own),
            own_producers: shared.for_producers(layout.mirrored.own),
        };
        // SAFETY: the same.
        unsafe { shared.mirrored_at::<c::nlf_context>(0).write(context) };
        shared.push(0, layout.mirrored.end)?;
        Ok(shared)
    }

    /// Publishes these bytes of the mirrored block to producers.
    fn push(&self, offset: usize, len: usize) -> Result<(), ChannelError> {
        self.mirrored.copy(Direction::ToDevice, offset, len)
    }

    pub(crate) fn context(&self) -> *const c::nlf_context {
        self.for_producers(0)
    }

    pub(crate) fn own(&self) -> usize {
        self.memory.addr() + self.layout.own
    }

    fn for_producers<T>(&self, offset: usize) -> *mut T {
        (self.mirrored.addr() + offset) as *mut T
    }

    fn mirrored_at<T>(&self, offset: usize) -> *mut T {
        (self.mirrored.here() + offset) as *mut T
    }

    fn at<T>(&self, offset: usize) -> *mut T {
        (self.memory.addr() + offset) as *mut T
    }

    fn published<T>(&self, ring: usize, offset: usize) -> *mut T {
        assert!(ring < self.sizes.rings as usize, "there is no ring {ring}");
        (self.published.here() + ring * size_of::<c::nlf_published>() + offset) as *mut T
    }

    /// # Safety
    /// Called once, and the memory outlives them.
    pub(crate) unsafe fn rings(&self) -> Result<Vec<Ring>, ChannelError> {
        let ring = |ring: usize| {
            let Layout { slots, slots_each, .. } = self.layout;
            let slots = NonNull::new(self.at(slots + ring * slots_each));
            let published = NonNull::new(self.published(ring, 0));
            let (Some(slots), Some(published)) = (slots, published) else {
                return Err(ChannelError::Ended);
            };
            let memory = RingMemory {
                slots,
                slots_log2: self.sizes.slots_log2,
                published,
                published_in: self.published.published_in(),
            };
            // SAFETY: parts of the block of these sizes, zeroed; the caller promises the rest, and
            // that producers are given the context alone.
            Ok(unsafe { Ring::new(memory) }?)
        };
        (0..self.sizes.rings as usize).map(ring).collect()
    }

    pub(crate) fn done(&self, ring: usize) -> u64 {
        let done = self.published::<u64>(ring, offset_of!(c::nlf_published, done));
        // SAFETY: an aligned word of the block, that the proxy thread changes atomically.
        unsafe { AtomicU64::from_ptr(done) }.load(Ordering::Acquire)
    }

    /// Slots that producers have reserved in each ring by now.
    pub(crate) fn heads(&self) -> Result<Vec<u64>, ChannelError> {
        let MirroredLayout { producers, claims, .. } = self.layout.mirrored;
        self.mirrored.copy(Direction::FromDevice, producers, claims - producers)?;
        let head = |ring: usize| {
            let at = producers + ring * size_of::<c::nlf_producers>();
            let head = self.mirrored_at::<u64>(at + offset_of!(c::nlf_producers, head));
            // SAFETY: an aligned word of the block, that producers change atomically.
            unsafe { AtomicU64::from_ptr(head) }.load(Ordering::Acquire)
        };
        Ok((0..self.sizes.rings as usize).map(head).collect())
    }

    /// Sets an entry of the producers' table; length 0 clears it. One thread at a time. Later
    /// kernels see it; none sees the base of one region with the length of another.
    pub(crate) fn set_region(
        &self,
        index: usize,
        region: ShownRegion,
        n_regions: u32,
    ) -> Result<(), ChannelError> {
        let size = size_of::<c::nlf_region>();
        let at = self.layout.mirrored.regions + index * size;
        let entry = self.mirrored_at::<c::nlf_region>(at);
        // SAFETY: the index is of a region, so the entry is in the table; words of the block,
        // aligned, which producers only read.
        let entry = unsafe {
            RegionEntry {
                base: AtomicU64::from_ptr(&raw mut (*entry).base),
                size: AtomicU64::from_ptr(&raw mut (*entry).size),
            }
        };
        entry.set(region, || self.push(at, size))?;
        let context = self.mirrored_at::<c::nlf_context>(0);
        let counts = offset_of!(c::nlf_context, n_regions);
        // SAFETY: a word of the block, aligned, which producers only read.
        unsafe { AtomicU32::from_ptr(&raw mut (*context).n_regions) }
            .store(n_regions, Ordering::Release);
        self.push(counts, size_of::<u32>())
    }

    /// Tells producers that the channel has failed, where the proxy thread cannot.
    pub(crate) fn publish_failed(&self) {
        for ring in 0..self.sizes.rings as usize {
            let state = self.published::<u32>(ring, offset_of!(c::nlf_published, state));
            // SAFETY: an aligned word of the block, which is changed atomically.
            unsafe { AtomicU32::from_ptr(state) }.store(c::NLF_STATE_FAILED, Ordering::Release);
            drain_writes();
        }
    }

    /// Records an error of the proxy's side, unless there is one. Any thread may call it.
    pub(crate) fn report(&self, fault: &Fault) {
        if self.reported.swap(true, Ordering::AcqRel) {
            return;
        }
        let error = self.at::<c::nlf_error>(self.layout.proxy_error);
        // SAFETY: a part of the block, aligned, that only the first to come here writes.
        unsafe {
            error.write_volatile(c::nlf_error { code: c::NLF_OK, ..fault.0 });
            AtomicU32::from_ptr(&raw mut (*error).code).store(fault.0.code, Ordering::Release);
        }
    }

    /// True if a producer has abandoned slots that it had reserved, so that its ring is stuck.
    pub(crate) fn is_abandoned(&self) -> bool {
        let error = self.at::<c::nlf_error>(self.layout.error);
        // SAFETY: a part of the block, aligned; producers change it atomically.
        unsafe { AtomicU32::from_ptr(&raw mut (*error).abandoned) }.load(Ordering::Acquire) != 0
    }

    pub(crate) fn fault(&self) -> Option<Fault> {
        self.recorded(self.layout.proxy_error).or_else(|| self.recorded(self.layout.error))
    }

    /// An error, once it is complete.
    fn recorded(&self, at: usize) -> Option<Fault> {
        let error = self.at::<c::nlf_error>(at);
        // SAFETY: a part of the block, aligned; what was written before the code stays.
        unsafe {
            let code = AtomicU32::from_ptr(&raw mut (*error).code).load(Ordering::Acquire);
            (code != c::NLF_OK).then(|| Fault(error.read_volatile()))
        }
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let c::nlf_error { code, op, pe, ring, addr, bytes, .. } = self.0;
        let op = match op {
            c::NLF_OP_PUT => "put",
            c::NLF_OP_PUT_VALUE => "put of a value",
            c::NLF_OP_PUT_SIGNAL => "put with signal",
            c::NLF_OP_GET => "get",
            c::NLF_OP_ATOMIC => "atomic",
            c::NLF_OP_FENCE => "fence",
            c::NLF_OP_QUIET => "quiet",
            _ => "operation",
        };
        let at = format!("{op} on ring {ring}, PE {pe}");
        match code {
            c::NLF_ERROR_PE => write!(f, "{op} on ring {ring}: there is no PE {pe}"),
            c::NLF_ERROR_ADDRESS => write!(
                f,
                "{at}: {bytes} bytes at {addr:#x} are not all in registered memory of the kind it \
                 takes"
            ),
            c::NLF_ERROR_LENGTH => write!(f, "{at}: {bytes} bytes are too many"),
            c::NLF_ERROR_ALIGNMENT => {
                write!(f, "{at}: a word of {bytes} bytes at {addr:#x} is not aligned")
            }
            c::NLF_ERROR_KIND => write!(f, "{at}: no such kind, or not of {bytes} bytes"),
            c::NLF_ERROR_DESCRIPTOR => write!(
                f,
                "ring {ring} had something that is no descriptor: was its memory overwritten, or are the \
                 kernels built with another version of the header?"
            ),
            c::NLF_ERROR_STUCK => write!(f, "a kernel has waited in vain on ring {ring}"),
            c::NLF_ERROR_STOPPED => {
                write!(f, "a kernel used ring {ring} after the channel was stopped")
            }
            c::NLF_ERROR_VERSION => {
                write!(f, "the kernels are built with another version of the header")
            }
            code => write!(f, "{at}: error {code}"),
        }
    }
}

#[cfg(test)]
mod tests;
