//! Puts and gets, as they are submitted: checked, cut into segments, and given to the rails.

use crate::error::EngineError;
use crate::lane::Lane;
use crate::lane::pending_queue::Submission;
use crate::port::{Direction, Local, Port, Transfer};
use crate::request::{Request, refused};
use crate::signal::Way;
use crate::signal::counted::Counting;
use crate::state::operation::OpId;
use crate::state::segment::work::Work;
use crate::wire::handle::HandleView;

impl<P: Port> Lane<P> {
    /// Starts a put or a get and returns once the fabric or the lane's queues have taken all of it.
    /// [`Lane::quiet`] waits for its end.
    ///
    /// Cost when there is room: no allocation, no lock, no system call of ours.
    ///
    /// # Errors
    /// Bad arguments, a peer that has failed before, or a fabric that takes nothing more.
    #[inline]
    pub fn start(&mut self, request: &Request<'_>) -> Result<(), EngineError> {
        let batch = self.core.transmit.batches().current();
        let started = match self.core.peers.orders_signals() {
            false => self.start_fast(*request, batch),
            true => self.start_in_order_fast(*request, batch),
        };
        match started {
            Ok(()) => {
                self.end_burst();
                Ok(())
            }
            Err(rest) => self.start_rest(rest, false),
        }
    }

    pub(crate) fn start_general(&mut self, request: &Request<'_>) -> Result<(), EngineError> {
        let mut sent = 0;
        if !self.has_pending(request.pe) {
            self.submit(request, &mut sent, OpId::NONE)?;
        }
        self.end_burst();
        if sent == request.len { Ok(()) } else { self.finish(Submission::PutOrGet(*request, sent)) }
    }

    /// Does a put or a get to its end: the put's data is visible at the peer, the get's data is in
    /// local memory.
    ///
    /// # Errors
    /// As [`Lane::start`], and a failure of the operation or of an earlier one to the peer.
    pub fn complete(&mut self, request: &Request<'_>) -> Result<(), EngineError> {
        let op = self.begin_op();
        let mut sent = 0;
        let mut idle = 0;
        while !self.advance_op(request, &mut sent, op)? {
            self.core.peers.want_acks();
            self.wait_iteration(&mut idle);
        }
        Ok(())
    }

    /// Begins an operation that is waited for on its own. Every operation begun is carried on with
    /// [`Lane::advance_op`] until that says it has ended.
    pub fn begin_op(&mut self) -> OpId {
        self.core.transmit.ops_mut().start()
    }

    /// Submits what there is room for, and says whether the operation has ended. Never blocks.
    ///
    /// # Errors
    /// As [`Lane::complete`]; the operation has then ended.
    pub fn advance_op(
        &mut self,
        request: &Request<'_>,
        sent: &mut usize,
        op: OpId,
    ) -> Result<bool, EngineError> {
        // Behind what is pending, unless it has begun before.
        let behind = *sent == 0 && self.has_pending(request.pe);
        self.advance(request, sent, op, behind)
    }

    pub(crate) fn advance(
        &mut self,
        request: &Request<'_>,
        sent: &mut usize,
        op: OpId,
        behind: bool,
    ) -> Result<bool, EngineError> {
        let advanced = self.try_advance(request, sent, op, behind);
        // After an error, segments already out may still point at the operation. It is then given
        // up rather than ended, which costs four bytes; errors are a lane's last act.
        if !matches!(advanced, Ok(false)) && self.core.transmit.ops().is_done(op) {
            self.core.transmit.ops_mut().end(op);
        }
        advanced
    }

    fn try_advance(
        &mut self,
        request: &Request<'_>,
        sent: &mut usize,
        op: OpId,
        behind: bool,
    ) -> Result<bool, EngineError> {
        if *sent < request.len && !behind {
            self.submit(request, sent, op)?;
        }
        self.core.peers.check(request.pe)?;
        if *sent == request.len {
            return Ok(self.core.transmit.ops().is_done(op));
        }
        self.room_or_failure().map(|()| false)
    }

    /// Submits as much of a request, from byte `*sent` on, as there is room for, and moves `*sent`
    /// on. Never blocks.
    ///
    /// # Errors
    /// Bad arguments, a peer that has failed before, or a segment the fabric refused.
    #[inline]
    pub fn submit(
        &mut self,
        request: &Request<'_>,
        sent: &mut usize,
        op: OpId,
    ) -> Result<(), EngineError> {
        if self.core.peers.orders_signals() && self.marks(request.direction) {
            return self.submit_marked(request, sent, op);
        }
        self.submit_counting(request, sent, op, None)
    }

    pub(crate) fn marks(&self, direction: Direction) -> bool {
        direction == Direction::Write
            && self.core.peers.orders_signals()
            && self.signals.way_of_writes() == Way::Counted
    }

    #[inline(never)]
    fn submit_marked(
        &mut self,
        request: &Request<'_>,
        sent: &mut usize,
        op: OpId,
    ) -> Result<(), EngineError> {
        let Some(mut open) = self.signals.open_tag(&mut self.core, request.pe)? else {
            return self.submit_counting(request, sent, op, None);
        };
        let submitted = self.submit_counting(request, sent, op, Some(&mut open));
        self.signals.keep_open(&mut self.core, request.pe, open);
        submitted
    }

    #[inline(never)]
    pub(crate) fn submit_counted(
        &mut self,
        request: &Request<'_>,
        sent: &mut usize,
        counting: &mut Counting,
    ) -> Result<(), EngineError> {
        self.submit_counting(request, sent, OpId::NONE, Some(counting))
    }

    #[inline(always)]
    fn submit_counting(
        &mut self,
        request: &Request<'_>,
        sent: &mut usize,
        op: OpId,
        mut counting: Option<&mut Counting>,
    ) -> Result<(), EngineError> {
        match self.core.open_connection(request.pe) {
            Some(connection) => connection.check()?,
            None => return self.core.peers.check_pe(request.pe),
        }
        let remote = HandleView::check_of(request.pe, request.remote_handle)
            .map_err(|fault| refused(request, "remote", fault))?;
        let offset = remote
            .locate(request.remote_addr, request.len as u64)
            .map_err(|fault| refused(request, "remote", fault))?;
        self.core.learn(request.pe, &remote);
        if self.staging.is_staged(&mut self.core, request, &remote)? {
            let Self { core, staging, .. } = self;
            return staging.submit_staged(core, request, &remote, offset, sent, op);
        }
        if request.len >= self.core.transmit.balance().balanced_from {
            let Self { core, pool, .. } = self;
            return pool.submit_balanced(core, request, sent, op, counting);
        }
        let remote_addr = remote.remote_address(offset);

        while *sent < request.len {
            if !self.core.is_within_quota(request.pe) {
                return Ok(());
            }
            let Some(connection) = self.core.peers.find_mut(request.pe) else { return Ok(()) };
            let path = connection.next;
            let rail = path.rail;
            let key = remote
                .key(path.remote_key.rail())
                .map_err(|fault| refused(request, "remote", fault))?;
            // Cut, where segments are shorter than values.
            let local = match self.core.transmit.local_side(request, *sent, rail)? {
                Local::Value(value) => Local::Value(value >> (8 * (*sent).min(7))),
                memory => memory,
            };
            let Some(wr_id) = self.core.transmit.take() else { return Ok(()) };
            let len = (request.len - *sent).min(self.core.transmit.rail(rail).max_segment);

            self.core.transmit.rotate(connection);

            let (direction, remote) = (request.direction, remote_addr + *sent as u64);
            let transfer = Transfer { direction, local, len, remote, key };
            self.core.fill(wr_id, request.pe, &path, op, Work::Transfer(transfer));
            if let Some(counting) = counting.as_deref_mut() {
                let order = self.core.peers.order_of_counted();
                self.core.transmit.segment_mut(wr_id).set_counted(counting.tag, order);
                counting.segments += 1;
            }
            *sent += len;
            self.core.set_out(wr_id);
            self.core.peers.check(request.pe)?;
        }
        Ok(())
    }

    /// As [`Lane::start`] of a put, when the caller says that another follows at once. It may be
    /// posted later, with that one. Where the fabric gains nothing from that, it is started at
    /// once.
    ///
    /// # Errors
    /// As [`Lane::start`].
    pub fn start_in_burst(&mut self, request: &Request<'_>) -> Result<(), EngineError> {
        let bursts =
            self.core.transmit.gains_from_bursts() && request.direction == Direction::Write;
        if !bursts || self.has_pending(request.pe) {
            return self.start_general(request);
        }
        let mut sent = 0;
        self.core.transmit.withhold();
        let submitted = self.submit(request, &mut sent, OpId::NONE);
        let is_full = self.core.transmit.withheld();
        // What there is no room for waits in a call that runs the loop.
        if submitted.is_err() || is_full {
            self.post_ready();
        }
        submitted?;
        if sent == request.len { Ok(()) } else { self.finish(Submission::PutOrGet(*request, sent)) }
    }

    /// Whether bursts make a difference.
    #[inline]
    pub fn batches(&self) -> bool {
        self.core.transmit.gains_from_bursts()
    }

    /// Ends the burst, if there is one: what was withheld is posted, as far as there is room.
    #[inline]
    pub fn end_burst(&mut self) {
        if self.core.transmit.has_withheld() {
            self.post_ready();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::posting::tests::{Bed, HEAP, PLAIN, Setup, request};

    #[test]
    fn what_is_waited_for_on_its_own_comes_behind_what_is_pending() {
        let mut bed = Bed::new(PLAIN);
        bed.enqueue_pending(1);
        let heaps = Arc::clone(&bed.heaps);
        let get = request(&heaps, Direction::Read, 1);
        for (sent, then) in [(0, 0), (4, 8)] {
            let (op, mut sent) = (bed.lane.begin_op(), sent);
            assert!(!bed.lane.advance_op(&get, &mut sent, op).unwrap());
            assert_eq!(sent, then);
        }
    }

    #[test]
    fn a_burst_is_posted_when_a_put_of_it_is_refused() {
        let mut bed = Bed::new(Setup { depth: 64, doorbells: true, ..PLAIN });
        let heaps = Arc::clone(&bed.heaps);
        let put = request(&heaps, Direction::Write, 1);
        (0..2).for_each(|_| bed.lane.start_in_burst(&put).unwrap());
        assert_eq!(bed.fabric.in_flight(), 0);
        let outside = Request { remote_addr: put.remote_addr + HEAP as u64, ..put };
        bed.lane.start_in_burst(&outside).unwrap_err();
        assert_eq!((bed.fabric.in_flight(), bed.lane.core.transmit.has_withheld()), (2, false));
    }

    #[test]
    fn rails_are_chosen_by_load_from_a_length_on() {
        for (len, stripes) in [(63, 0), (64, 1), (65, 1)] {
            let mut bed = Bed::new(Setup { rails: 2, ..PLAIN });
            bed.lane.core.transmit.balance_mut().balanced_from = 64;
            let heaps = Arc::clone(&bed.heaps);
            let put = Request { len, ..request(&heaps, Direction::Write, 1) };
            bed.lane.start(&put).unwrap();
            assert_eq!(bed.lane.core.transmit.stripes(), stripes, "{len}");
        }
    }
}
