//! Memory of a channel: allocated, registered with all PEs, shown to kernels and proxy, released.

use channel_sys as c;
use log::warn;

use super::Channel;
use crate::bootstrap::Bootstrap;
use crate::channel::error::ChannelError;
use crate::channel::memory::SharedBlock;
use crate::channel::memory::symmetric_memory::{MemoryLocation, symmetric};
use crate::channel::proxy::region_table::{PeerRegion, Region};
use crate::channel::regions::{self, Regions, Registered, check_len};
use crate::channel::registration::{Agreed, Free, agree};
use crate::channel::ring::region_entry::ShownRegion;
use crate::logging;
use engine::port::Access;
use engine::wire::handle::HandleBytes;

impl Channel {
    /// Gives every PE `len` bytes of zeroed host memory that all PEs reach, and kernels of this
    /// process; page-locked where the process uses CUDA. Collective, with the same length on all.
    ///
    /// # Errors
    /// The memory is not to be had or registered, here or at another PE.
    pub fn allocate_symmetric(&self, len: usize) -> Result<*mut u8, ChannelError> {
        self.allocate_symmetric_on(MemoryLocation::Host, len)
    }

    /// [`Channel::allocate_symmetric`], of memory on the host or on a device, as each PE chooses.
    /// On a device it is made by the VMM interface where the driver has that, and staged unless all
    /// rails reach it and the settings let them. It may wait for everything on the device, as
    /// [`Channel::release`] of it does.
    ///
    /// # Errors
    /// As [`Channel::allocate_symmetric`]; no context of a device is current on this thread.
    pub fn allocate_symmetric_on(
        &self,
        location: MemoryLocation,
        len: usize,
    ) -> Result<*mut u8, ChannelError> {
        let memory = symmetric(location, len);
        let addr = memory.as_ref().map_or(0, |memory| memory.addr());
        self.register_all(addr, len, memory.map(Some))?;
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
        self.register_all(addr as usize, len, Ok(None))
    }

    /// Registers memory of this PE that kernels may put from, and get and fetch into. Peers do not
    /// reach it. Not collective, and waits for no collective call of another thread.
    ///
    /// # Errors
    /// It cannot be registered; or 63 others were while a collective registration was under way.
    ///
    /// # Safety
    /// As [`Channel::register_symmetric`], for the writes of gets and fetches.
    pub unsafe fn register_local(&self, addr: *mut u8, len: usize) -> Result<(), ChannelError> {
        let base = addr as usize;
        check_len(base, len)?;
        let handle = self.register_here(base, len, Access::Local)?;
        let mut registered = Registered::new((base, len), false, handle, None);
        let mut regions = self.lock(&self.regions)?;
        let Some(index) = regions.local_index() else {
            self.give_up(registered);
            let why = String::from("all indices of regions are in use");
            return Err(ChannelError::Register { addr: base, len, why });
        };
        registered.index = index;
        self.enter(&mut regions, registered, [].into())
    }

    /// Ends the latest registration of memory that begins at an address, and frees it if it was
    /// allocated here. Collective for symmetric memory, which no PE uses any more.
    ///
    /// # Errors
    /// There is no such memory; or not all PEs have come. Or an operation touches it still, which
    /// has failed perhaps: then it stays registered, and is not freed, until this is called again,
    /// which is not collective, or until the channel is dropped, which closes its endpoints.
    pub fn release(&self, addr: *mut u8) -> Result<(), ChannelError> {
        let unknown = || ChannelError::NoRegion { addr: addr as usize };
        let mut regions = self.lock(&self.regions)?;
        let (index, is_collective) = regions.latest(addr as usize).ok_or_else(unknown)?;
        if is_collective {
            drop(regions);
            // A PE that has called this uses the peers' memory no more.
            self.barrier()?;
            regions = self.lock(&self.regions)?;
        }
        let mut region = regions.remove(index).ok_or_else(unknown)?;
        region.unwanted = true;
        let shown = regions.entries();
        let hidden = self.state.shared.set_region(index.into(), ShownRegion::NONE, shown);
        let released = hidden.and_then(|()| self.release_region(&region));
        if released.is_err() {
            regions.all.push(region);
        }
        released
    }

    fn release_region(&self, region: &Registered) -> Result<(), ChannelError> {
        self.set_in_proxy(region.index, None)?;
        let connected = self.connected()?;
        let (base, len) = (region.base, region.len);
        let release = || {
            // An operation of the proxy thread may touch these bytes still.
            let unused = self.on_proxy(move |view| view.lane.check_unused(base, len))?;
            unused.map_err(ChannelError::Release)?;
            connected.regions.release(&region.handle).map_err(ChannelError::Release)
        };
        connected.release_patiently(release, ChannelError::is_in_use)
    }

    pub(super) fn register_own(&self) -> Result<(), ChannelError> {
        let own = (self.state.shared.own(), size_of::<c::nlf_own>());
        let mut bootstrap = self.lock(&self.bootstrap)?;
        let (registered, peers) = self.agree_on(&mut **bootstrap, regions::own(), own, Ok(None))?;
        let Registered { index, base, len, .. } = registered;
        self.set_in_proxy(index, Some(Box::new(Region { base, len: len as u64, peers })))
    }

    fn register_all(
        &self,
        base: usize,
        len: usize,
        memory: Result<Option<Box<dyn SharedBlock>>, ChannelError>,
    ) -> Result<(), ChannelError> {
        let mut bootstrap = self.lock(&self.bootstrap)?;
        let free = self.lock(&self.regions)?.offer();
        let agreed = self.agree_on(&mut **bootstrap, free, (base, len), memory);
        let mut regions = self.lock(&self.regions)?;
        regions.end_offer();
        let (registered, peers) = agreed?;
        self.enter(&mut regions, registered, peers)
    }

    fn agree_on(
        &self,
        bootstrap: &mut dyn Bootstrap,
        free: Free,
        (base, len): (usize, usize),
        memory: Result<Option<Box<dyn SharedBlock>>, ChannelError>,
    ) -> Result<(Registered, Box<[PeerRegion]>), ChannelError> {
        // First: errors after it are exchanged with the other PEs.
        let rails = self.connected()?.most_rails;
        let register = || {
            check_len(base, len)?;
            self.register_here(base, len, Access::LocalAndRemote)
        };
        let (memory, registered) = match memory {
            Ok(memory) => (memory, register()),
            Err(failed) => (None, Err(failed)),
        };
        let agreed = agree(bootstrap, rails, &registered, (base, len), free);
        let mut registered = Registered::new((base, len), true, registered?, memory);
        match agreed {
            Ok(Agreed { index, peers }) => {
                registered.index = index;
                Ok((registered, peers))
            }
            Err(failed) => {
                // All PEs see the same outcome, so none has registered.
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
        connected.regions.register(base, len, access).map_err(|error| {
            let why = error.to_string();
            ChannelError::Register { addr: base, len, why }
        })
    }

    /// Shows a region to the proxy thread, then to kernels.
    fn enter(
        &self,
        regions: &mut Regions,
        registered: Registered,
        peers: Box<[PeerRegion]>,
    ) -> Result<(), ChannelError> {
        let Registered { index, base, len, symmetric, .. } = registered;
        let region = Region { base, len: len as u64, peers };
        if let Err(failed) = self.set_in_proxy(index, Some(Box::new(region))) {
            self.give_up(registered);
            return Err(failed);
        }
        regions.all.push(registered);
        let shown = ShownRegion { base: base as u64, len: len as u64, symmetric };
        self.state.shared.set_region(usize::from(index), shown, regions.entries())
    }

    /// Ends a registration that was not published; frees the memory once no peer can write to it.
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
        self.on_proxy(move |view| view.consumer.regions.set(index, region))
    }
}
