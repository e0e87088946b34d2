//! The fast paths of a lane: what is most common, in few instructions.
//!
//! Each does what a general way does as well, for operations that meet no obstacle: no fence, no
//! lack of room, nothing wrong. At the first obstacle, before anything has happened, it gives up,
//! and the general way does the operation or says what is wrong with it. Nothing in the fast paths
//! can panic, so callers need no guard; errors own strings, so none are made before they are
//! needed.

use crate::error::EngineError;
use crate::lane::Lane;
use crate::port::Port;
use crate::posting::Core;
pub use crate::request::Rest;
use crate::request::{AtomicRequest, LocalSide, PutSignalRequest, Request};
use crate::state::batch::Batch;
use crate::wire::message::MAX_EAGER;

impl<P: Port> Lane<P> {
    /// As [`Lane::start`], in few instructions, for what is common: one segment, to a peer without
    /// a pending fence, over a rail with room, from or into memory that is registered and that the
    /// fabric reaches; where all memory is such and needs no descriptor, it need not be registered.
    /// Nothing in it can panic. It does not end a burst: the caller does, where there are bursts.
    ///
    /// # Errors
    /// What is left to do, with the batch entered.
    #[inline(always)]
    pub fn start_fast<'a>(&mut self, request: Request<'a>, batch: Batch) -> Result<(), Rest<'a>> {
        debug_assert!(!self.marks(request.direction), "the next signal has to count it");
        let Core { transmit, peers, .. } = &mut self.core;
        let Some(connection) = peers.find_mut(request.pe) else {
            return Err(Rest::Untried(request));
        };
        transmit.try_post(connection, request, batch)
    }

    /// As [`Lane::start_fast`], on a lane that orders signals, where a put may be counted for the
    /// next signal: [`Lane::start_fast`] is not for those.
    ///
    /// # Errors
    /// As [`Lane::start_fast`].
    #[inline(never)]
    pub fn start_in_order_fast<'a>(
        &mut self,
        request: Request<'a>,
        batch: Batch,
    ) -> Result<(), Rest<'a>> {
        if !self.marks(request.direction) {
            return self.start_fast(request, batch);
        }
        self.core.try_post_counted(request, batch)
    }

    /// Starts what [`Lane::start_fast`] has left, which belongs to the same batch, entered. If
    /// `more` operations follow, it may share a doorbell with them.
    ///
    /// # Errors
    /// As [`Lane::start`].
    #[cold]
    #[inline(never)]
    pub fn start_rest(&mut self, rest: Rest<'_>, more: bool) -> Result<(), EngineError> {
        let mut rest = rest;
        // Its local memory may just not be where memory was found last.
        if let Rest::Untried(request) = rest {
            if self.finds_local(&request) {
                match self.start_in_order_fast(request, self.core.transmit.batches().current()) {
                    Ok(()) => return self.end_burst_unless(more),
                    Err(left) => rest = left,
                }
            }
        }
        match rest {
            Rest::Untried(request) if more => self.start_in_burst(&request),
            Rest::Untried(request) => self.start_general(&request),
            Rest::NotTaken => {
                self.core.dispatch_not_taken()?;
                self.end_burst_unless(more)
            }
        }
    }

    fn end_burst_unless(&mut self, more: bool) -> Result<(), EngineError> {
        if !more {
            self.end_burst();
        }
        Ok(())
    }

    /// Whether the fast path knows from here on where the local memory of a request is, which it
    /// did not.
    pub fn finds_local(&mut self, request: &Request<'_>) -> bool {
        let LocalSide::Memory(addr) = request.local else { return false };
        self.core.transmit.finds_registered(addr, request.len)
    }

    /// As [`Lane::put_signal`] of one part with few bytes, in few instructions: data and signal in
    /// one message. Whether it is on its way; if not, nothing has happened. Nothing in it can
    /// panic.
    #[inline(always)]
    pub fn put_signal_fast(
        &mut self,
        part: &Request<'_>,
        signal: &AtomicRequest<'_>,
        batch: Batch,
    ) -> bool {
        self.put_signal_as::<false>(part, signal, batch)
    }

    /// The same of a lane that orders signals: code of its own, so that neither has the other's
    /// questions.
    #[inline(never)]
    pub fn put_signal_in_order_fast(
        &mut self,
        part: &Request<'_>,
        signal: &AtomicRequest<'_>,
        batch: Batch,
    ) -> bool {
        self.put_signal_as::<true>(part, signal, batch)
    }

    #[inline(always)]
    fn put_signal_as<const ORDERED: bool>(
        &mut self,
        part: &Request<'_>,
        signal: &AtomicRequest<'_>,
        batch: Batch,
    ) -> bool {
        let LocalSide::Memory(from) = part.local else { return false };
        if !self.signals.is_fast::<ORDERED>() || part.len.wrapping_sub(1) >= MAX_EAGER {
            return false;
        }
        // Where they may be on a device, the general way looks.
        if !self.core.transmit.is_loadable(from, part.len) {
            return false;
        }
        self.core.try_send::<ORDERED>(signal, Some(part), batch)
    }

    /// As [`Lane::put_signal_fast`], once its local memory was looked for.
    #[cold]
    pub fn put_signal_found(&mut self, put: &PutSignalRequest<'_>) -> bool {
        let [part] = put.parts else { return false };
        let LocalSide::Memory(from) = part.local else { return false };
        let batch = self.core.transmit.batches().current();
        let is_plain = !put.signal.atomic.op.fetches();
        is_plain
            && (1..=MAX_EAGER).contains(&part.len)
            && self.core.transmit.finds_loadable(from, part.len)
            && (self.put_signal_fast(part, &put.signal, batch)
                || self.put_signal_in_order_fast(part, &put.signal, batch))
    }

    /// As [`Lane::atomic`] for an operation that fetches nothing, in few instructions. Whether it
    /// is on its way; if not, nothing has happened. Nothing in it can panic.
    #[inline(always)]
    pub fn atomic_fast(&mut self, request: &AtomicRequest<'_>, batch: Batch) -> bool {
        // A PE's own atomics come after its writes to itself, which the general way sees to.
        if request.pe == self.core.peers.me() || self.core.peers.orders_signals() {
            return false;
        }
        self.core.try_send::<false>(request, None, batch)
    }

    /// The same of a lane that orders signals.
    #[inline(never)]
    pub fn atomic_in_order_fast(&mut self, request: &AtomicRequest<'_>, batch: Batch) -> bool {
        if request.pe == self.core.peers.me() || !self.core.peers.orders_signals() {
            return false;
        }
        self.core.try_send::<true>(request, None, batch)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::atomic::AtomicOp;
    use crate::port::Direction;
    use crate::posting::tests::{Bed, PLAIN, Setup, atomic, request};

    fn bed() -> Bed {
        let mut bed = Bed::new(Setup { fast: true, depth: 64, ..PLAIN });
        bed.atomic(1, AtomicOp::Inc);
        bed
    }

    #[test]
    fn atomics_to_others_are_sent_at_once_but_for_signals_behind_puts() {
        let mut bed = bed();
        let heaps = Arc::clone(&bed.heaps);
        let mut is_sent = |pe, op| bed.lane.atomic_fast(&atomic(&heaps, pe, op), Batch::NONE);
        assert!(is_sent(1, AtomicOp::Inc) && is_sent(1, AtomicOp::SignalSet));
        assert!(!is_sent(0, AtomicOp::Inc) && !is_sent(2, AtomicOp::Inc));
        bed.put(1);
        let mut is_sent = |op| bed.lane.atomic_fast(&atomic(&heaps, 1, op), Batch::NONE);
        assert!(is_sent(AtomicOp::Inc) && !is_sent(AtomicOp::SignalSet));
    }

    #[test]
    fn a_few_bytes_are_sent_with_their_signal() {
        for (len, fits) in [(0, false), (1, true), (MAX_EAGER, true), (MAX_EAGER + 1, false)] {
            let mut bed = bed();
            let heaps = Arc::clone(&bed.heaps);
            let signal = atomic(&heaps, 1, AtomicOp::SignalSet);
            let part = Request { len, ..request(&heaps, Direction::Write, 1) };
            let sent = |bed: &mut Bed| bed.lane.put_signal_fast(&part, &signal, Batch::NONE);
            assert!(!sent(&mut bed), "it is not found yet");
            let put = PutSignalRequest { parts: &[part], signal };
            assert_eq!(bed.lane.put_signal_found(&put), fits, "{len}");
            assert_eq!(sent(&mut bed), fits, "{len}");
        }
    }
}
