//! A lane's copy of the table of regions: what it looks local memory up in, and what peers mean.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::error::EngineError;
use crate::ids::{LaneKind, RailId};
use crate::port::copies::{Bounce, CopyPort, Reach};
use crate::port::{Addressing, Desc};
use crate::request::{Request, refused};
use crate::state::orphans::Orphans;
use crate::state::regions::published::Published;
use crate::state::regions::recent::{Range, Recent};
use crate::state::regions::{place_of, slot_of};
use crate::wire::handle::HandleError;
use crate::wire::message::Spot;
use crate::wire::staged::{KEYS_PER_MESSAGE, Keys};

/// What lanes need to know of a region.
#[derive(Debug)]
pub(crate) struct View {
    /// Its place in the table; what names it for good is that with its stamp.
    pub(crate) place: u32,
    pub(crate) stamp: u64,
    pub(crate) base: usize,
    pub(crate) len: usize,
    /// Whether peers may use it.
    pub(super) remote: bool,
    pub(super) reach: Reach,
    /// Key per proxy rail, by which peers that are told of them may read. None for staged memory.
    pub(crate) keys: Box<[u64]>,
    pub(crate) addressing: Addressing,
    pub(super) proxy_descs: Box<[Desc]>,
    pub(super) host_descs: Box<[Desc]>,
}

impl View {
    #[inline(always)]
    fn is_for(&self, spot: Spot) -> bool {
        self.remote && slot_of(self.place, self.stamp) == spot.slot
    }

    /// The offset of `len` bytes at `addr`, if all are inside.
    #[inline]
    fn offset(&self, addr: usize, len: usize) -> Option<usize> {
        let offset = addr.wrapping_sub(self.base);
        (offset <= self.len && len <= self.len - offset).then_some(offset)
    }

    /// Its keys from a rail on, as many as go into one message, written into `bytes`.
    pub(crate) fn keys_from<'b>(&self, first: u8, bytes: &'b mut [u8]) -> Keys<'b> {
        let keys = self.keys.iter().skip(first.into()).take(KEYS_PER_MESSAGE);
        let mut len = 0;
        for (place, key) in bytes.chunks_exact_mut(8).zip(keys) {
            place.copy_from_slice(&key.to_le_bytes());
            len += 8;
        }
        let Self { place: slot, stamp, base, addressing, .. } = *self;
        let rails = self.keys.len() as u8;
        Keys { slot, stamp, base: base as u64, addressing, first, rails, keys: &bytes[..len] }
    }

    pub(crate) fn descs(&self, kind: LaneKind) -> &[Desc] {
        match kind {
            LaneKind::Host => &self.host_descs,
            LaneKind::Proxy => &self.proxy_descs,
        }
    }
}

pub(super) type Views = Vec<Option<Arc<View>>>;

/// The table, as lanes ask it for what stages.
pub(super) trait StagerSource: Send + Sync {
    /// Leaves a stager for the proxy lane, for local memory that nobody has registered, unless one
    /// was given out or another thread is making one.
    fn provide(&self, memory: (usize, usize)) -> Result<(), EngineError>;
}

/// The part of the table that lanes read.
#[derive(Debug)]
pub struct RegionIndex {
    table: Weak<dyn StagerSource>,
    views: Published<Views>,
    /// What stages, until the proxy lane has taken it.
    pub(super) stager: Mutex<Option<Installed>>,
    /// What may touch memory though nobody waits for it.
    pub(super) orphans: Orphans,
}

/// What stages, with its bounce memory registered.
#[derive(Debug)]
pub(crate) struct Installed {
    pub(crate) copies: Box<dyn CopyPort>,
    pub(crate) bounce: Bounce,
    pub(crate) view: Arc<View>,
    /// It was made for host memory that nobody has registered: it says nothing of devices.
    pub(crate) for_host: bool,
}

impl RegionIndex {
    pub(super) fn of(table: Weak<dyn StagerSource>) -> Self {
        let (views, stager, orphans) = (Published::default(), Mutex::default(), Orphans::default());
        Self { table, views, stager, orphans }
    }

    pub(super) fn change(&self, place: u32, view: Option<Arc<View>>) {
        let place = place as usize;
        self.views.change(|views| {
            if views.len() <= place {
                views.resize_with(place + 1, || None);
            }
            views[place] = view;
        });
    }
}

#[derive(Debug)]
struct Target {
    /// Its slot; for none, that of another place.
    slot: u32,
    base: usize,
    len: u64,
}

impl Target {
    fn of((place, view): (usize, &Option<Arc<View>>), is_host: impl Fn(&View) -> bool) -> Self {
        let view = view.as_deref().filter(|view| view.remote && is_host(view));
        view.map_or(Self { slot: !(place as u32), base: 0, len: 0 }, |view| Self {
            slot: slot_of(view.place, view.stamp),
            base: view.base,
            len: view.len as u64,
        })
    }
}

/// One of several regions, ascending by address, with the last end of those up to it.
type Sorted = (Arc<View>, usize);

fn sort<'v>(sorted: &mut Vec<Sorted>, views: impl Iterator<Item = &'v Arc<View>>) {
    sorted.clear();
    sorted.extend(views.map(|view| (Arc::clone(view), view.base + view.len)));
    sorted.sort_unstable_by_key(|(view, _)| view.base);
    let mut last_end = 0;
    for (_, end) in sorted {
        last_end = last_end.max(*end);
        *end = last_end;
    }
}

/// A lane's copy of the index.
#[derive(Debug)]
pub(crate) struct RegionCache {
    index: Arc<RegionIndex>,
    kind: LaneKind,
    epoch: u64,
    views: Views,
    targets: Vec<Target>,
    /// All regions that the CPU does not reach. Like any others they may overlap.
    beyond: Vec<Sorted>,
    within: Vec<Sorted>,
    /// Where the fast path has found local memory last. Nowhere, when `epoch` has changed since.
    recent: Recent,
    /// What stages, until the lane has taken it.
    stager: Option<Installed>,
    /// There is something that stages memory of devices, or was.
    stages: bool,
}

impl RegionCache {
    pub(crate) fn new(index: Arc<RegionIndex>, kind: LaneKind) -> Self {
        Self {
            index,
            kind,
            epoch: 0,
            views: Views::new(),
            targets: Vec::new(),
            beyond: Vec::new(),
            within: Vec::new(),
            recent: Recent::NONE,
            stager: None,
            stages: false,
        }
    }

    /// Whether `len` bytes of local memory at `addr`, at least one, are where memory was found
    /// last, and the fabric reaches them. [`RegionCache::find`] finds it elsewhere.
    #[inline(always)]
    pub(crate) fn is_recent(&self, addr: usize, len: usize) -> bool {
        self.recent.fabric.has(addr, len) && self.is_current()
    }

    #[inline(always)]
    pub(crate) fn recent_desc(&self, rail: RailId) -> Desc {
        self.recent.descs[rail.index()]
    }

    /// Whether `len` bytes of local memory at `addr`, at least one, are where memory was found
    /// last, and the CPU reaches them.
    #[inline(always)]
    pub(crate) fn is_loadable(&self, addr: usize, len: usize) -> bool {
        self.recent.cpu.has(addr, len) && self.is_current()
    }

    /// Looks for local memory of at least one byte that was not found where memory was found last.
    /// Whether the fabric reaches it, and whether the CPU does; [`RegionCache::is_recent`] and
    /// [`RegionCache::is_loadable`] say the same from now on. Neither where it takes a closer look:
    /// it is not registered, and that makes a difference.
    pub(crate) fn find(&mut self, addr: usize, len: usize, needs_desc: bool) -> (bool, bool) {
        self.sync();
        // Once some memory is a device's, nothing is known of what is not registered.
        let all_alike = self.beyond.is_empty() && !self.stages;
        if all_alike {
            self.recent.cpu = Range::ALL;
            if !needs_desc {
                self.recent.fabric = Range::ALL;
            }
        }
        if needs_desc || !all_alike {
            self.find_region(addr, len, needs_desc, all_alike);
        }
        (self.recent.fabric.has(addr, len), self.recent.cpu.has(addr, len))
    }

    fn find_region(&mut self, addr: usize, len: usize, needs_desc: bool, all_alike: bool) {
        let Ok(Some(view)) = self.registered(addr, len) else { return };
        let view = Arc::clone(view);
        let range = Range { base: view.base, len: view.len };
        self.recent.fabric = range;
        if !all_alike {
            let is_host = self.reach(range.base, range.len) == Reach::Direct;
            self.recent.cpu = if is_host { range } else { Range::NONE };
        }
        if needs_desc {
            for (place, desc) in self.recent.descs.iter_mut().zip(view.descs(self.kind)) {
                *place = *desc;
            }
        }
    }

    /// The region that the fabric reaches around `len` bytes of local memory at `addr`, of those
    /// there were at the last [`RegionCache::sync`]. None if the first byte is in no region.
    ///
    /// # Errors
    /// It is in one, and not all of them are.
    pub(crate) fn registered(
        &self,
        addr: usize,
        len: usize,
    ) -> Result<Option<&Arc<View>>, HandleError> {
        let behind = self.within.partition_point(|(view, _)| view.base <= addr);
        let mut too_short = None;
        for (view, last_end) in self.within[..behind].iter().rev() {
            // Regions that overlap are rare: most searches end with the first one, or before it.
            if *last_end <= addr {
                break;
            }
            if view.offset(addr, len).is_some() {
                return Ok(Some(view));
            }
            if view.offset(addr, 1).is_some() {
                too_short = Some(view);
            }
        }
        too_short.map_or(Ok(None), |view| {
            Err(HandleError::Outside {
                addr: addr as u64,
                len: len as u64,
                base: view.base as u64,
                region: view.len as u64,
            })
        })
    }

    pub(crate) fn is_registered(&self, addr: usize, len: usize) -> bool {
        matches!(self.registered(addr, len), Ok(Some(_)))
    }

    #[inline(always)]
    fn is_current(&self) -> bool {
        self.index.views.is_at(self.epoch)
    }

    pub(crate) fn desc_for(
        &mut self,
        request: &Request<'_>,
        addr: usize,
        rail: RailId,
    ) -> Result<Option<Desc>, EngineError> {
        self.sync();
        let region = self.registered(addr, request.len);
        let region = region.map_err(|fault| refused(request, "local", fault))?;
        Ok(region.map(|view| desc_of(view.descs(self.kind), rail)))
    }

    pub(crate) fn desc_at(&self, addr: usize, len: usize, rail: RailId) -> Option<Desc> {
        let view = self.registered(addr, len).ok().flatten()?;
        view.descs(self.kind).get(rail.index()).copied()
    }

    pub(crate) fn other_key(&self, rail: RailId, key: u64, wanted: RailId) -> Option<u64> {
        let mut views = self.views.iter().flatten();
        let view = views.find(|view| view.keys.get(rail.index()) == Some(&key))?;
        view.keys.get(wanted.index()).copied()
    }

    pub(crate) fn named(&self, place: u32, stamp: u64) -> Option<Arc<View>> {
        let view = self.views.get(place as usize)?.as_ref()?;
        (view.stamp == stamp).then(|| Arc::clone(view))
    }

    pub(crate) fn orphans(&self) -> &Orphans {
        &self.index.orphans
    }

    pub(crate) fn kind(&self) -> LaneKind {
        self.kind
    }

    /// Returns how all of `len` bytes are reached, which may lie in several regions: directly only
    /// if none of these has a byte that the CPU does not reach. Memory in no region counts as
    /// reached by everybody.
    #[inline]
    pub(crate) fn reach(&self, addr: usize, len: usize) -> Reach {
        if self.beyond.is_empty() {
            return Reach::Direct;
        }
        let end = addr.saturating_add(len);
        let before = self.beyond.partition_point(|(view, _)| view.base < end);
        let before = self.beyond[..before].iter().rev();
        let near = before.take_while(|(_, last_end)| *last_end > addr);
        let mut over = near.filter(|(view, _)| view.base + view.len > addr).peekable();
        if over.peek().is_none() {
            Reach::Direct
        } else if !self.is_registered(addr, len)
            && over.any(|(view, _)| view.reach == Reach::Staged)
        {
            Reach::Staged
        } else {
            Reach::Fabric
        }
    }

    #[inline]
    pub(crate) fn has_beyond(&self) -> bool {
        !self.beyond.is_empty()
    }

    #[inline(always)]
    pub(crate) fn has_stager(&self) -> bool {
        self.stager.is_some()
    }

    /// Has a stager made for local memory that nobody has registered, an address and a length. It
    /// is to be taken after the next [`RegionCache::sync`], unless another thread is at it.
    ///
    /// # Errors
    /// Nothing stages it.
    #[cold]
    pub(crate) fn provide_stager(&self, memory: (usize, usize)) -> Result<(), EngineError> {
        self.index.table.upgrade().map_or(Ok(()), |table| table.provide(memory))
    }

    pub(crate) fn take_stager(&mut self) -> Option<Installed> {
        self.stager.take()
    }

    /// The address of `len` bytes at an offset of one of this process' regions, named by its slot:
    /// what a peer's message asks for.
    #[inline]
    pub(crate) fn locate(&mut self, spot: Spot, len: usize) -> Result<Place, HandleError> {
        self.sync();
        let view = match self.views.get(place_of(spot.slot)) {
            Some(Some(view)) if view.is_for(spot) => view,
            _ => return Err(HandleError::Stale),
        };
        let offset = usize::try_from(spot.offset).unwrap_or(usize::MAX);
        if offset > view.len || len > view.len - offset {
            return Err(HandleError::Outside {
                addr: (view.base as u64).wrapping_add(spot.offset),
                len: len as u64,
                base: view.base as u64,
                region: view.len as u64,
            });
        }
        let (addr, mut reach) = (view.base + offset, view.reach);
        if reach == Reach::Direct {
            // Another region may say that it is a device's.
            reach = self.reach(addr, len);
        }
        Ok(Place { addr, reach })
    }

    #[inline(always)]
    pub(crate) fn sync(&mut self) {
        if !self.is_current() {
            self.refresh();
        }
    }

    #[inline(always)]
    pub(crate) fn place(&self, spot: Spot, len: usize) -> Option<usize> {
        let target = self.targets.get(place_of(spot.slot))?;
        let end = spot.offset.checked_add(len as u64)?;
        if target.slot != spot.slot || end > target.len {
            return None;
        }
        // At most the region's length, so it fits, and the sum is an address in the region.
        Some(target.base + spot.offset as usize)
    }

    #[cold]
    fn refresh(&mut self) {
        self.epoch = self.index.views.read(|views| self.views.clone_from(views));
        self.recent = Recent::NONE;
        let views = || self.views.iter().flatten();
        sort(&mut self.within, views().filter(|view| view.reach != Reach::Staged));
        sort(&mut self.beyond, views().filter(|view| view.reach != Reach::Direct));
        let is_host = |view: &View| self.reach(view.base, view.len) == Reach::Direct;
        let targets = self.views.iter().enumerate().map(|view| Target::of(view, is_host));
        self.targets = targets.collect();
        if self.kind == LaneKind::Proxy && self.stager.is_none() {
            self.stager = lock(&self.index.stager).take();
            self.stages |= self.stager.as_ref().is_some_and(|stager| !stager.for_host);
        }
    }
}

/// Bytes of this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub(crate) addr: usize,
    pub(crate) reach: Reach,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[inline]
pub(crate) fn desc_of(descs: &[Desc], rail: RailId) -> Desc {
    descs.get(rail.index()).copied().unwrap_or_default()
}
