//! Atomics, and puts with signal: submitted in a way that keeps signal behind data, step by step as
//! there is room.

use crate::error::EngineError;
use crate::ids::{LaneKind, Pe};
use crate::lane::Lane;
use crate::lane::pending_queue::Submission;
use crate::port::copies::{Reach, SoonOrder};
use crate::port::{Port, Tail};
use crate::posting::Tried;
use crate::posting::failures::local_fault;
use crate::posting::transmit::dispatch::Behind;
use crate::request::{AtomicRequest, LocalSide, Parts, PutSignalRequest, Request, refused};
use crate::signal::Way;
use crate::signal::counted::{Counting, Tagged};
use crate::signal::progress::{Progress, PutState};
use crate::state::batch::Batch;
use crate::state::connection::Connection;
use crate::state::operation::OpId;
use crate::state::regions::Place;
use crate::wire::handle::HandleView;
use crate::wire::message::{Body, MAX_EAGER, Spot};
use crate::wire::staged::{ListedSignal, MAX_PAYLOAD, Staged};

/// Most messages to a peer that are not acknowledged, with which a long one that comes behind
/// others still leaves: the peer keeps what waits for others, and so few long ones of each PE.
const MOST_KEPT: u32 = 32;

impl<P: Port> Lane<P> {
    /// Starts an atomic operation. [`Lane::quiet`] waits for its end; a fetched word, and its flag
    /// after it, are stored as soon as they arrive.
    ///
    /// It is executed by the peer's proxy thread, exactly once, in order behind a fence. A signal's
    /// own operations ([`AtomicOp::is_signal`](crate::atomic::AtomicOp::is_signal)) take effect
    /// behind the puts that this lane has started to the same PE before: NVSHMEM's host interface
    /// sends a put and its signal as two calls with no fence in between.
    ///
    /// # Errors
    /// Bad arguments, a peer that has failed before, or a fabric that takes nothing more.
    #[inline]
    pub fn atomic(&mut self, request: &AtomicRequest<'_>) -> Result<(), EngineError> {
        let is_plain = !request.atomic.op.fetches();
        let batch = self.core.transmit.batches().current();
        if is_plain
            && (self.atomic_fast(request, batch) || self.atomic_in_order_fast(request, batch))
        {
            return Ok(());
        }
        if request.pe == self.core.peers.me() {
            if is_plain && self.apply_own(request, batch) {
                return Ok(());
            }
            // Before layout 4 a put with signal comes as put, fence and atomic, and NVSHMEM leaves
            // out the fence for the PE itself.
            self.fence(request.pe)?;
        }
        if is_plain && self.joins_put(request) {
            return Ok(());
        }
        self.end_burst();
        if !self.has_pending(request.pe) && self.submit_amo(request)? == Tried::Submitted {
            return Ok(());
        }
        self.finish(Submission::Atomic(*request))
    }

    #[inline]
    pub(crate) fn submit_amo(&mut self, request: &AtomicRequest<'_>) -> Result<Tried, EngineError> {
        if request.atomic.op.is_signal() && self.core.peers.counts_for_next(request.pe) {
            return self.announce(request);
        }
        let what = match (request.atomic.op.is_signal(), self.core.peers.orders_signals()) {
            (false, _) => Behind::Nothing,
            (true, false) => Behind::Puts,
            (true, true) => Behind::All,
        };
        self.submit_atomic(request, what)
    }

    #[cold]
    fn announce(&mut self, signal: &AtomicRequest<'_>) -> Result<Tried, EngineError> {
        let Some(counting) = self.core.peers.counted_for_next(signal.pe) else {
            return Ok(Tried::NoRoom);
        };
        let Counting { tag, segments } = counting;
        let body = |at, atomic| Body::CountedSignal { at, atomic, tag, segments };
        let tried = self.core.try_message(signal, Behind::All, body);
        if matches!(tried, Ok(Tried::Submitted)) {
            self.core.peers.end_count(signal.pe);
        }
        tried
    }

    /// Starts a put whose signal becomes visible after its data. No other operation is waited for,
    /// and none waits for this one.
    ///
    /// # Errors
    /// As [`Lane::atomic`].
    pub fn put_signal(&mut self, request: &PutSignalRequest<'_>) -> Result<(), EngineError> {
        self.end_burst();
        if self.put_signal_found(request) {
            return Ok(());
        }
        let PutSignalRequest { parts, signal } = request;
        if parts.bytes() == 0 {
            return self.atomic(signal);
        }
        let mut state = PutState::New;
        if !self.has_pending(signal.pe)
            && self.submit_put_signal(*parts, signal, &mut state)? == Tried::Submitted
        {
            return Ok(());
        }
        self.finish(Submission::PutSignal(*request, state))
    }

    pub(crate) fn submit_put_signal<T: Parts + ?Sized>(
        &mut self,
        parts: &T,
        signal: &AtomicRequest<'_>,
        state: &mut PutState,
    ) -> Result<Tried, EngineError> {
        let tried = self.advance_put_signal(parts, signal, state);
        if !matches!(tried, Ok(Tried::NoRoom)) {
            self.end_put_signal(signal.pe, state, tried.is_err());
        }
        tried
    }

    fn end_put_signal(&mut self, pe: Pe, state: &PutState, failed: bool) {
        let PutState::Counted { counting, .. } = state else { return };
        match failed {
            false => {}
            // What has left of it is counted for the signal after it.
            true if self.core.peers.orders_signals() => {
                self.signals.keep_open(&mut self.core, pe, *counting);
            }
            true => self.signals.retire(&mut self.core, pe),
        }
    }

    fn advance_put_signal<T: Parts + ?Sized>(
        &mut self,
        parts: &T,
        signal: &AtomicRequest<'_>,
        state: &mut PutState,
    ) -> Result<Tried, EngineError> {
        if let PutState::New = state {
            *state = self.begin_put_signal(parts, signal)?;
        }
        if let PutState::Listed = state {
            if let Some(tried) = self.try_listed(&parts.part(0), signal)? {
                return Ok(tried);
            }
            *state = self.begin_chained(true);
        }
        match state {
            PutState::New | PutState::Listed => Ok(Tried::NoRoom),
            PutState::Eager => self.try_eager(&parts.part(0), signal),
            PutState::LongEager => {
                self.try_long_eager(&parts.part(0), signal, self.behind_of_puts())
            }
            PutState::Split { op, ahead } => self.try_split(&parts.part(0), signal, *op, ahead),
            PutState::Counted { counting, at } => self.try_counted(parts, signal, counting, at),
            PutState::Chained { op, at } => self.try_chained(parts, signal, *op, at),
            PutState::Ordered { at } => self.try_ordered(parts, signal, at),
        }
    }

    fn begin_put_signal<T: Parts + ?Sized>(
        &mut self,
        parts: &T,
        signal: &AtomicRequest<'_>,
    ) -> Result<PutState, EngineError> {
        let staged = self.has_staged_part(parts, signal)?;
        let mut way = self.signals.way(parts, staged);
        if self.core.peers.counts_for_next(signal.pe) {
            // A message with data has no place for a count.
            way = if staged { Way::Chained } else { Way::Counted };
        }
        if way == Way::Split && self.core.peers.orders_signals() {
            way = self.signals.way_of_writes();
        }
        let is_long = matches!(way, Way::LongEager | Way::Split);
        if is_long
            && (self.may_be_kept(signal.pe) || !self.is_loadable(&parts.part(0), signal.pe)?)
        {
            way = self.signals.way_of_writes();
        }
        let in_memory = || matches!(parts.part(0).local, LocalSide::Memory(_));
        Ok(match way {
            Way::Eager if in_memory() => PutState::Eager,
            Way::LongEager => PutState::LongEager,
            Way::Split => {
                let op = self.core.transmit.ops_mut().start_departing();
                PutState::Split { op, ahead: false }
            }
            Way::Counted => match self.signals.take_tag(&mut self.core, signal.pe)? {
                Tagged::With(counting) => PutState::Counted { counting, at: Progress::default() },
                Tagged::Later => PutState::New,
                Tagged::Never if self.core.peers.orders_signals() => {
                    PutState::Ordered { at: Progress::default() }
                }
                Tagged::Never => self.begin_chained(false),
            },
            _ if self.core.peers.orders_signals() => PutState::Ordered { at: Progress::default() },
            _ if staged && parts.count() == 1 && self.signals.is_eager() => PutState::Listed,
            // A request's target orders the signal behind it.
            Way::Eager | Way::Chained => self.begin_chained(staged),
        })
    }

    fn begin_chained(&mut self, departs: bool) -> PutState {
        let ops = self.core.transmit.ops_mut();
        let op = if departs { ops.start_departing() } else { ops.start() };
        PutState::Chained { op, at: Progress::default() }
    }

    fn has_staged_part<T: Parts + ?Sized>(
        &mut self,
        parts: &T,
        signal: &AtomicRequest<'_>,
    ) -> Result<bool, EngineError> {
        if is_staged_word(signal) {
            return Ok(true);
        }
        for part in parts.parts() {
            let remote = HandleView::check_of(part.pe, part.remote_handle)
                .map_err(|fault| refused(&part, "remote", fault))?;
            if self.staging.is_staged(&mut self.core, &part, &remote)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn try_eager(
        &mut self,
        part: &Request<'_>,
        signal: &AtomicRequest<'_>,
    ) -> Result<Tried, EngineError> {
        let LocalSide::Memory(addr) = part.local else { return Ok(Tried::NoRoom) };
        let mut payload = [0; MAX_EAGER];
        let payload = &mut payload[..part.len];
        let mut reach = Reach::Direct;
        if self.core.transmit.has_devices() {
            let Self { core, staging, .. } = self;
            reach = staging.local_reach(core, ("put", signal.pe), addr, part.len)?;
        }
        self.staging
            .load_at(&mut self.core, Place { addr, reach }, payload)
            .map_err(|error| local_fault(signal.pe, &error))?;
        let remote = HandleView::check_of(part.pe, part.remote_handle)?;
        let offset = remote.locate(part.remote_addr, part.len as u64)?;
        let to = Spot { slot: remote.slot(), offset };
        let body = |at, atomic| Body::PutSignal { at, atomic, to, payload };
        self.core.try_message(signal, self.behind_of_puts(), body)
    }

    fn try_listed(
        &mut self,
        part: &Request<'_>,
        signal: &AtomicRequest<'_>,
    ) -> Result<Option<Tried>, EngineError> {
        self.core.connection_to(part.pe)?;
        let refuse = |fault| refused(part, "remote", fault);
        let remote = HandleView::check_of(part.pe, part.remote_handle).map_err(refuse)?;
        let offset = remote.locate(part.remote_addr, part.len as u64).map_err(refuse)?;
        let (word, at) = signal.word()?;
        if signal.pe != part.pe || signal.atomic.op.fetches() {
            return Ok(None);
        }
        let at = Spot { slot: word.slot(), offset: at };
        let signal = ListedSignal { at, atomic: signal.atomic };
        let Self { core, staging, .. } = self;
        let submitted = staging.submit_listed(core, part, &remote, offset, signal)?;
        Ok(submitted.map(|done| if done { Tried::Submitted } else { Tried::NoRoom }))
    }

    fn joins_put(&mut self, request: &AtomicRequest<'_>) -> bool {
        if self.core.peers.orders_signals() || !self.signals.is_eager() {
            return false;
        }
        let Ok((word, offset)) = request.word() else { return false };
        let at = Spot { slot: word.slot(), offset };
        let signal = ListedSignal { at, atomic: request.atomic };
        let bounce_len = word.bounce_len();
        self.staging.joins_signal(&mut self.core, request.pe, signal, bounce_len)
    }

    /// Executes an atomic of this PE on its own memory, which returns nothing, if nothing is under
    /// way that it may come behind, and nobody waits for it by itself. It is there with the next
    /// iteration. False, and nothing has happened, for all else and what is wrong.
    fn apply_own(&mut self, request: &AtomicRequest<'_>, batch: Batch) -> bool {
        let me = self.core.peers.me();
        let is_behind = |connection: &Connection| {
            !connection.is_quiet() || connection.has_pending() || connection.check().is_err()
        };
        let regions = self.core.transmit.regions();
        if regions.kind() != LaneKind::Proxy
            || batch != Batch::NONE
            || self.core.peers.find(me).is_some_and(is_behind)
        {
            return false;
        }
        let Ok((word, offset)) = request.word() else { return false };
        self.staging.sync_regions(&mut self.core);
        let at = Spot { slot: word.slot(), offset };
        let Ok(place) = self.core.locate_word(at, request.atomic.width) else { return false };
        // Before layout 4 NVSHMEM tells of fences for other PEs alone.
        let behind = std::mem::take(&mut self.fenced_own) || self.core.peers.orders_signals();
        if behind && place.reach == Reach::Direct {
            // The processor changes it now, and words of a device may still wait.
            self.settle_own();
        }
        let order = if behind { SoonOrder::Behind } else { SoonOrder::Any };
        self.staging.apply_own(&mut self.core, place, &request.atomic, order).is_ok()
    }

    #[cold]
    pub(crate) fn settle_own(&mut self) {
        self.staging.settle(&mut self.core);
    }

    fn behind_of_puts(&self) -> Behind {
        if self.core.peers.orders_signals() { Behind::All } else { Behind::Nothing }
    }

    fn may_be_kept(&self, pe: Pe) -> bool {
        let Some(connection) = self.core.peers.find(pe) else { return false };
        let channel = connection.channel.as_deref();
        let under_way = channel.map_or(0, |channel| channel.unacknowledged() + channel.unsent);
        under_way >= MOST_KEPT && (connection.is_closed() || connection.mark().is_some())
    }

    /// Whether the processor reaches the bytes of a put at both ends.
    fn is_loadable(&mut self, part: &Request<'_>, pe: Pe) -> Result<bool, EngineError> {
        let LocalSide::Memory(addr) = part.local else { return Ok(false) };
        if !HandleView::check_of(pe, part.remote_handle)?.is_direct() {
            return Ok(false);
        }
        if !self.core.transmit.has_devices() {
            return Ok(true);
        }
        let Self { core, staging, .. } = self;
        Ok(staging.local_reach(core, ("put", pe), addr, part.len)? == Reach::Direct)
    }

    fn try_long_eager(
        &mut self,
        part: &Request<'_>,
        signal: &AtomicRequest<'_>,
        behind: Behind,
    ) -> Result<Tried, EngineError> {
        let LocalSide::Memory(addr) = part.local else { return Ok(Tried::NoRoom) };
        let remote = HandleView::check_of(part.pe, part.remote_handle)?;
        let offset = remote.locate(part.remote_addr, part.len as u64)?;
        let to = Spot { slot: remote.slot(), offset };
        let tail = Tail { addr, len: part.len };
        let body = |at, atomic| Body::PutSignalHead { at, atomic, to, len: tail.len };
        self.core.try_message_with_tail(signal, behind, tail, body)
    }

    /// A few bytes more than go in one message with their signal: the last ones leave first, in a
    /// message of their own, which the target executes before the other.
    fn try_split(
        &mut self,
        part: &Request<'_>,
        signal: &AtomicRequest<'_>,
        op: OpId,
        ahead: &mut bool,
    ) -> Result<Tried, EngineError> {
        let LocalSide::Memory(addr) = part.local else { return Ok(Tried::NoRoom) };
        let most = self.signals.most_eager.min(part.len);
        if !*ahead {
            let remote = HandleView::check_of(part.pe, part.remote_handle)?;
            let offset = remote.locate(part.remote_addr, part.len as u64)? + most as u64;
            let to = Spot { slot: remote.slot(), offset };
            let mut payload = [0; MAX_PAYLOAD];
            let payload = &mut payload[..part.len - most];
            let place = Place { addr: addr + most, reach: Reach::Direct };
            self.staging
                .load_at(&mut self.core, place, payload)
                .map_err(|error| local_fault(signal.pe, &error))?;
            let body = Body::Staged(Staged::Put { to, payload });
            *ahead = self.core.try_plain_message(part.pe, op, payload.len(), body)?;
        }
        if !*ahead {
            return Ok(Tried::NoRoom);
        }
        self.try_long_eager(&Request { len: most, ..*part }, signal, Behind::Operation(op))
    }

    /// Data on all rails; the signal is sent when its own data, and nothing else, is delivered, or
    /// has left as requests, which the target executes first.
    fn try_chained<T: Parts + ?Sized>(
        &mut self,
        parts: &T,
        signal: &AtomicRequest<'_>,
        op: OpId,
        at: &mut Progress,
    ) -> Result<Tried, EngineError> {
        if !self.submit_parts(parts, op, at)? {
            return Ok(Tried::NoRoom);
        }
        self.submit_atomic(signal, Behind::Operation(op))
    }

    fn try_ordered<T: Parts + ?Sized>(
        &mut self,
        parts: &T,
        signal: &AtomicRequest<'_>,
        at: &mut Progress,
    ) -> Result<Tried, EngineError> {
        if !self.submit_parts(parts, OpId::NONE, at)? {
            return Ok(Tried::NoRoom);
        }
        self.submit_amo(signal)
    }

    fn submit_parts<T: Parts + ?Sized>(
        &mut self,
        parts: &T,
        op: OpId,
        at: &mut Progress,
    ) -> Result<bool, EngineError> {
        while at.part < parts.count() {
            let part = parts.part(at.part);
            self.submit(&part, &mut at.sent, op)?;
            if at.sent < part.len {
                return Ok(false);
            }
            at.next();
        }
        Ok(true)
    }

    fn try_counted<T: Parts + ?Sized>(
        &mut self,
        parts: &T,
        signal: &AtomicRequest<'_>,
        counting: &mut Counting,
        at: &mut Progress,
    ) -> Result<Tried, EngineError> {
        while at.part < parts.count() {
            let part = parts.part(at.part);
            self.submit_counted(&part, &mut at.sent, counting)?;
            if at.sent < part.len {
                return Ok(Tried::NoRoom);
            }
            at.next();
        }
        let Counting { tag, segments } = *counting;
        let body = |at, atomic| Body::CountedSignal { at, atomic, tag, segments };
        self.core.try_message(signal, self.behind_of_puts(), body)
    }

    #[inline]
    fn submit_atomic(
        &mut self,
        request: &AtomicRequest<'_>,
        what: Behind,
    ) -> Result<Tried, EngineError> {
        self.core.try_message(request, what, |at, atomic| Body::Atomic { at, atomic })
    }
}

fn is_staged_word(request: &AtomicRequest<'_>) -> bool {
    HandleView::check(request.remote_handle).is_ok_and(|remote| remote.is_staged())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::atomic::AtomicOp;
    use crate::lane::SignalEngine;
    use crate::port::{Access, Direction};
    use crate::posting::tests::{Bed, PLAIN, Setup, atomic, request};
    use crate::state::counts::Tags;

    #[test]
    fn a_value_with_a_signal_leaves_at_once() {
        let mut bed = Bed::new(PLAIN);
        let heaps = Arc::clone(&bed.heaps);
        let part = Request { local: LocalSide::Value(7), ..request(&heaps, Direction::Write, 1) };
        let signal = atomic(&heaps, 1, AtomicOp::SignalSet);
        bed.lane.put_signal(&PutSignalRequest { parts: &[part], signal }).unwrap();
        assert_eq!((bed.fabric.in_flight(), bed.lane.pending(Pe(1))), (1, 0));
    }

    #[test]
    fn few_long_messages_leave_behind_others() {
        for (fences, before, is_long) in
            [(false, MOST_KEPT, true), (true, MOST_KEPT - 1, true), (true, MOST_KEPT, false)]
        {
            let mut bed = Bed::new(Setup { depth: 64, ..PLAIN });
            bed.lane.signals.most_eager = 4096;
            (0..before).for_each(|_| bed.atomic(1, AtomicOp::Inc));
            if fences {
                bed.lane.fence(Pe(1)).unwrap();
            }
            let heaps = Arc::clone(&bed.heaps);
            let parts = [Request { len: 2048, ..request(&heaps, Direction::Write, 1) }];
            let signal = atomic(&heaps, 1, AtomicOp::SignalSet);
            let state = bed.lane.begin_put_signal(&parts[..], &signal).unwrap();
            assert_eq!(matches!(state, PutState::LongEager), is_long, "{before}: {state:?}");
        }
    }

    #[test]
    fn a_counted_put_that_cannot_be_submitted_is_the_last_one() {
        for failed in [true, false] {
            let mut bed = Bed::new(PLAIN);
            let mut tags = Tags::new(2);
            let tag = tags.take().unwrap();
            bed.lane.core.connection_to(Pe(1)).unwrap().channel().tags = Some(Box::new(tags));
            let counting = Counting { tag, segments: 1 };
            let state = PutState::Counted { counting, at: Progress::default() };
            bed.lane.end_put_signal(Pe(1), &state, failed);
            let tags = bed.lane.core.connection_to(Pe(1)).unwrap().channel().tags.as_deref();
            assert_eq!(tags.unwrap().is_retired(), failed);
        }
    }

    #[test]
    fn ordered_signals_of_counted_data_leave_at_once() {
        for (signals, leave) in [(SignalEngine::Counted, 4), (SignalEngine::Chained, 2)] {
            let mut bed = Bed::new(Setup { depth: 64, signals, ..PLAIN });
            bed.lane.order_signals();
            bed.lane.signals.most_counted = 8;
            let heaps = Arc::clone(&bed.heaps);
            for _ in 0..2 {
                let parts = [Request { len: 2048, ..request(&heaps, Direction::Write, 1) }];
                let signal = atomic(&heaps, 1, AtomicOp::SignalAdd);
                bed.lane.put_signal(&PutSignalRequest { parts: &parts, signal }).unwrap();
            }
            assert_eq!(bed.fabric.in_flight(), leave, "{signals:?}");
        }
    }

    #[test]
    fn a_signal_behind_staged_data_waits_until_that_has_left() {
        for (reach, departs) in [(Reach::Direct, false), (Reach::Staged, true)] {
            let signals = SignalEngine::Chained;
            let mut bed = Bed::new(Setup { reach, signals, ..PLAIN });
            let heaps = Arc::clone(&bed.heaps);
            let word = bed.fabric.alloc(Pe(1), 64);
            let handle = bed.tables[1].register(word, 64, Access::LocalAndRemote).unwrap();
            let signal = atomic(&heaps, 1, AtomicOp::SignalSet);
            let signal =
                AtomicRequest { remote_handle: &handle, remote_addr: word as u64, ..signal };
            let parts = [Request { len: 2048, ..request(&heaps, Direction::Write, 1) }];
            bed.lane.core.connection_to(Pe(1)).unwrap();
            let state = bed.lane.begin_put_signal(&parts[..], &signal).unwrap();
            let PutState::Chained { op, .. } = state else { panic!("{state:?}") };
            assert_eq!(bed.lane.core.transmit.ops().departs(op), departs, "{reach:?}");
        }
    }
}
