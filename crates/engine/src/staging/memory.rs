//! Memory of this process that messages read and change, however it is reached.

use crate::atomic::Atomic;
use crate::error::EngineError;
use crate::ids::Pe;
use crate::port::copies::{CopyPort, Reach, SoonOrder};
use crate::port::{Port, PortError};
use crate::posting::Core;
use crate::posting::failures::local_fault;
use crate::request::ResultPlace;
use crate::staging::Staging;
use crate::staging::state::{Bouncing, State};
use crate::state::regions::Place;
use crate::wire::window::Seq;

impl State {
    #[cold]
    pub(super) fn settle<P: Port>(&mut self, core: &mut Core<P>) -> Result<(), PortError> {
        let settled = self.copies().map_or(Ok(()), CopyPort::settle);
        for (pe, seq) in self.unsettled.drain(..) {
            // Which of them is missing is not known.
            match (&settled, seq) {
                (Ok(()), _) => {}
                (Err(error), Some(seq)) => core.cannot_execute(pe, seq, error.to_string()),
                (Err(error), None) => core.fail_connection(pe, local_fault(pe, error)),
            }
        }
        settled
    }
}

impl Staging {
    pub(crate) fn apply_at<P: Port>(
        &mut self,
        core: &mut Core<P>,
        at: Place,
        atomic: &Atomic,
    ) -> Result<u64, PortError> {
        match at.reach {
            Reach::Direct => core.transmit.port_mut().apply(at.addr, atomic),
            Reach::Fabric | Reach::Staged => self.copies(core)?.apply(at.addr, atomic),
        }
    }

    /// Copies bytes out, at most [`MAX_MESSAGE`](crate::wire::message::MAX_MESSAGE).
    pub(crate) fn load_at<P: Port>(
        &mut self,
        core: &mut Core<P>,
        from: Place,
        into: &mut [u8],
    ) -> Result<(), PortError> {
        match from.reach {
            Reach::Direct => core.transmit.port_mut().load(from.addr, into),
            Reach::Fabric | Reach::Staged => self.copies(core)?.load(from.addr, into),
        }
    }

    /// Copies bytes in, at most [`MAX_MESSAGE`](crate::wire::message::MAX_MESSAGE).
    pub(crate) fn store_at<P: Port>(
        &mut self,
        core: &mut Core<P>,
        to: Place,
        bytes: &[u8],
    ) -> Result<(), PortError> {
        match to.reach {
            Reach::Direct => core.transmit.port_mut().store(to.addr, bytes),
            Reach::Fabric | Reach::Staged => self.copies(core)?.store(to.addr, bytes),
        }
    }

    pub(crate) fn apply_soon<P: Port>(
        &mut self,
        core: &mut Core<P>,
        at: Place,
        atomic: &Atomic,
        order: SoonOrder,
    ) -> Result<(), PortError> {
        match at.reach {
            Reach::Direct => core.transmit.port_mut().apply(at.addr, atomic).map(drop),
            Reach::Fabric | Reach::Staged => self.copies(core)?.apply_soon(at.addr, atomic, order),
        }
    }

    pub(crate) fn apply_own<P: Port>(
        &mut self,
        core: &mut Core<P>,
        at: Place,
        atomic: &Atomic,
        order: SoonOrder,
    ) -> Result<(), PortError> {
        self.apply_soon(core, at, atomic, order)?;
        let me = (core.peers.me(), None);
        if let Some(state) = self.state.as_deref_mut().filter(|_| at.reach != Reach::Direct) {
            if state.unsettled.last() != Some(&me) {
                state.unsettled.push(me);
            }
            // There is no way at once but the next iteration.
            state.influx.takes();
        }
        Ok(())
    }

    pub(crate) fn store_soon<P: Port>(
        &mut self,
        core: &mut Core<P>,
        to: Place,
        bytes: &[u8],
        ordered: bool,
    ) -> Result<(), PortError> {
        let order = if ordered { SoonOrder::Behind } else { SoonOrder::Any };
        match to.reach {
            Reach::Direct => core.transmit.port_mut().store(to.addr, bytes),
            Reach::Fabric | Reach::Staged => self.copies(core)?.store_soon(to.addr, bytes, order),
        }
    }

    #[inline]
    pub(crate) fn executed(&mut self, pe: Pe, seq: Seq) {
        if let Some(state) = self.state.as_deref_mut().filter(|state| state.bouncing.is_some()) {
            state.unsettled.push((pe, Some(seq)));
        }
    }

    /// What requests of peers have stored and applied is there. To be called before anything is
    /// sent: what was executed is acknowledged with whatever goes to the peer next.
    #[inline]
    pub(crate) fn settle<P: Port>(&mut self, core: &mut Core<P>) {
        if let Some(state) = self.state.as_deref_mut().filter(|state| !state.unsettled.is_empty()) {
            // Who is to be told is.
            let _ = state.settle(core);
        }
    }

    #[inline]
    pub(crate) fn settle_own<P: Port>(&mut self, core: &mut Core<P>) {
        let waits = |bouncing: &mut Bouncing| bouncing.copies.has_words_on_their_way();
        if !self.bouncing().is_some_and(waits) {
            self.settle(core);
        }
    }

    /// Stores a fetched word of `width` bytes, then its flag.
    pub(crate) fn store_result<P: Port>(
        &mut self,
        core: &mut Core<P>,
        pe: Pe,
        place: ResultPlace,
        value: u64,
        width: usize,
    ) {
        let ResultPlace { addr, flag } = place;
        let bytes = value.to_le_bytes();
        let bytes = if flag.is_some() { &bytes[..] } else { &bytes[..width.min(8)] };
        let (_, len) = place.memory(width);
        let reach = match core.transmit.has_devices() {
            true => self.local_reach(core, ("fetching atomic", pe), addr, len),
            false => Ok(Reach::Direct),
        };
        let reach = match reach {
            Ok(reach) => reach,
            Err(failed) => return core.fail_connection(pe, failed),
        };
        let at = Place { addr, reach };
        let stored = self.store_at(core, at, bytes).and_then(|()| match (flag, reach) {
            (None, _) => Ok(()),
            (Some(flag), Reach::Direct) => core.transmit.port_mut().store_flag(addr + 8, flag),
            (Some(flag), _) => self.copies(core)?.store_flag(addr + 8, flag),
        });
        if let Err(error) = stored {
            // Nobody who waits for the word is told that it is there.
            core.fail_connection(pe, EngineError::Fetched { pe, addr, error });
        }
    }

    pub(crate) fn copies<P: Port>(
        &mut self,
        core: &mut Core<P>,
    ) -> Result<&mut dyn CopyPort, PortError> {
        self.sync_regions(core);
        match self.state.as_deref_mut().and_then(State::copies) {
            Some(copies) => Ok(copies),
            None => Err(PortError {
                call: "reaching staged memory",
                code: 0,
                text: String::from("this lane has nothing that copies"),
            }),
        }
    }
}
