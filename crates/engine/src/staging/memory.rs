//! Access to local memory on behalf of messages, by the CPU or the copy port.

use crate::atomic::Atomic;
use crate::core::Core;
use crate::error::EngineError;
use crate::ids::Pe;
use crate::port::copies::{CopyPort, DeferredOrder, Reach};
use crate::port::{Port, PortError};
use crate::regions::Location;
use crate::staging::{Staging, failed, missing};
use crate::wire::message::Seq;

impl Staging {
    /// Returns how unregistered local memory is reached.
    pub(crate) fn reach<P: Port>(
        &mut self,
        core: &mut Core<P>,
        what: (&'static str, Pe),
        addr: usize,
        len: usize,
    ) -> Result<Reach, EngineError> {
        self.sync(core);
        let Some(stager) = &mut self.stager else { return Ok(Reach::Direct) };
        stager.copies.reach(addr, len).map_err(|error| failed(what, len, error))
    }

    /// Returns how local memory is reached, registered or not.
    pub(crate) fn local_reach<P: Port>(
        &mut self,
        core: &mut Core<P>,
        what: (&'static str, Pe),
        addr: usize,
        len: usize,
    ) -> Result<Reach, EngineError> {
        self.sync(core);
        // The common case, in which nothing has to be looked up.
        if !core.regions.has_devices() {
            return Ok(Reach::Direct);
        }
        let found = core.regions.lookup(addr, len);
        match (found.device, found.whole) {
            (true, _) if found.fabric.is_some() => Ok(Reach::Fabric),
            (true, _) => Ok(Reach::Staged),
            (false, true) => Ok(Reach::Direct),
            (false, false) => self.reach(core, what, addr, len),
        }
    }

    pub(super) fn copies<P: Port>(
        &mut self,
        core: &mut Core<P>,
    ) -> Result<&mut dyn CopyPort, PortError> {
        self.sync(core);
        match &mut self.stager {
            Some(stager) => Ok(&mut *stager.copies),
            None => Err(missing()),
        }
    }

    pub(crate) fn load<P: Port>(
        &mut self,
        core: &mut Core<P>,
        addr: usize,
        reach: Reach,
        into: &mut [u8],
    ) -> Result<(), PortError> {
        match reach {
            Reach::Direct => core.port.load(addr, into),
            Reach::Fabric | Reach::Staged => self.copies(core)?.load(addr, into),
        }
    }

    pub(crate) fn store<P: Port>(
        &mut self,
        core: &mut Core<P>,
        location: Location,
        bytes: &[u8],
        order: DeferredOrder,
    ) -> Result<(), PortError> {
        if location.reach == Reach::Direct {
            self.flush_before(order)?;
            return core.port.store(location.addr, bytes);
        }
        self.has_deferred = true;
        self.copies(core)?.queue_write(location.addr, bytes, order)
    }

    pub(crate) fn apply<P: Port>(
        &mut self,
        core: &mut Core<P>,
        location: Location,
        atomic: &Atomic,
        order: DeferredOrder,
    ) -> Result<(), PortError> {
        if location.reach == Reach::Direct {
            self.flush_before(order)?;
            return core.port.apply(location.addr, atomic).map(drop);
        }
        self.has_deferred = true;
        self.copies(core)?.queue_atomic(location.addr, atomic, order)
    }

    pub(crate) fn fetch<P: Port>(
        &mut self,
        core: &mut Core<P>,
        location: Location,
        atomic: &Atomic,
        order: DeferredOrder,
    ) -> Result<u64, PortError> {
        match location.reach {
            Reach::Direct => {
                self.flush_before(order)?;
                core.port.apply(location.addr, atomic)
            }
            Reach::Fabric | Reach::Staged => self.copies(core)?.apply(location.addr, atomic),
            // The copy port completes deferred writes before it reads the word.
        }
    }

    #[inline]
    pub(crate) fn has_unflushed(&self) -> bool {
        self.has_deferred || self.has_own || !self.unflushed.is_empty()
    }

    /// Completes deferred writes before a change by the CPU that has to follow them.
    fn flush_before(&mut self, order: DeferredOrder) -> Result<(), PortError> {
        let has_unflushed = self.has_unflushed();
        match &mut self.stager {
            Some(stager) if has_unflushed && order == DeferredOrder::After => {
                let settled = self.flush_error.clone().map_or_else(|| stager.copies.flush(), Err);
                // The next `flush_writes` reports it to the messages whose writes are missing.
                settled.inspect_err(|error| self.flush_error = Some(error.clone()))
            }
            _ => Ok(()),
        }
    }

    /// Stores the result of a fetch, then its flag.
    pub(crate) fn store_result<P: Port>(
        &mut self,
        core: &mut Core<P>,
        pe: Pe,
        addr: usize,
        word: &[u8],
        flag: Option<u64>,
    ) -> Result<(), EngineError> {
        let len = if flag.is_some() { 16 } else { word.len() };
        let reach = self.local_reach(core, ("fetching atomic", pe), addr, len)?;
        let stored = if reach == Reach::Direct {
            let stored = core.port.store(addr, word);
            stored.and_then(|()| flag.map_or(Ok(()), |flag| core.port.store_flag(addr + 8, flag)))
        } else {
            self.copies(core).and_then(|copies| {
                copies.store(addr, word)?;
                flag.map_or(Ok(()), |flag| copies.store_flag(addr + 8, flag))
            })
        };
        stored.map_err(|error| EngineError::Fetched { pe, addr, error })
    }

    #[inline]
    pub(crate) fn track_unflushed(&mut self, pe: Pe, seq: Seq) {
        // Its deferred writes have to be completed before it is acknowledged.
        if std::mem::take(&mut self.has_deferred) {
            self.unflushed.push((pe, seq));
        }
    }

    /// As [`Self::track_unflushed`], after a change of an own word. Returns whether it is deferred.
    pub(crate) fn track_own(&mut self) -> bool {
        let is_deferred = std::mem::take(&mut self.has_deferred);
        self.has_own |= is_deferred;
        is_deferred
    }

    /// Completes the deferred writes of executed messages. To be called before anything is sent,
    /// since every message to a peer acknowledges what was executed.
    #[inline]
    pub(crate) fn flush_executed<P: Port>(&mut self, core: &mut Core<P>) {
        if !self.unflushed.is_empty() {
            // `flush_writes` itself refuses the messages whose writes are missing.
            let _ = self.flush_writes(core);
        }
    }

    /// Completes deferred writes to words of this PE.
    pub(crate) fn flush_own<P: Port>(&mut self, core: &mut Core<P>) {
        if self.has_own {
            // `flush_writes` itself fails this PE.
            let _ = self.flush_writes(core);
        }
    }

    #[cold]
    pub(super) fn flush_writes<P: Port>(&mut self, core: &mut Core<P>) -> Result<(), PortError> {
        let settled = match (self.flush_error.take(), &mut self.stager) {
            (Some(error), _) => Err(error),
            (None, Some(stager)) => stager.copies.flush(),
            (None, None) => Ok(()),
        };
        self.has_deferred = false;
        let has_own = std::mem::take(&mut self.has_own);
        let Err(error) = &settled else {
            self.unflushed.clear();
            return settled;
        };
        if has_own {
            let (me, error) = (core.me, error.clone());
            core.fail_peer(me, failed(("atomic", me), 0, error));
        }
        // Any of these writes may be missing, so none of the messages is acknowledged.
        for (pe, seq) in self.unflushed.drain(..) {
            core.channel(pe).executed.roll_back(seq);
            core.refuse(pe, seq, error.to_string());
        }
        for index in std::mem::take(&mut self.signalled) {
            self.finish(core, index, settled.clone());
        }
        settled
    }
}
