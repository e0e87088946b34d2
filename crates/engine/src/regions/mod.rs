//! Memory that this process has registered: the table, and each lane's copy of it.
//!
//! User threads register and release at any time. So each lane keeps a copy for its lookups,
//! compares one atomic number, and copies the table anew only when that has changed.
//!
//! Regions may overlap, nest or be equal, and differ in kind. A lookup by address considers every
//! region that touches the bytes: the fabric reaches them if one region that it reaches holds all
//! of them, and the CPU if none of the regions is a device's.

mod table;
mod versioned_cell;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::error::EngineError;
use crate::ids::{LaneKind, Pe, RailId};
use crate::port::copies::{Bounce, CopyPort, Reach};
use crate::port::{Addressing, Desc};
use crate::regions::versioned_cell::VersionedCell;
use crate::wire::handle::{HandleError, MAX_RAILS};
use crate::wire::message::RegionAddr;

pub use table::RegionTable;

/// Bits of a region's id that hold its index in the table. The others hold part of its stamp: a
/// released region's id is not used again until 4096 others were registered.
const INDEX_BITS: u32 = 20;

const MAX_REGIONS: usize = 1 << INDEX_BITS;

#[inline(always)]
fn index_of(id: u32) -> usize {
    id as usize & (MAX_REGIONS - 1)
}

/// Locks state that a panic cannot leave inconsistent: each change of it is one assignment.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
pub(crate) struct Region {
    index: u32,
    pub(crate) stamp: u64,
    pub(crate) base: usize,
    pub(crate) len: usize,
    /// Whether peers may access it.
    remote: bool,
    pub(crate) reach: Reach,
    /// Key per proxy rail; none for staged memory.
    pub(crate) keys: Box<[u64]>,
    pub(crate) addressing: Addressing,
    descs: [Box<[Desc]>; 2],
}

impl Region {
    fn end(&self) -> usize {
        self.base + self.len
    }

    fn holds(&self, addr: usize, len: usize) -> bool {
        Range { base: self.base, len: self.len }.has(addr, len)
    }

    /// Returns the fault of `len` bytes that are not all in the region.
    pub(crate) fn outside(&self, addr: u64, len: usize) -> HandleError {
        let (base, region) = (self.base as u64, self.len as u64);
        HandleError::Outside { addr, len: len as u64, base, region }
    }

    pub(crate) fn id(&self) -> u32 {
        self.index | (self.stamp as u32) << INDEX_BITS
    }

    pub(crate) fn desc(&self, kind: LaneKind, rail: RailId) -> Desc {
        self.descs[kind as usize].get(rail.index()).copied().unwrap_or_default()
    }
}

/// Source of a stager for lanes: the region table.
trait StagerSource: Send + Sync {
    /// Makes a stager for unregistered local memory available to the proxy lane.
    fn provide(&self, memory: (usize, usize)) -> Result<(), EngineError>;
}

/// Part of the region table that lanes read; any thread may change it.
#[derive(Debug)]
pub struct RegionDirectory {
    table: Weak<dyn StagerSource>,
    regions: VersionedCell<Vec<Option<Arc<Region>>>>,
    /// The stager, until the proxy lane takes it.
    stager: Mutex<Option<RegisteredStager>>,
    orphans: Mutex<Vec<Orphan>>,
}

#[derive(Debug)]
pub(crate) struct RegisteredStager {
    pub(crate) copies: Box<dyn CopyPort>,
    pub(crate) bounce: Bounce,
    pub(crate) region: Arc<Region>,
}

/// An operation of a failed peer that the fabric may still execute.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Orphan {
    pub(crate) lane: LaneKind,
    /// Index of the segment in its lane's table.
    pub(crate) segment: u32,
    pub(crate) what: &'static str,
    pub(crate) pe: Pe,
    /// Address and length of the memory that it may access.
    pub(crate) memory: (usize, usize),
}

/// Returns true if two ranges, each an address and a length, share a byte.
pub(crate) fn overlap(one: (usize, usize), other: (usize, usize)) -> bool {
    one.0 < other.0.saturating_add(other.1) && other.0 < one.0.saturating_add(one.1)
}

impl RegionDirectory {
    fn new(table: Weak<dyn StagerSource>) -> Self {
        let (stager, orphans) = (Mutex::default(), Mutex::default());
        Self { table, regions: VersionedCell::default(), stager, orphans }
    }

    fn change(&self, at: usize, region: Option<Arc<Region>>) {
        self.regions.change(|regions| {
            if regions.len() <= at {
                regions.resize_with(at + 1, || None);
            }
            regions[at] = region;
        });
    }

    pub(crate) fn enter_orphan(&self, orphan: Orphan) {
        lock(&self.orphans).push(orphan);
    }

    pub(crate) fn leave_orphan(&self, lane: LaneKind, segment: u32) {
        lock(&self.orphans).retain(|orphan| (orphan.lane, orphan.segment) != (lane, segment));
    }

    fn orphan_over(&self, addr: usize, len: usize) -> Option<Orphan> {
        let orphans = lock(&self.orphans);
        orphans.iter().find(|orphan| overlap(orphan.memory, (addr, len))).copied()
    }
}

#[derive(Clone, Copy, Debug)]
struct Range {
    base: usize,
    len: usize,
}

impl Range {
    const NONE: Self = Self { base: 0, len: 0 };
    /// Every address but null.
    const ALL: Self = Self { base: 1, len: usize::MAX };

    /// Returns true if all `len` bytes, at least one, are in the range.
    #[inline(always)]
    fn has(&self, addr: usize, len: usize) -> bool {
        // Below the base, the offset wraps to one that no length reaches.
        let end = addr.wrapping_sub(self.base).checked_add(len);
        end.is_some_and(|end| end <= self.len)
    }
}

/// A region that peers may write to and the CPU reaches.
#[derive(Clone, Copy, Debug)]
struct DirectTarget {
    /// Its id; at an unused index, an id of another index.
    id: u32,
    base: usize,
    len: u64,
}

/// Access to local memory, according to registered regions.
#[derive(Debug)]
pub(crate) struct RegionLookup<'a> {
    /// Region that the fabric reaches and that holds all bytes.
    pub(crate) fabric: Option<&'a Arc<Region>>,
    /// Whether some byte is in a region of a device.
    pub(crate) device: bool,
    /// Whether one region holds all bytes.
    pub(crate) whole: bool,
    /// Region that holds the first byte and not all of them, if none holds all.
    pub(crate) cut: Option<&'a Arc<Region>>,
}

/// Local bytes that a message names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Location {
    pub(crate) addr: usize,
    pub(crate) reach: Reach,
}

/// A lane's copy of the directory.
#[derive(Debug)]
pub(crate) struct LaneRegions {
    pub(crate) directory: Arc<RegionDirectory>,
    pub(crate) kind: LaneKind,
    version: u64,
    by_index: Vec<Option<Arc<Region>>>,
    /// Regions that the fast path of incoming messages may change, by index.
    targets: Vec<DirectTarget>,
    /// All regions by base, each with the highest end of those up to it.
    sorted: Vec<(Arc<Region>, usize)>,
    has_devices: bool,
    /// Where memory that the fabric reaches was last found, and its descriptors.
    fabric: Range,
    descs: [Desc; MAX_RAILS],
    /// Where memory that the CPU reaches was last found.
    cpu: Range,
    stager: Option<RegisteredStager>,
}

impl LaneRegions {
    pub(crate) fn new(directory: Arc<RegionDirectory>, kind: LaneKind, has_devices: bool) -> Self {
        Self {
            directory,
            kind,
            version: 0,
            by_index: Vec::new(),
            targets: Vec::new(),
            sorted: Vec::new(),
            has_devices,
            fabric: Range::NONE,
            descs: [Desc::default(); MAX_RAILS],
            cpu: Range::NONE,
            stager: None,
        }
    }

    /// Returns true if local memory may be a device's: from the start, or once some was registered,
    /// since CUDA may be loaded after the PEs were connected.
    pub(crate) fn has_devices(&mut self) -> bool {
        self.sync();
        self.has_devices
    }

    #[inline(always)]
    fn is_current(&self) -> bool {
        self.directory.regions.is_version(self.version)
    }

    /// Returns the descriptor on a rail for local memory that [is recent](LaneRegions::is_recent).
    #[inline(always)]
    pub(crate) fn recent_desc(&self, addr: usize, len: usize, rail: RailId) -> Option<Desc> {
        if self.is_recent(addr, len) { Some(self.last_desc(rail)) } else { None }
    }

    /// Returns true if the fabric reaches local memory where memory was last found.
    #[inline(always)]
    pub(crate) fn is_recent(&self, addr: usize, len: usize) -> bool {
        self.fabric.has(addr, len) && self.is_current()
    }

    /// Returns the descriptor on a rail for memory where memory was last found.
    #[inline(always)]
    pub(crate) fn last_desc(&self, rail: RailId) -> Desc {
        self.descs[rail.index() % MAX_RAILS]
    }

    /// Returns true if the CPU reaches local memory where memory was last found.
    #[inline(always)]
    pub(crate) fn is_known_cpu_memory(&self, addr: usize, len: usize) -> bool {
        self.cpu.has(addr, len) && self.is_current()
    }

    /// Looks local memory up and remembers where it was found.
    pub(crate) fn find(&mut self, addr: usize, len: usize, needs_desc: bool) {
        if self.is_recent(addr, len) {
            return;
        }
        self.sync();
        // Once some memory is a device's, unregistered memory may be as well.
        let is_host = !self.has_devices;
        if is_host {
            self.cpu = Range::ALL;
            if !needs_desc {
                (self.fabric, self.descs) = (Range::ALL, [Desc::default(); MAX_RAILS]);
                return;
            }
        }
        let found = self.lookup(addr, len);
        let Some(region) = found.fabric.cloned() else { return };
        self.fabric = Range { base: region.base, len: region.len };
        for (rail, desc) in self.descs.iter_mut().enumerate() {
            *desc = region.desc(self.kind, RailId(rail as u8));
        }
        if !is_host && region.reach == Reach::Direct {
            // A region of host memory may overlap one of a device, whose bytes the CPU does not
            // reach.
            let is_host_only = !self.lookup(region.base, region.len).device;
            self.cpu = if is_host_only { self.fabric } else { Range::NONE };
        }
    }

    /// Looks up `len` bytes of local memory, at least one, as of the last [`LaneRegions::sync`].
    pub(crate) fn lookup(&self, addr: usize, len: usize) -> RegionLookup<'_> {
        let end = addr.saturating_add(len);
        let before = self.sorted.partition_point(|(region, _)| region.base < end);
        let mut found = RegionLookup { fabric: None, device: false, whole: false, cut: None };
        for (region, last_end) in self.sorted[..before].iter().rev() {
            // No region before this one ends after `addr`.
            if *last_end <= addr {
                break;
            }
            if region.end() <= addr {
                continue;
            }
            found.device |= region.reach != Reach::Direct;
            if region.holds(addr, len) {
                found.whole = true;
                if region.reach != Reach::Staged {
                    found.fabric.get_or_insert(region);
                }
            } else if region.holds(addr, 1) {
                found.cut.get_or_insert(region);
            }
        }
        if found.whole {
            found.cut = None;
        }
        found
    }

    /// Returns true if the index of an id was ever used; PEs of the job know no other ids.
    pub(crate) fn was_registered(&mut self, id: u32) -> bool {
        self.sync();
        index_of(id) < self.by_index.len()
    }

    pub(crate) fn locate(
        &mut self,
        named: RegionAddr,
        len: usize,
    ) -> Result<Location, HandleError> {
        self.sync();
        let region = match self.by_index.get(index_of(named.region)) {
            Some(Some(region)) if region.remote && region.id() == named.region => region,
            _ => return Err(HandleError::Stale),
        };
        let offset = usize::try_from(named.offset).unwrap_or(usize::MAX);
        if offset > region.len || len > region.len - offset {
            return Err(region.outside((region.base as u64).wrapping_add(named.offset), len));
        }
        let addr = region.base + offset;
        Ok(Location { addr, reach: self.reach_inside(region, addr, len) })
    }

    pub(crate) fn reach_inside(&self, region: &Region, addr: usize, len: usize) -> Reach {
        // A region of a device may overlap this one.
        let is_device = self.has_devices && self.lookup(addr, len).device;
        if is_device && region.reach == Reach::Direct { Reach::Fabric } else { region.reach }
    }

    /// Returns the address of bytes that a message names, in a region that the CPU reaches, as of
    /// the last [`LaneRegions::sync`].
    #[inline(always)]
    pub(crate) fn target(&self, named: RegionAddr, len: usize) -> Option<usize> {
        let target = self.targets.get(index_of(named.region))?;
        let end = named.offset.checked_add(len as u64)?;
        if target.id != named.region || end > target.len {
            return None;
        }
        Some(target.base + named.offset as usize)
    }

    #[inline(always)]
    pub(crate) fn sync(&mut self) {
        if !self.is_current() {
            self.refresh();
        }
    }

    #[cold]
    fn refresh(&mut self) {
        self.version = self.directory.regions.read(|regions| self.by_index.clone_from(regions));
        // Memory that was found may have been released.
        (self.fabric, self.cpu) = (Range::NONE, Range::NONE);
        let all = self.by_index.iter().flatten();
        self.has_devices |= all.clone().any(|region| region.reach != Reach::Direct);
        self.sorted.clear();
        self.sorted.extend(all.map(|region| (Arc::clone(region), region.end())));
        self.sorted.sort_unstable_by_key(|(region, _)| region.base);
        // Lets a lookup stop early although regions may nest.
        let mut last_end = 0;
        for (_, end) in &mut self.sorted {
            last_end = last_end.max(*end);
            *end = last_end;
        }
        let mut targets = std::mem::take(&mut self.targets);
        targets.clear();
        targets.extend((0..).zip(&self.by_index).map(|(at, region)| {
            let is_target =
                |r: &&Region| r.remote && self.reach_inside(r, r.base, r.len) == Reach::Direct;
            let none = DirectTarget { id: !at, base: 0, len: 0 };
            let target = |r: &Region| DirectTarget { id: r.id(), base: r.base, len: r.len as u64 };
            region.as_deref().filter(is_target).map_or(none, target)
        }));
        self.targets = targets;
        if self.kind == LaneKind::Proxy && self.stager.is_none() {
            self.stager = lock(&self.directory.stager).take();
        }
    }

    pub(crate) fn take_stager(&mut self) -> Option<RegisteredStager> {
        self.stager.take()
    }

    /// Requests a stager for unregistered local memory, an address and a length. The next
    /// [`LaneRegions::sync`] finds it, unless another thread is still making one.
    #[cold]
    pub(crate) fn provide_stager(&mut self, memory: (usize, usize)) -> Result<(), EngineError> {
        self.directory.table.upgrade().map_or(Ok(()), |table| table.provide(memory))
    }
}

#[cfg(test)]
mod tests;
