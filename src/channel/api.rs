//! A channel: rails to all PEs, memory that kernels and peers reach, and a proxy thread between
//! them.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use channel_sys as c;
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use log::{info, warn};

use crate::bootstrap::Bootstrap;
use crate::bootstrap::gathering::Gathering;
use crate::channel::answer::{NoAnswer, PAUSES, wait_for};
use crate::channel::error::ChannelError;
use crate::channel::memory::shared::{Shared, Sizes};
use crate::channel::memory::symmetric_memory::{MemoryLocation, SymmetricMemory};
use crate::channel::near::{NearOffer, Said, Sharing};
use crate::channel::on_stream::StreamRing;
use crate::channel::options::Options;
use crate::channel::proxy::consumer::Consumer;
use crate::channel::proxy::region_table::{PeerRegion, Region};
use crate::channel::proxy::thread::{ChannelState, Control, Proxy, ProxyView, Run, abandon};
use crate::channel::regions::{self, Registered, check_len, entries, free};
use crate::channel::registration::{Agreed, Free, Registration, agree, lowest};
use crate::channel::ring::region_entry::ShownRegion;
use crate::job::heartbeat::{Heartbeat, Still};
use crate::job::{Connected, Job, words_options};
use crate::logging;
use crate::settings::Settings;
use engine::ids::Pe;
use engine::patience::Wait;
use engine::port::Access;
use engine::wire::handle::{HANDLE_BYTES, HandleBytes};
use ofi::{fork, posix_signals};

/// What the proxy thread may take to serve a user thread: its iterations are short, but for calls
/// that wait for room.
const PATIENCE: Duration = Duration::from_secs(30);

/// What an end adds to the deadline of what is drained: the proxy thread's iteration.
const SLACK: Duration = Duration::from_secs(2);

/// The PEs of this host, as many as kernels can tell apart, this one among them.
fn near_pes(here: &[Pe], me: Pe) -> Box<[Pe]> {
    let others = here.iter().copied().filter(|pe| *pe != me);
    others.take(c::NLF_NOT_NEAR as usize - 1).chain([me]).collect()
}

/// What collectives, and changes of the table of regions, are under.
pub(crate) struct Serial {
    bootstrap: Box<dyn Bootstrap>,
    pub(crate) regions: Vec<Registered>,
    /// Of memory that is not shared with PEs of this host.
    said: Said,
}

/// See the module.
///
/// # Threads
/// [`Channel::context`], [`Channel::error`], [`Channel::peer_ptr`], [`Channel::register_local`] and
/// what is on streams may be called from any thread at any time. The others are collective: every
/// PE makes the same calls in the same order, from one thread at a time. Kernels, and CPU threads
/// that use the context as they do, are not bound to any of that; they must have ended, or see that
/// the channel was stopped, before it is dropped.
pub struct Channel {
    state: Arc<ChannelState>,
    serial: Mutex<Serial>,
    /// Its end ends the proxy thread.
    control: Option<Sender<Control>>,
    /// PEs whose memory kernels may reach themselves, this one among them.
    near: Box<[Pe]>,
    thread: Option<JoinHandle<()>>,
    /// Looks whether that thread runs. It is gone before `state`, of which it has a part.
    heartbeat: Option<Heartbeat>,
    drain: Duration,
    drained: OnceLock<Result<(), Arc<ChannelError>>>,
    stopped: bool,
}

impl Channel {
    /// Opens the rails of this PE, connects all PEs and starts the proxy thread. Collective: every
    /// PE gets a channel, or an error with the reasons of those that failed.
    ///
    /// # Errors
    /// Sizes out of bounds, or what the fabric, the system or another PE has said.
    pub fn new(mut bootstrap: Box<dyn Bootstrap>, options: &Options) -> Result<Self, ChannelError> {
        let sizes = Sizes::new(options.rings, options.slots)?;
        let (me, n_pes) = (bootstrap.me(), bootstrap.n_pes());
        if n_pes > c::NLF_MAX_PES {
            return Err(ChannelError::TooManyPes { n_pes });
        }
        let job = Job::new(options.settings.clone())?;
        {
            let gathering = Gathering::new(&mut *bootstrap)?;
            job.connect(&gathering, &[])?;
        }
        let near = near_pes(&job.connected()?.near, Pe(me));
        let words = words_options(&options.settings);
        let shared = Shared::new(sizes, me, n_pes, options.spins, &words, &near)?;
        // SAFETY: once, here. The memory is in `state`, which the proxy thread has a part of as
        // long as it has the rings.
        let rings = unsafe { shared.rings()? };
        let state = Arc::new(ChannelState::new(job, shared));
        let (control, wanted) = unbounded();
        let proxy = Proxy::new(Arc::clone(&state), Consumer::new(rings), wanted);
        // SAFETY: connected above. This type uses the lane itself only after the thread's end.
        let thread = posix_signals::spawn("nlf-proxy", move || unsafe { proxy.run() })
            .map_err(ChannelError::Thread)?;
        let heartbeat = state.job.connection().map(|connected| {
            let Settings { warn_after, fail_after, .. } = state.job.settings;
            let of = Arc::clone(&state);
            let failed = move |still: &Still| of.give_up(&still.to_string());
            Heartbeat::of(Arc::clone(&connected.pulse), warn_after, fail_after, failed)
        });
        let serial = Mutex::new(Serial { bootstrap, regions: Vec::new(), said: Said::default() });
        let (control, thread) = (Some(control), Some(thread));
        let drain = options.drain;
        let drained = OnceLock::new();
        let channel = Self {
            state,
            serial,
            control,
            near,
            thread,
            heartbeat,
            drain,
            drained,
            stopped: false,
        };
        channel.register_own()?;
        info!(
            target: logging::PROXY,
            "channel of PE {me} of {n_pes}: {} rings of {} slots", options.rings, options.slots
        );
        Ok(channel)
    }

    /// This PE.
    pub fn me(&self) -> u32 {
        self.serial().bootstrap.me()
    }

    /// Number of PEs.
    pub fn n_pes(&self) -> u32 {
        self.serial().bootstrap.n_pes()
    }

    /// What kernels are given. It and all it points to stay until the channel is dropped.
    ///
    /// Where the thread that has made the channel uses a device, it is in that device's memory and
    /// for kernels; else it is for CPU threads.
    pub fn context(&self) -> *const c::nlf_context {
        self.state.shared.context()
    }

    /// What has failed first, if something has: an operation, or what a kernel has asked for.
    /// Kernels see it as well, and nothing is taken from the rings any more.
    pub fn error(&self) -> Option<String> {
        self.state.failure()
    }

    /// Gives every PE `len` bytes of zeroed host memory that all PEs reach, and kernels of this
    /// process; page-locked where the process uses CUDA. Collective, with the same length on all.
    ///
    /// # Errors
    /// The memory is not to be had or registered, here or at another PE.
    pub fn allocate_symmetric(&self, len: usize) -> Result<*mut u8, ChannelError> {
        self.allocate_symmetric_on(MemoryLocation::Host, len)
    }

    /// The same, of memory that is where this PE wants it. On a device it is made by the VMM
    /// interface where the driver has that, reached by NICs directly where all rails can and the
    /// settings let them, and staged else. It may wait for everything on the device, as
    /// [`Channel::release`] of it does. Collective, with the same length on all; each PE says for
    /// itself where.
    ///
    /// # Errors
    /// As [`Channel::allocate_symmetric`]; no context of a device is current on this thread.
    pub fn allocate_symmetric_on(
        &self,
        location: MemoryLocation,
        len: usize,
    ) -> Result<*mut u8, ChannelError> {
        let memory = SymmetricMemory::new(location, len);
        let (addr, memory, failed) = match memory {
            Ok(memory) => (memory.addr(), Some(memory), None),
            Err(failed) => (0, None, Some(failed)),
        };
        self.register_all(addr, len, memory, failed)?;
        Ok(addr as *mut u8)
    }

    /// Registers memory that all PEs reach from now on: of the host, or of a CUDA device.
    /// Collective, with the same length on all PEs, at any address.
    ///
    /// # Errors
    /// It cannot be registered here or at another PE; then it is registered at none.
    ///
    /// # Safety
    /// The memory stays what it is until it is released or the channel is dropped, and nobody minds
    /// that peers write to it.
    pub unsafe fn register_symmetric(&self, addr: *mut u8, len: usize) -> Result<(), ChannelError> {
        self.register_all(addr as usize, len, None, None)
    }

    /// Registers memory of this PE that kernels may put from, and get and fetch into. Peers do not
    /// reach it. Not collective.
    ///
    /// # Errors
    /// It cannot be registered.
    ///
    /// # Safety
    /// As [`Channel::register_symmetric`], for the writes of gets and fetches.
    pub unsafe fn register_local(&self, addr: *mut u8, len: usize) -> Result<(), ChannelError> {
        let base = addr as usize;
        let mut serial = self.serial_here()?;
        let index = lowest(&free(&serial.regions)).ok_or_else(|| ChannelError::Register {
            addr: base,
            len,
            why: String::from("all indices of regions are in use"),
        })?;
        check_len(base, len)?;
        let handle = self.register_here(base, len, Access::Local)?;
        let peers: Box<[PeerRegion]> = [].into();
        let registered = Registered::new(index, (base, len), false, handle, None);
        self.enter(&mut serial, registered, peers)
    }

    /// Ends the registration of memory that begins at an address, and frees it if it was allocated
    /// here. Collective for symmetric memory. Nobody uses the memory any more, here or there.
    ///
    /// # Errors
    /// There is no such memory; or not all PEs have come. Or an operation touches it still, which
    /// has failed perhaps: then it stays registered, and is not freed, until this is called again,
    /// which is not collective, or until the channel is dropped, which closes its endpoints.
    pub fn release(&self, addr: *mut u8) -> Result<(), ChannelError> {
        let mut serial = self.serial_here()?;
        let serial = &mut *serial;
        let base = addr as usize;
        let at = serial.regions.iter().position(|region| region.base == base);
        let at = at.ok_or(ChannelError::NoRegion { addr: base })?;
        let is_first = serial.regions[at].symmetric && !serial.regions[at].unwanted;
        if is_first {
            // Who has come here has no use for the peers' memory any more.
            serial.bootstrap.barrier()?;
        }
        let mut region = serial.regions.swap_remove(at);
        region.unwanted = true;
        let hidden = self.hide(&serial.regions, &mut region);
        let met = if is_first && region.is_shared {
            // Nobody frees memory that another process still has mapped.
            serial.bootstrap.barrier().map_err(ChannelError::from)
        } else {
            Ok(())
        };
        let released = hidden.and(met).and_then(|()| self.release_region(&region));
        if released.is_err() {
            serial.regions.push(region);
        }
        released
    }

    /// Takes a region away from kernels, and unmaps what near PEs have under it. `left` are the
    /// others.
    fn hide(&self, left: &[Registered], region: &mut Registered) -> Result<(), ChannelError> {
        let index = usize::from(region.index);
        let hidden = self.state.shared.set_region(index, ShownRegion::NONE, entries(left));
        hidden.and(self.close_near(region))
    }

    fn close_near(&self, region: &mut Registered) -> Result<(), ChannelError> {
        let is_there = !region.near.is_empty();
        region.near.clear();
        match is_there {
            true => self.state.shared.set_near(usize::from(region.index), &[]),
            false => Ok(()),
        }
    }

    /// Ends a registration.
    fn release_region(&self, region: &Registered) -> Result<(), ChannelError> {
        self.set_in_proxy(region.index, None)?;
        let connected = self.connected()?;
        let release = || {
            self.check_unused(region.base, region.len)?;
            connected.regions.release(&region.handle).map_err(ChannelError::Release)
        };
        connected.release_patiently(release, ChannelError::is_in_use)
    }

    /// Where kernels of this PE load and store what `addr` of its symmetric memory means at `pe`:
    /// what `nlf_ptr` tells them. Null where they do not reach it. It waits while another thread
    /// makes a collective call.
    pub fn peer_ptr(&self, addr: *const u8, pe: u32) -> *mut u8 {
        let addr = addr as usize;
        let number = self.near.iter().position(|near| *near == Pe(pe));
        let Ok(serial) = self.serial_here() else { return std::ptr::null_mut() };
        let found = serial.regions.iter().find_map(|region| {
            let offset = addr.checked_sub(region.base).filter(|offset| *offset < region.len)?;
            let near = region.near.iter().find(|near| Some(near.number) == number)?;
            Some(near.base as usize + offset)
        });
        found.unwrap_or_default() as *mut u8
    }

    /// That nothing that the proxy thread has under way touches these bytes.
    fn check_unused(&self, addr: usize, len: usize) -> Result<(), ChannelError> {
        let (done, outcome) = bounded(1);
        let check = move |view: &mut ProxyView<'_>| {
            drop(done.send(view.lane.check_unused(addr, len)));
        };
        self.send(Control::Run(Run(Box::new(check))))?;
        self.answer(&outcome)?.map_err(ChannelError::Release)
    }

    /// Returns when all PEs have called it. It says nothing about operations: kernels' quiet does.
    /// Collective.
    ///
    /// # Errors
    /// Not all PEs have come.
    pub fn barrier(&self) -> Result<(), ChannelError> {
        Ok(self.serial_here()?.bootstrap.barrier()?)
    }

    /// For benches and tests: runs a function in the proxy thread, between two of its iterations,
    /// and waits for it.
    ///
    /// # Errors
    /// The thread has ended.
    #[doc(hidden)]
    pub fn on_proxy<T: Send + 'static>(
        &self,
        run: impl FnOnce(&mut ProxyView<'_>) -> T + Send + 'static,
    ) -> Result<T, ChannelError> {
        let (done, result) = bounded(1);
        self.send_to_proxy(move |view| drop(done.send(run(view))))?;
        result.recv().map_err(|_| ChannelError::Ended)
    }

    /// As [`Channel::on_proxy`], without waiting.
    ///
    /// # Errors
    /// As there.
    #[doc(hidden)]
    pub fn send_to_proxy(
        &self,
        run: impl FnOnce(&mut ProxyView<'_>) + Send + 'static,
    ) -> Result<(), ChannelError> {
        self.send(Control::Run(Run(Box::new(run))))
    }

    /// For benches: slots of a ring whose operations are done.
    #[doc(hidden)]
    pub fn done(&self, ring: usize) -> u64 {
        self.state.shared.done(ring)
    }

    /// Delivers what was pushed by now, and takes nothing more: who pushes later, or waits, is told
    /// that the channel is stopped. Peers are still served. For producers that have to end before
    /// the channel is dropped; [`Channel::stop`] does it as well. Not collective.
    ///
    /// # Errors
    /// Something was not delivered within [`Options::drain`], or had failed before.
    pub fn drain(&self) -> Result<(), ChannelError> {
        match self.drained.get_or_init(|| self.drain_rings().map_err(Arc::new)) {
            Ok(()) => Ok(()),
            Err(failed) => Err(ChannelError::Undelivered(Arc::clone(failed))),
        }
    }

    /// Ends the channel in good order: delivers what was pushed by now, waits until all PEs have,
    /// and ends the proxy thread. What is pushed later is not taken, and whoever waits in vain is
    /// told so. Collective. After it, the channel can only be dropped.
    ///
    /// # Errors
    /// Something was not delivered within [`Options::drain`], or had failed before; or another PE
    /// has not come. The proxy thread has ended all the same.
    pub fn stop(mut self) -> Result<(), ChannelError> {
        self.end(true)
    }

    /// As [`Channel::stop`]; without waiting for other PEs unless `with_others`.
    fn end(&mut self, with_others: bool) -> Result<(), ChannelError> {
        if std::mem::replace(&mut self.stopped, true) {
            return Ok(());
        }
        if fork::is_child() {
            self.leave_to_parent();
            return Err(ChannelError::Child);
        }
        let drained = self.drain();
        let mut serial = self.serial();
        for region in &mut serial.regions {
            if let Err(failed) = self.close_near(region) {
                warn!(target: logging::PROXY, "the tables of near PEs: {failed}");
            }
        }
        drop(serial);
        // Also when something has failed: peers may still need this PE's iterations, and wait for
        // it here.
        let met = match with_others {
            true => self.serial().bootstrap.barrier().map_err(ChannelError::from),
            false => Ok(()),
        };
        self.control = None;
        let ended = self.join();
        self.heartbeat = None;
        if let Err(stuck) = ended {
            self.leak_regions();
            return Err(stuck);
        }
        // SAFETY: the proxy thread has ended, and nobody else uses its lane.
        unsafe {
            self.state.job.tell_counters();
            self.state.job.drain_before_close();
        }
        drained.and(met)
    }

    /// Waits for the proxy thread's end, which has no reason to be long in coming.
    fn join(&mut self) -> Result<(), ChannelError> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        // It does not wait for anything any more.
        abandon(&self.state);
        let mut wait = Wait::new();
        while !thread.is_finished() {
            if wait.left_of(self.drain).is_none() {
                // It has a part of `state`, which stays for it: rails, rings, registrations.
                return Err(ChannelError::Stuck { waited: self.drain });
            }
            std::thread::sleep(PAUSES.1);
        }
        if thread.join().is_err() {
            warn!(target: logging::PROXY, "the channel's proxy thread has panicked");
        }
        Ok(())
    }

    /// Memory that was allocated here is not freed: somebody may still use it.
    fn leak_regions(&mut self) {
        let serial = self.serial.get_mut().unwrap_or_else(PoisonError::into_inner);
        std::mem::forget(std::mem::take(&mut serial.regions));
    }

    /// In a child of fork nothing is closed or freed: the proxy thread is not here, and what there
    /// is is a copy.
    fn leave_to_parent(&mut self) {
        std::mem::forget((self.thread.take(), self.heartbeat.take(), self.control.take()));
        // The proxy thread's part of `state` is never given back here.
        self.leak_regions();
    }

    fn drain_rings(&self) -> Result<(), ChannelError> {
        let (done, outcome) = bounded(1);
        let mut heads = self.state.shared.heads()?;
        heads.extend(self.state.stream_ring.get().map(|ring| ring.head()));
        self.send(Control::Drain { heads, patience: self.drain, done })?;
        let late = ChannelError::Late { what: "delivering what was pushed", waited: self.drain };
        match wait_for(&outcome, self.drain.saturating_add(SLACK)) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(left)) => match self.error() {
                Some(why) => Err(ChannelError::Failed(why)),
                None => {
                    warn!(target: logging::PROXY, "{left} slots were not delivered");
                    Err(late)
                }
            },
            Err(NoAnswer::Late) => Err(late),
            Err(NoAnswer::Ended) => Err(ChannelError::Ended),
        }
    }

    /// Lets kernels and peers reach the library's own memory. It goes with the channel.
    fn register_own(&self) -> Result<(), ChannelError> {
        let mut serial = self.serial_here()?;
        let own = (self.state.shared.own(), size_of::<c::nlf_own>());
        let (registered, peers) = self.agree_on(&mut serial, regions::own(), own, None, None)?;
        let Registered { index, base, len, .. } = registered;
        self.set_in_proxy(index, Some(Box::new(Region { base, len: len as u64, peers })))
    }

    /// Registers memory on all PEs. `failed` is what went wrong here before; the others are told.
    fn register_all(
        &self,
        base: usize,
        len: usize,
        memory: Option<SymmetricMemory>,
        failed: Option<ChannelError>,
    ) -> Result<(), ChannelError> {
        let mut serial = self.serial_here()?;
        let free = free(&serial.regions);
        let (registered, peers) = self.agree_on(&mut serial, free, (base, len), memory, failed)?;
        self.enter(&mut serial, registered, peers)
    }

    /// The same, under an index of those that all have free, which nobody is shown yet.
    fn agree_on(
        &self,
        serial: &mut Serial,
        free: Free,
        (base, len): (usize, usize),
        memory: Option<SymmetricMemory>,
        failed: Option<ChannelError>,
    ) -> Result<(Registered, Box<[PeerRegion]>), ChannelError> {
        let registered = match failed {
            Some(failed) => Err(failed),
            None => check_len(base, len)
                .and_then(|()| self.register_here(base, len, Access::LocalAndRemote)),
        };
        let (me, Serial { bootstrap, said, .. }) = (Pe(serial.bootstrap.me()), serial);
        let sharing = match registered {
            Ok(_) if self.near.len() > 1 => {
                Sharing::new(me, (base, len), self.state.shared.device_context(), said)
            }
            _ => Sharing::none(me),
        };
        let registration = Registration {
            len: len as u64,
            base: base as u64,
            free,
            handle: *registered.as_ref().unwrap_or(&[0; HANDLE_BYTES]),
            near: sharing.offer(),
            failed: registered.as_ref().err().map(ToString::to_string),
        };
        let gathered = bootstrap.allgather(&registration.encode());
        let handle = registered?;
        let mut registered = Registered::new(0, (base, len), true, handle, memory);
        let agreed = gathered
            .map_err(ChannelError::from)
            .and_then(|gathered| agree(&gathered, &registration))
            .and_then(|Agreed { index, peers, near }| {
                registered.index = index;
                registered.is_shared = near.iter().any(NearOffer::is_shared);
                let own = (base, len);
                registered.near = sharing.map(&self.near, &near, own, &mut **bootstrap, said)?;
                Ok(peers)
            });
        match agreed {
            Ok(peers) => Ok((registered, peers)),
            Err(failed) => {
                // Peers that have agreed have not: each sees the same.
                self.give_up(registered);
                Err(failed)
            }
        }
    }

    fn register_here(
        &self,
        base: usize,
        len: usize,
        access: Access,
    ) -> Result<HandleBytes, ChannelError> {
        let connected = self.connected()?;
        let registered = connected.consistency.register(&connected.regions, base, len, access);
        registered.map_err(|error| {
            let why = error.to_string();
            ChannelError::Register { addr: base, len, why }
        })
    }

    /// Shows a region to the proxy thread, then to kernels.
    fn enter(
        &self,
        serial: &mut Serial,
        registered: Registered,
        peers: Box<[PeerRegion]>,
    ) -> Result<(), ChannelError> {
        let Registered { index, base, len, symmetric, .. } = registered;
        let region = Region { base, len: len as u64, peers };
        if let Err(failed) = self.set_in_proxy(index, Some(Box::new(region))) {
            self.give_up(registered);
            return Err(failed);
        }
        let near: Vec<_> = registered.near.iter().map(|near| (near.number, near.base)).collect();
        serial.regions.push(registered);
        if symmetric {
            self.state.shared.set_near(usize::from(index), &near)?;
        }
        let shown = ShownRegion { base: base as u64, len: len as u64, symmetric };
        self.state.shared.set_region(usize::from(index), shown, entries(&serial.regions))
    }

    /// Ends a registration that nobody here was shown. The memory is freed only once peers cannot
    /// write to it any more, neither by the fabric nor where they have it mapped.
    fn give_up(&self, mut region: Registered) {
        let Registered { base, len, handle, is_shared, .. } = region;
        region.near.clear();
        let connected = self.connected();
        let released = connected.and_then(|connected| {
            connected.regions.release(&handle).map_err(ChannelError::Release)
        });
        let why = match released {
            Ok(()) if is_shared => String::from("PEs of this host may have them mapped"),
            Ok(()) => return,
            Err(failed) => failed.to_string(),
        };
        warn!(
            target: logging::MEM,
            "{len} bytes at {base:#x} are not freed after a registration that has failed, where they were allocated \
             for it: {why}"
        );
        std::mem::forget(region);
    }

    fn set_in_proxy(&self, index: u8, region: Option<Box<Region>>) -> Result<(), ChannelError> {
        let (done, is_done) = bounded(1);
        self.send(Control::Region { index, region, done })?;
        self.answer(&is_done)
    }

    /// The ring that host functions in streams put into, which the first of them brings.
    pub(crate) fn stream_ring(&self) -> Result<Arc<StreamRing>, ChannelError> {
        let _serial = self.serial_here()?;
        if let Some(ring) = self.state.stream_ring.get() {
            return Ok(Arc::clone(ring));
        }
        let ring = StreamRing::new();
        // SAFETY: once, here; the proxy thread has a part of `state`, which keeps it.
        let consumer = unsafe { ring.consumer()? };
        let kept = self.state.stream_ring.get_or_init(|| ring);
        let (done, is_done) = bounded(1);
        self.send(Control::Ring { ring: Box::new(consumer), done })?;
        self.answer(&is_done)?;
        Ok(Arc::clone(kept))
    }

    /// What the proxy thread answers to a user thread.
    fn answer<T>(&self, answer: &Receiver<T>) -> Result<T, ChannelError> {
        wait_for(answer, PATIENCE).map_err(|error| match error {
            NoAnswer::Ended => ChannelError::Ended,
            NoAnswer::Late => {
                let what = "a change of the proxy thread's table of regions";
                ChannelError::Late { what, waited: PATIENCE }
            }
        })
    }

    fn send(&self, control: Control) -> Result<(), ChannelError> {
        if fork::is_child() {
            return Err(ChannelError::Child);
        }
        let sender = self.control.as_ref().ok_or(ChannelError::Ended)?;
        sender.send(control).map_err(|_| ChannelError::Ended)
    }

    fn connected(&self) -> Result<&Connected, ChannelError> {
        if fork::is_child() {
            return Err(ChannelError::Child);
        }
        Ok(self.state.job.connected()?)
    }

    /// As [`Channel::serial`], for what changes something: not in a child of fork, where the lock
    /// may be held for ever.
    pub(crate) fn serial_here(&self) -> Result<MutexGuard<'_, Serial>, ChannelError> {
        if fork::is_child() { Err(ChannelError::Child) } else { Ok(self.serial()) }
    }

    fn serial(&self) -> MutexGuard<'_, Serial> {
        // Each change of it is one call.
        self.serial.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Channel {
    /// As [`Channel::stop`], but without waiting for other PEs, which must not need this one any
    /// more.
    fn drop(&mut self) {
        if let Err(failed) = self.end(false) {
            warn!(target: logging::PROXY, "the channel's end: {failed}");
        }
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (me, n_pes) = (self.me(), self.n_pes());
        f.debug_struct("Channel").field("me", &me).field("n_pes", &n_pes).finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(crate) mod tests;
