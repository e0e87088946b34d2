//! The fast paths of a lane: what is most common, in few instructions.
//!
//! Each does what a general way does as well, for operations that meet no obstacle: no fence, no
//! lack of room, nothing wrong. At the first obstacle, before anything has happened, it gives up,
//! and the general way does the operation or says what is wrong with it. Nothing in here can panic,
//! so callers need no guard; errors own strings, so none are made before they are needed.

use crate::atomic::Atomic;
use crate::error::EngineError;
use crate::ids::{Pe, WrId};
use crate::lane::Lane;
use crate::port::{Local, Port};
use crate::posting::Core;
use crate::posting::peers::fast::Data;
pub use crate::request::FastTransfer;
use crate::state::batch::Batch;
use crate::wire::handle::{HandleBytes, HandleView};
use crate::wire::message::MAX_EAGER;

/// What [`Lane::try_start`] leaves.
#[derive(Debug)]
#[must_use]
pub enum NotStarted<'a> {
    /// Everything, for [`Lane::retry_start`] and then [`Lane::start`]: the operation is not of the
    /// common kind, or wrong. Nothing has happened.
    Untried(FastTransfer<'a>),
    /// To see why the fabric has not taken it, for [`Lane::start_declined`].
    Declined(Declined),
}

/// A segment that is in its place and that the fabric has not taken.
#[derive(Debug)]
#[must_use]
pub struct Declined(WrId);

/// A put of one fragment with its signal, of the common kind.
#[derive(Clone, Copy, Debug)]
pub struct FastPutSignal<'a> {
    /// The peer.
    pub pe: Pe,
    /// The peer's handle for the region that the bytes go to.
    pub data_handle: &'a HandleBytes,
    /// Where they go, in the peer's address space.
    pub data_addr: u64,
    /// Local address of the bytes.
    pub from: usize,
    /// How many.
    pub len: usize,
    /// The peer's handle for the region that holds the signal.
    pub handle: &'a HandleBytes,
    /// The signal, in the peer's address space.
    pub addr: u64,
    /// What is done to it; it fetches nothing.
    pub atomic: Atomic,
}

impl<P: Port> Lane<P> {
    /// As [`Lane::start`], in few instructions, for what is common: one segment, to a peer without
    /// a pending fence, over a rail with room, from or into memory that is registered and that the
    /// fabric reaches; where all memory is such and needs no descriptor, it need not be registered.
    /// Nothing in it can panic. It does not end a burst: the caller does, where there are bursts.
    ///
    /// # Errors
    /// What is left to do, with the batch entered.
    #[inline(always)]
    pub fn try_start<'a>(
        &mut self,
        common: FastTransfer<'a>,
        batch: Batch,
    ) -> Result<(), NotStarted<'a>> {
        let Core { transmit, peers, .. } = &mut self.core;
        let Some(connection) = peers.find_mut(common.pe) else {
            return Err(NotStarted::Untried(common));
        };
        match transmit.try_post(connection, &common, batch) {
            Ok(()) => Ok(()),
            Err(None) => Err(NotStarted::Untried(common)),
            Err(Some(wr_id)) => Err(NotStarted::Declined(Declined(wr_id))),
        }
    }

    /// Tries again what [`Lane::try_start`] has left untried, if that was because its local memory
    /// is not where memory was found last.
    ///
    /// # Errors
    /// As [`Lane::try_start`].
    #[cold]
    #[inline(never)]
    pub fn retry_start<'a>(
        &mut self,
        common: FastTransfer<'a>,
        batch: Batch,
    ) -> Result<(), NotStarted<'a>> {
        if let Local::Memory { addr, .. } = common.local {
            if self.core.transmit.finds_registered(addr, common.len) {
                return self.try_start(common, batch);
            }
        }
        Err(NotStarted::Untried(common))
    }

    /// Tries a segment again that [`Lane::try_start`] found declined, with reasons. It waits in its
    /// rail's queue if there is no room.
    ///
    /// # Errors
    /// As [`Lane::start`].
    pub fn start_declined(&mut self, declined: Declined) -> Result<(), EngineError> {
        let Declined(wr_id) = declined;
        self.core.dispatch_declined(wr_id)
    }

    /// As [`Lane::put_signal`] for a few bytes: data and signal in one message.
    ///
    /// # Errors
    /// It is not on its way, and nothing has happened: it is for [`Lane::retry_put_signal`], and
    /// then the general way.
    #[inline(always)]
    pub fn try_put_signal<'a>(
        &mut self,
        put: FastPutSignal<'a>,
        batch: Batch,
    ) -> Result<(), FastPutSignal<'a>> {
        let eager = self.signals.is_eager();
        if !eager || put.len.wrapping_sub(1) >= MAX_EAGER {
            return Err(put);
        }
        // Where they may be on a device, the general way looks.
        if !self.core.transmit.is_loadable(put.from, put.len) {
            return Err(put);
        }
        let Some(data) = HandleView::sound(put.pe, put.data_handle) else { return Err(put) };
        let Some(to) = data.spot(put.data_addr, put.len as u64) else { return Err(put) };
        let data = Some(Data { from: put.from, len: put.len, to });
        match self.core.try_send(put.pe, put.handle, put.addr, &put.atomic, data, batch) {
            true => Ok(()),
            false => Err(put),
        }
    }

    /// Tries again what [`Lane::try_put_signal`] has not sent, if that was because its bytes are
    /// not where memory was found last.
    ///
    /// # Errors
    /// As [`Lane::try_put_signal`].
    #[cold]
    #[inline(never)]
    pub fn retry_put_signal<'a>(
        &mut self,
        put: FastPutSignal<'a>,
        batch: Batch,
    ) -> Result<(), FastPutSignal<'a>> {
        if self.core.transmit.finds_loadable(put.from, put.len) {
            return self.try_put_signal(put, batch);
        }
        Err(put)
    }

    /// As [`Lane::atomic`] for an operation that fetches nothing. Says whether it is on its way; if
    /// not, nothing has happened.
    #[inline(always)]
    pub fn try_atomic(
        &mut self,
        pe: Pe,
        handle: &HandleBytes,
        addr: u64,
        atomic: &Atomic,
        batch: Batch,
    ) -> bool {
        // A PE's own atomics come after its writes to itself, which the general way sees to.
        if pe == self.core.peers.me() {
            return false;
        }
        self.core.try_send(pe, handle, addr, atomic, None, batch)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::atomic::AtomicOp;
    use crate::posting::tests::{Bed, PLAIN, Setup, atomic};

    /// A lane that has sent something to PE 1 before.
    fn bed() -> Bed {
        let mut bed = Bed::new(Setup { fast: true, depth: 64, ..PLAIN });
        bed.atomic(1, AtomicOp::Inc);
        bed
    }

    #[test]
    fn atomics_to_others_are_sent_at_once_but_for_signals_behind_puts() {
        let mut bed = bed();
        let heaps = Arc::clone(&bed.heaps);
        let mut is_sent = |pe, op| {
            let request = atomic(&heaps, pe, op);
            let (handle, addr) = (request.remote_handle, request.remote_addr);
            bed.lane.try_atomic(Pe(pe), handle, addr, &request.atomic, Batch::NONE)
        };
        assert!(is_sent(1, AtomicOp::Inc) && is_sent(1, AtomicOp::SignalSet));
        assert!(!is_sent(0, AtomicOp::Inc) && !is_sent(2, AtomicOp::Inc));
        bed.put(1);
        let mut is_sent = |op| {
            let request = atomic(&heaps, 1, op);
            let (handle, addr) = (request.remote_handle, request.remote_addr);
            bed.lane.try_atomic(Pe(1), handle, addr, &request.atomic, Batch::NONE)
        };
        assert!(is_sent(AtomicOp::Inc) && !is_sent(AtomicOp::SignalSet));
    }

    /// As much as a message takes, from memory that was found before.
    #[test]
    fn a_few_bytes_are_sent_with_their_signal() {
        for (len, fits) in [(0, false), (1, true), (MAX_EAGER, true), (MAX_EAGER + 1, false)] {
            let mut bed = bed();
            let heaps = Arc::clone(&bed.heaps);
            let signal = atomic(&heaps, 1, AtomicOp::SignalSet);
            let put = FastPutSignal {
                pe: Pe(1),
                data_handle: signal.remote_handle,
                data_addr: signal.remote_addr,
                from: heaps[0].0 as usize,
                len,
                handle: signal.remote_handle,
                addr: signal.remote_addr,
                atomic: signal.atomic,
            };
            assert!(bed.lane.try_put_signal(put, Batch::NONE).is_err(), "it is not found yet");
            if len != 0 {
                let retried = bed.lane.retry_put_signal(put, Batch::NONE);
                assert_eq!(retried.is_ok(), fits, "{len}");
            }
            assert_eq!(bed.lane.try_put_signal(put, Batch::NONE).is_ok(), fits, "{len}");
        }
    }
}
