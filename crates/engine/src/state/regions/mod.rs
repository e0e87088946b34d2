//! The table of memory that this process has registered, and the copies of it that lanes keep.
//!
//! User threads register and release at any time, while lanes look regions up on every operation
//! that needs a local descriptor. Lanes therefore keep copies: a look-up compares one atomic
//! number and, only when it has changed, takes the lock and copies the table anew.

mod cache;
mod published;
mod recent;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

pub use self::cache::RegionIndex;
pub(crate) use self::cache::{Installed, Place, RegionCache, View, desc_of};
use self::cache::{StagerSource, lock};
use crate::error::EngineError;
use crate::ids::Pe;
use crate::port::copies::{Reach, Stager};
use crate::port::{Access, MemoryPort, PortError, Registered};
use crate::state::orphans::Orphan;
use crate::wire::handle::{Handle, HandleBytes, HandleError, HandleView, MAX_RAILS};

#[cold]
fn not_registered((addr, len): (usize, usize), what: &str, error: &PortError) -> EngineError {
    let (why, no_memory) = (format!("{what}{error}"), error.is_out_of_memory());
    EngineError::Register { addr, len, why, no_memory }
}

/// Bits of a slot that are its place in the table. Those above are of its region's stamp, so that a
/// message which names a region that is gone does not name the one that has its place: not before
/// 4096 others were registered.
const PLACE_BITS: u32 = 20;

const MOST_REGIONS: usize = 1 << PLACE_BITS;

#[inline(always)]
fn slot_of(place: u32, stamp: u64) -> u32 {
    place | (stamp as u32) << PLACE_BITS
}

#[inline(always)]
fn place_of(slot: u32) -> usize {
    slot as usize & (MOST_REGIONS - 1)
}

/// Registers and releases memory, and writes the handles for it.
///
/// # Threads
/// Any, at any time.
#[derive(Debug)]
pub struct RegionTable<M: MemoryPort> {
    memory: M,
    me: Pe,
    index: Arc<RegionIndex>,
    slots: Mutex<Slots<M::Region>>,
    /// Bytes of a bounce buffer of bounce memory, for the handles of staged regions; 0 before there
    /// is one.
    bounce_len: AtomicU64,
    /// Why the bounce memory could not be registered. Held while it is.
    installing: Mutex<Option<EngineError>>,
}

#[derive(Debug)]
struct Held<R> {
    stamp: u64,
    memory: (usize, usize),
    region: R,
}

#[derive(Debug)]
struct Slots<R> {
    /// What keeps each registration, with its stamp and where its memory is.
    owners: Vec<Option<Held<R>>>,
    free: Vec<usize>,
    /// Never the same again: at a billion registrations a second it lasts for 584 years.
    next_stamp: u64,
}

impl<M: MemoryPort> RegionTable<M> {
    /// An empty table. Lanes that have its index ask it for a stager as long as it is there.
    pub fn new(memory: M, me: Pe) -> Arc<Self> {
        let slots = Slots { owners: Vec::new(), free: Vec::new(), next_stamp: 1 };
        Arc::new_cyclic(|table: &Weak<Self>| Self {
            memory,
            me,
            index: Arc::new(RegionIndex::of(table.clone())),
            slots: Mutex::new(slots),
            bounce_len: AtomicU64::new(0),
            installing: Mutex::default(),
        })
    }

    /// The part that lanes read.
    pub fn index(&self) -> Arc<RegionIndex> {
        Arc::clone(&self.index)
    }

    /// Registers `len` bytes at `addr` on every rail and returns the handle for them.
    ///
    /// # Errors
    /// An empty or impossible region, or what the fabric said.
    pub fn register(
        &self,
        addr: usize,
        len: usize,
        access: Access,
    ) -> Result<HandleBytes, EngineError> {
        if len == 0 || addr == 0 || addr.checked_add(len).is_none() {
            let fault = HandleError::Region { base: addr as u64, len: len as u64 };
            let why = fault.to_string();
            return Err(EngineError::Register { addr, len, why, no_memory: false });
        }
        let registered = self
            .memory
            .register(addr, len, access)
            .map_err(|error| not_registered((addr, len), "", &error))?;
        if registered.reach != Reach::Direct {
            let mut failed = lock(&self.installing);
            if let Some(stager) = self.memory.take_stager() {
                self.install(stager, false).inspect_err(|error| *failed = Some(error.clone()))?;
            }
        }
        let (_, handle) = self.enter(addr, len, access, registered)?;
        Ok(handle.encode())
    }

    fn install(&self, stager: Stager, for_host: bool) -> Result<(), EngineError> {
        let Stager { copies, bounce } = stager;
        let (addr, len) = (bounce.addr, bounce.bytes());
        let access = Access::LocalAndRemote;
        let registered = self
            .memory
            .register(addr, len, access)
            .map_err(|error| not_registered((addr, len), "bounce memory: ", &error))?;
        if registered.reach != Reach::Direct {
            let why = String::from("bounce memory that the fabric does not reach");
            return Err(EngineError::Register { addr, len, why, no_memory: false });
        }
        let (view, _) = self.enter(addr, len, access, registered)?;
        self.bounce_len.store(bounce.bounce_len as u64, Ordering::Relaxed);
        *lock(&self.index.stager) = Some(Installed { copies, bounce, view, for_host });
        Ok(())
    }

    fn enter(
        &self,
        addr: usize,
        len: usize,
        access: Access,
        registered: Registered<M::Region>,
    ) -> Result<(Arc<View>, Handle), EngineError> {
        let Registered { owner, keys, proxy_descs, host_descs, addressing, reach } = registered;
        if keys.len() > MAX_RAILS {
            let why = format!("{} rails, the most is {MAX_RAILS}", keys.len());
            return Err(EngineError::Register { addr, len, why, no_memory: false });
        }
        let mut slots = lock(&self.slots);
        if slots.free.is_empty() && slots.owners.len() == MOST_REGIONS {
            let why = format!("{MOST_REGIONS} regions are registered, which is the most");
            return Err(EngineError::Register { addr, len, why, no_memory: false });
        }
        let at = slots.free.pop().unwrap_or(slots.owners.len());
        let stamp = slots.next_stamp;
        slots.next_stamp += 1;
        if at == slots.owners.len() {
            slots.owners.push(None);
        }
        slots.owners[at] = Some(Held { stamp, memory: (addr, len), region: owner });
        let place = at as u32;
        let view = Arc::new(View {
            place,
            stamp,
            base: addr,
            len,
            remote: access.is_remote(),
            reach,
            keys: keys.clone().into(),
            addressing,
            proxy_descs: proxy_descs.into(),
            host_descs: host_descs.into(),
        });
        self.index.change(place, Some(Arc::clone(&view)));
        // What is for local use only is read by peers where they are asked to, and they are told
        // the keys then.
        let keys = if access.is_remote() { keys } else { Vec::new() };
        let staged = reach == Reach::Staged && access.is_remote();
        let handle = Handle {
            owner: self.me,
            base: addr as u64,
            len: len as u64,
            slot: slot_of(place, stamp),
            stamp,
            addressing,
            direct: reach == Reach::Direct,
            staged: staged.then(|| self.bounce_len.load(Ordering::Relaxed)),
            keys,
        };
        Ok((view, handle))
    }

    /// Ends the registration that the handle names. Nobody waits for an operation that uses the
    /// memory.
    ///
    /// # Errors
    /// A handle that is not of a region registered here. Or an operation that has failed may still
    /// touch the memory: it stays registered then, until this is called again. Lanes that look
    /// after their rails see to it meanwhile, as they are turned, that the operation ends.
    pub fn release(&self, handle: &HandleBytes) -> Result<(), EngineError> {
        let view = HandleView::check_of(self.me, handle)?;
        let (at, stamp) = (place_of(view.slot()), view.stamp());
        let mut slots = lock(&self.slots);
        let mut held = match slots.owners.get_mut(at) {
            Some(place) => match place.take() {
                Some(held) if held.stamp == stamp => {
                    let (addr, len) = held.memory;
                    if let Some(Orphan { what, pe, .. }) = self.index.orphans.over(addr, len) {
                        *place = Some(held);
                        return Err(EngineError::InUse { addr, len, what, pe });
                    }
                    held
                }
                other => {
                    *place = other;
                    return Err(HandleError::Stale.into());
                }
            },
            None => return Err(HandleError::Stale.into()),
        };
        self.index.change(at as u32, None);
        drop(slots);
        // Outside the lock: ending a registration takes system calls.
        let closed = self.memory.close(&mut held.region);
        let mut slots = lock(&self.slots);
        if let Err(error) = closed {
            let (addr, len) = held.memory;
            slots.owners[at] = Some(held);
            return Err(EngineError::Unclosed { addr, len, error });
        }
        slots.free.push(at);
        drop(slots);
        drop(held);
        Ok(())
    }

    /// As if so many regions had been registered and released.
    #[cfg(any(test, feature = "audit"))]
    pub fn skip_stamps(&self, count: u64) {
        lock(&self.slots).next_stamp += count;
    }

    /// Regions registered at present.
    pub fn len(&self) -> usize {
        let slots = lock(&self.slots);
        slots.owners.len() - slots.free.len()
    }

    /// Whether no region is registered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What registers the memory.
    pub fn memory(&self) -> &M {
        &self.memory
    }
}

impl<M: MemoryPort> StagerSource for RegionTable<M> {
    fn provide(&self, (addr, len): (usize, usize)) -> Result<(), EngineError> {
        let mut failed = lock(&self.installing);
        if let Some(error) = &*failed {
            return Err(error.clone());
        }
        let made = self.memory.make_stager().map_err(|error| {
            let what = "it is not registered, as this fabric wants it (FI_MR_LOCAL), and bounce memory cannot be made";
            not_registered((addr, len), &format!("{what}: "), &error)
        })?;
        let Some(stager) = made else { return Ok(()) };
        self.install(stager, true).inspect_err(|error| *failed = Some(error.clone()))
    }
}

#[cfg(test)]
mod tests;
