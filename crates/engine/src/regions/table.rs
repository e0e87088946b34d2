use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, TryLockError, Weak};

use crate::error::EngineError;
use crate::ids::Pe;
use crate::port::copies::{Reach, Stager};
use crate::port::{Access, MemoryPort, PortError, Registered};
use crate::regions::{
    MAX_REGIONS, Orphan, Region, RegionDirectory, RegisteredStager, StagerSource, index_of, lock,
};
use crate::wire::handle::{Handle, HandleBytes, HandleError, HandleView, MAX_RAILS};

/// `ENOMEM`.
const NO_MEMORY: i32 = 12;

#[cold]
fn not_registered((addr, len): (usize, usize), what: &str, error: &PortError) -> EngineError {
    let (why, no_memory) = (format!("{what}{error}"), error.code == NO_MEMORY);
    EngineError::Register { addr, len, why, no_memory }
}

/// Registers and releases memory, and makes its handles. Any thread may use it at any time.
#[derive(Debug)]
pub struct RegionTable<M: MemoryPort> {
    memory: M,
    me: Pe,
    directory: Arc<RegionDirectory>,
    registrations: Mutex<Registrations<M::Region>>,
    /// Bytes of a bounce buffer, for handles of staged regions; 0 before there is one.
    bounce_len: AtomicU64,
    /// Reason that bounce memory could not be registered. Locked during its registration.
    pub(super) installing: Mutex<Option<EngineError>>,
}

#[derive(Debug)]
struct Registration<R> {
    stamp: u64,
    memory: (usize, usize),
    owner: R,
}

#[derive(Debug)]
struct Registrations<R> {
    entries: Vec<Option<Registration<R>>>,
    free: Vec<usize>,
    /// Never repeats: at a billion registrations a second it lasts for 584 years.
    next_stamp: u64,
}

impl<M: MemoryPort> RegionTable<M> {
    pub fn new(memory: M, me: Pe) -> Arc<Self> {
        let registrations = Registrations { entries: Vec::new(), free: Vec::new(), next_stamp: 1 };
        Arc::new_cyclic(|table: &Weak<Self>| Self {
            memory,
            me,
            directory: Arc::new(RegionDirectory::new(table.clone())),
            registrations: Mutex::new(registrations),
            bounce_len: AtomicU64::new(0),
            installing: Mutex::default(),
        })
    }

    pub fn directory(&self) -> Arc<RegionDirectory> {
        Arc::clone(&self.directory)
    }

    /// Registers `len` bytes at `addr` on every rail and returns their handle.
    ///
    /// # Errors
    /// An empty or impossible region, or a registration that the fabric refused.
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
            // Before the handle exists: it contains the length of a bounce buffer.
            let mut failed = lock(&self.installing);
            if let Some(stager) = self.memory.take_stager() {
                self.install(stager).inspect_err(|error| *failed = Some(error.clone()))?;
            }
        }
        let (_, handle) = self.enter(addr, len, access, registered)?;
        Ok(handle.encode())
    }

    /// Registers the bounce memory and provides the stager to the proxy lane.
    fn install(&self, stager: Stager) -> Result<(), EngineError> {
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
        let (region, _) = self.enter(addr, len, access, registered)?;
        self.bounce_len.store(bounce.bounce_len as u64, Ordering::Relaxed);
        *lock(&self.directory.stager) = Some(RegisteredStager { copies, bounce, region });
        Ok(())
    }

    fn enter(
        &self,
        addr: usize,
        len: usize,
        access: Access,
        registered: Registered<M::Region>,
    ) -> Result<(Arc<Region>, Handle), EngineError> {
        let Registered { owner, keys, proxy_descs, host_descs, addressing, reach } = registered;
        let refuse = |why| EngineError::Register { addr, len, why, no_memory: false };
        if keys.len() > MAX_RAILS {
            return Err(refuse(format!("{} rails, the most is {MAX_RAILS}", keys.len())));
        }
        let mut registrations = lock(&self.registrations);
        if registrations.free.is_empty() && registrations.entries.len() == MAX_REGIONS {
            let why = format!("{MAX_REGIONS} regions are registered, which is the most");
            return Err(refuse(why));
        }
        let index = registrations.free.pop().unwrap_or(registrations.entries.len());
        let stamp = registrations.next_stamp;
        // Never used twice, so an outlived handle matches no region.
        registrations.next_stamp += 1;
        if index == registrations.entries.len() {
            registrations.entries.push(None);
        }
        registrations.entries[index] = Some(Registration { stamp, memory: (addr, len), owner });
        let region = Arc::new(Region {
            index: index as u32,
            stamp,
            base: addr,
            len,
            remote: access.is_remote(),
            reach,
            keys: keys.clone().into(),
            addressing,
            descs: [host_descs.into(), proxy_descs.into()],
        });
        self.directory.change(index, Some(Arc::clone(&region)));
        // Peers read local memory only on request, and the request brings the keys.
        let keys = if access.is_remote() { keys } else { Vec::new() };
        let staged = reach == Reach::Staged && access.is_remote();
        let handle = Handle {
            owner: self.me,
            base: addr as u64,
            len: len as u64,
            region: region.id(),
            stamp,
            addressing,
            direct: reach == Reach::Direct,
            staged: staged.then(|| self.bounce_len.load(Ordering::Relaxed)),
            keys,
        };
        Ok((region, handle))
    }

    /// Ends the registration that the handle names. The caller guarantees that none of its
    /// operations in flight accesses the memory. Until every region that holds them is released,
    /// a peer may read the bytes of a put that has failed.
    ///
    /// # Errors
    /// A handle of no region registered here; or memory that a failed operation may still access,
    /// which stays registered until a later call succeeds.
    pub fn release(&self, handle: &HandleBytes) -> Result<(), EngineError> {
        let view = HandleView::check_of(self.me, handle)?;
        let (index, stamp) = (index_of(view.region()), view.stamp());
        let mut registrations = lock(&self.registrations);
        let entry = registrations.entries.get_mut(index).ok_or(HandleError::Stale)?;
        let Some(mut registration) = entry.take_if(|registration| registration.stamp == stamp)
        else {
            return Err(HandleError::Stale.into());
        };
        let (addr, len) = registration.memory;
        // Before anything changes, so that a refused release has no effect.
        if let Some(Orphan { what, pe, .. }) = self.directory.orphan_over(addr, len) {
            *entry = Some(registration);
            return Err(EngineError::InUse { addr, len, what, pe });
        }
        // First hidden from lanes, so that no new operation or message finds it.
        self.directory.change(index, None);
        drop(registrations);
        // Outside the lock: ending a registration takes system calls. The index is not free yet.
        let closed = self.memory.close(&mut registration.owner);
        let mut registrations = lock(&self.registrations);
        if let Err(error) = closed {
            registrations.entries[index] = Some(registration);
            return Err(EngineError::Unclosed { addr, len, error });
        }
        // Free only now: a registration that could not be ended goes back to its index.
        registrations.free.push(index);
        drop(registrations);
        drop(registration);
        Ok(())
    }

    pub fn len(&self) -> usize {
        let registrations = lock(&self.registrations);
        registrations.entries.len() - registrations.free.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn memory(&self) -> &M {
        &self.memory
    }
}

impl<M: MemoryPort> StagerSource for RegionTable<M> {
    fn provide(&self, memory: (usize, usize)) -> Result<(), EngineError> {
        // A registering thread that holds it may wait for the device: the caller asks again.
        let mut failed = match self.installing.try_lock() {
            Ok(failed) => failed,
            Err(TryLockError::Poisoned(failed)) => failed.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(()),
        };
        // Not tried again: each attempt would allocate and register all bounce memory.
        if let Some(error) = &*failed {
            return Err(error.clone());
        }
        let made = self.memory.make_stager().map_err(|error| {
            let what = "it is not registered, and bounce memory to copy it through cannot be made";
            not_registered(memory, &format!("{what}: "), &error)
        })?;
        let Some(stager) = made else { return Ok(()) };
        self.install(stager).inspect_err(|error| *failed = Some(error.clone()))
    }
}
