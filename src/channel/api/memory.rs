//! Memory of a channel: how it is allocated and registered with all PEs, shown to kernels and the
//! proxy thread, and released.

use channel_sys as c;
use crossbeam_channel::bounded;
use log::warn;

use super::{Channel, Serial};
use crate::channel::error::ChannelError;
use crate::channel::memory::symmetric_memory::{MemoryLocation, SymmetricMemory};
use crate::channel::proxy::region_table::{PeerRegion, Region};
use crate::channel::proxy::thread::{Control, ProxyView, Run};
use crate::channel::regions::{self, Registered, check_len, entries, free, latest};
use crate::channel::registration::{Agreed, Free, Registration, agree, lowest};
use crate::channel::ring::region_entry::ShownRegion;
use crate::logging;
use engine::port::Access;
use engine::wire::handle::{HANDLE_BYTES, HandleBytes};

impl Channel {
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

    /// Ends the registration of memory that begins at an address, the latest one if there are
    /// several, and frees it if it was allocated here. Collective for symmetric memory. Nobody uses
    /// the memory any more, here or there.
    ///
    /// # Errors
    /// There is no such memory; or not all PEs have come. Or an operation touches it still, which
    /// has failed perhaps: then it stays registered, and is not freed, until this is called again,
    /// which is not collective, or until the channel is dropped, which closes its endpoints.
    pub fn release(&self, addr: *mut u8) -> Result<(), ChannelError> {
        let mut serial = self.serial_here()?;
        let serial = &mut *serial;
        let base = addr as usize;
        let at = latest(&serial.regions, base).ok_or(ChannelError::NoRegion { addr: base })?;
        let is_first = serial.regions[at].symmetric && !serial.regions[at].unwanted;
        if is_first {
            // Who has come here has no use for the peers' memory any more.
            serial.bootstrap.barrier()?;
        }
        let mut region = serial.regions.remove(at);
        region.unwanted = true;
        let index = usize::from(region.index);
        let hidden =
            self.state.shared.set_region(index, ShownRegion::NONE, entries(&serial.regions));
        let released = hidden.and_then(|()| self.release_region(&region));
        if released.is_err() {
            serial.regions.push(region);
        }
        released
    }

    fn release_region(&self, region: &Registered) -> Result<(), ChannelError> {
        self.set_in_proxy(region.index, None)?;
        let connected = self.connected()?;
        let release = || {
            self.check_unused(region.base, region.len)?;
            connected.regions.release(&region.handle).map_err(ChannelError::Release)
        };
        connected.release_patiently(release, ChannelError::is_in_use)
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

    pub(super) fn register_own(&self) -> Result<(), ChannelError> {
        let mut serial = self.serial_here()?;
        let own = (self.state.shared.own(), size_of::<c::nlf_own>());
        let (registered, peers) = self.agree_on(&mut serial, regions::own(), own, None, None)?;
        let Registered { index, base, len, .. } = registered;
        self.set_in_proxy(index, Some(Box::new(Region { base, len: len as u64, peers })))
    }

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
        let registration = Registration {
            len: len as u64,
            base: base as u64,
            free,
            handle: *registered.as_ref().unwrap_or(&[0; HANDLE_BYTES]),
            failed: registered.as_ref().err().map(ToString::to_string),
        };
        let gathered = serial.bootstrap.allgather(&registration.encode());
        let handle = registered?;
        let mut registered = Registered::new(0, (base, len), true, handle, memory);
        let agreed = gathered
            .map_err(ChannelError::from)
            .and_then(|gathered| agree(&gathered, &registration))
            .map(|Agreed { index, peers }| {
                registered.index = index;
                peers
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
        serial.regions.push(registered);
        let shown = ShownRegion { base: base as u64, len: len as u64, symmetric };
        self.state.shared.set_region(usize::from(index), shown, entries(&serial.regions))
    }

    /// Ends a registration that nobody here was shown. The memory is freed only once peers cannot
    /// write to it any more.
    fn give_up(&self, region: Registered) {
        let Registered { base, len, handle, .. } = region;
        let connected = self.connected();
        let released = connected.and_then(|connected| {
            connected.regions.release(&handle).map_err(ChannelError::Release)
        });
        let Err(why) = released else { return };
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
}
