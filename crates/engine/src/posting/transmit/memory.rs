//! The local side of transfers: which memory is registered, and what the fabric needs to know of
//! it.

use crate::atomic::Width;
use crate::error::EngineError;
use crate::ids::{Pe, RailId};
use crate::port::{Local, Port, Transfer};
use crate::posting::Core;
use crate::posting::transmit::Transmit;
use crate::rails::paths::Hop;
use crate::request::{LocalSide, Request, refused};
use crate::state::regions::{Place, RegionCache};
use crate::state::segment::Segment;
use crate::state::segment::work::Work;
use crate::wire::handle::{HandleError, HandleView};
use crate::wire::message::Spot;

impl<P: Port> Transmit<P> {
    #[inline(always)]
    pub(crate) fn regions(&self) -> &RegionCache {
        &self.regions
    }

    #[inline(always)]
    pub(crate) fn regions_mut(&mut self) -> &mut RegionCache {
        &mut self.regions
    }

    pub(crate) fn needs_desc(&self) -> bool {
        self.needs_desc
    }

    pub(crate) fn refuses_bare(&self) -> bool {
        self.refuses_bare
    }

    /// Whether local memory may be staged. It may be once some is registered, also in a process
    /// that has loaded CUDA only after the PEs were connected.
    #[inline]
    pub(crate) fn has_devices(&mut self) -> bool {
        self.regions.sync();
        self.devices |= self.regions.has_beyond();
        self.devices
    }

    /// Whether local memory has to go through a bounce buffer because it is in no region, on a
    /// fabric that takes none such. What begins in a region and ends beside it is a mistake.
    pub(crate) fn is_bare(&mut self, addr: usize, len: usize) -> bool {
        if len == 0 || !self.refuses_bare {
            return false;
        }
        self.regions.sync();
        matches!(self.regions.registered(addr, len), Ok(None))
    }

    /// The local side of a request from byte `sent` on, as a rail is to know it. A value is the
    /// caller's to cut.
    pub(crate) fn local_side(
        &mut self,
        request: &Request<'_>,
        sent: usize,
        rail: RailId,
    ) -> Result<Local, EngineError> {
        Ok(match request.local {
            LocalSide::Value(value) => Local::Value(value),
            LocalSide::Memory(addr) => {
                let desc = match self.needs_desc {
                    true => self.regions.desc_for(request, addr, rail)?,
                    false => None,
                };
                if desc.is_none() && self.refuses_bare {
                    return Err(refused(request, "local", HandleError::Unregistered));
                }
                Local::Memory { addr: addr + sent, desc: desc.unwrap_or_default() }
            }
        })
    }

    pub(crate) fn transfer(
        &mut self,
        request: &Request<'_>,
        sent: usize,
        len: usize,
        hop: &Hop,
    ) -> Result<Transfer, EngineError> {
        let refuse = |fault| refused(request, "remote", fault);
        let remote = HandleView::check_of(request.pe, request.remote_handle).map_err(refuse)?;
        let offset = remote.locate(request.remote_addr, request.len as u64).map_err(refuse)?;
        let key = remote.key(hop.remote_key.rail()).map_err(refuse)?;
        Ok(Transfer {
            direction: request.direction,
            local: self.local_side(request, sent, hop.rail)?,
            len,
            remote: remote.remote_address(offset) + sent as u64,
            key,
        })
    }
}

impl<P: Port> Core<P> {
    /// A handle with keys is used: see [`Connection::learn`].
    ///
    /// [`Connection::learn`]: crate::state::connection::Connection::learn
    #[inline]
    pub(crate) fn learn(&mut self, pe: Pe, handle: &HandleView<'_>) {
        let Self { transmit, peers, .. } = self;
        if let Some(connection) = peers.find_mut(pe) {
            connection.learn(handle, &transmit.paths);
        }
    }

    pub(crate) fn locate_word(&mut self, at: Spot, width: Width) -> Result<Place, String> {
        let width = width.bytes();
        let place = self.transmit.regions_mut().locate(at, width).map_err(|e| e.to_string())?;
        if place.addr % width != 0 {
            return Err(format!("a word of {width} bytes at {:#x} is not aligned", place.addr));
        }
        Ok(place)
    }

    pub(crate) fn memory_of(&self, segment: &Segment) -> Option<(usize, usize)> {
        match segment.work() {
            Work::Message { slot, .. } => slot.get().and_then(|slot| self.peers.memory_of(slot)),
            _ => segment.memory(),
        }
    }
}
