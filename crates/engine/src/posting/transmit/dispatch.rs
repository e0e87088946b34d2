//! Segments on their way to the fabric: filled in, held behind fences, queued, and posted.

use crate::ids::{Pe, RailId, WrId};
use crate::port::{Direction, Operation, Port, PortError, Posted};
use crate::posting::Core;
use crate::posting::failures::Event;
use crate::posting::transmit::REFUSALS;
use crate::posting::transmit::doorbell::Doorbell;
use crate::rails::paths::Hop;
use crate::state::operation::OpId;
use crate::state::segment::work::Work;
use crate::state::segment::{Follows, Segment, Stage};

/// What became of an attempt to hand a segment to the fabric.
pub(crate) enum Left {
    /// The fabric has it.
    Taken,
    /// The rail has no room.
    NoRoom,
    /// The fabric has no room, perhaps for this peer alone.
    Again,
    /// The peer's window is full.
    NoWindow,
    /// The fabric refused it for good.
    Failed(PortError),
}

/// What a segment that changes a word is to come after, besides the fences before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Behind {
    /// Nothing.
    Nothing,
    /// An operation.
    Operation(OpId),
    /// The puts that were started before to the same PE.
    Puts,
    /// The puts and the signals that were.
    All,
}

impl<P: Port> Core<P> {
    /// Fills in a segment of an operation, which moves bytes.
    pub(crate) fn fill(&mut self, wr_id: WrId, pe: Pe, hop: &Hop, op: OpId, work: Work) {
        let segment = &mut self.transmit.segments[wr_id.0];
        segment.pe = pe;
        segment.set_work(work);
        segment.count_for(op.0);
        segment.born = self.failures.stamp();
        segment.direction = segment.fabric_direction();
        segment.rail = hop.rail;
        if op != OpId::NONE {
            self.transmit.ops.add(op.0);
        }
    }

    #[inline]
    pub(crate) fn dispatch(&mut self, wr_id: WrId, rail: RailId) {
        // Behind others in the rail's queue it may not go, whatever it is.
        let left = if self.transmit.rails[rail.index()].front().is_some()
            || self.transmit.burst.withholds()
        {
            Left::NoRoom
        } else if self.is_blocked(self.transmit.segments[wr_id.0].pe, rail) {
            Left::Again
        } else {
            self.launch(wr_id, rail, Doorbell::Ring)
        };
        match left {
            Left::Taken => self.has_left(wr_id),
            Left::NoRoom => self.transmit.queue(wr_id, rail),
            Left::Again => self.block(wr_id, rail),
            Left::NoWindow => self.wait_for_window(wr_id),
            Left::Failed(error) => self.fail_segment(wr_id, error),
        }
    }

    /// Hands a segment to the fabric.
    pub(in crate::posting) fn launch(
        &mut self,
        wr_id: WrId,
        rail: RailId,
        doorbell: Doorbell,
    ) -> Left {
        let segment = &mut self.transmit.segments[wr_id.0];
        if segment.message().is_some() {
            return self.send_message(wr_id, rail);
        }
        // What waits in the pool is never launched itself.
        let Some(transfer) = segment.work().transfer() else { return Left::NoRoom };
        let state = &mut self.transmit.rails[rail.index()];
        if state.is_full() {
            return Left::NoRoom;
        }
        let to = self.transmit.paths.get(segment.pe, rail).to;
        let operation = match (segment.work(), doorbell) {
            (Work::Counted { tag, .. }, _) => {
                let mark = self.peers.mark_of_mine(segment.pe, *tag);
                Operation::WriteWithImmediate(transfer, mark)
            }
            (_, Doorbell::Ring) => Operation::Transfer(transfer),
            (_, Doorbell::Owe) => Operation::WriteBeforeMore(transfer),
        };
        let port = &mut self.transmit.port;
        let len = transfer.len;
        let handed_over = if segment.work().is_bulk() && state.has_bulk() {
            let posted = port.post_bulk(rail, to, wr_id, operation);
            posted.map(|posted| posted.inspect(|posted| state.handed_over(*posted, len)))
        } else {
            Ok(None)
        };
        let posted = match handed_over {
            Ok(None) => port.post(rail, to, wr_id, operation),
            Ok(Some(posted)) => Ok(posted),
            Err(error) => Err(error),
        };
        match posted {
            Ok(Posted::Yes) => {
                segment.stage = Stage::Posted;
                segment.born = self.failures.stamp();
                state.taken(len);
                Left::Taken
            }
            Ok(Posted::Again) => {
                state.counters.again += 1;
                Left::Again
            }
            Err(error) => Left::Failed(error),
        }
    }

    #[inline]
    pub(crate) fn set_out_behind(&mut self, wr_id: WrId, what: Behind) {
        let Behind::Operation(op) = what else {
            self.transmit.segments[wr_id.0].follows = match what {
                Behind::Puts => Follows::Puts,
                Behind::All => Follows::All,
                _ => Follows::Nothing,
            };
            return self.set_out(wr_id);
        };
        self.transmit.segments[wr_id.0].behind_sent = self.transmit.ops.departs(op);
        self.transmit.segments[wr_id.0].stage = Stage::Chained;
        if self.transmit.ops.chain(op, wr_id.0) {
            self.unchain(wr_id);
        }
    }

    pub(crate) fn set_out(&mut self, wr_id: WrId) {
        if self.starts_at_once(wr_id) {
            let rail = self.transmit.segments[wr_id.0].rail;
            self.transmit.segments[wr_id.0].stage = Stage::Ready;
            self.dispatch(wr_id, rail);
        }
    }

    /// Whether a segment that sets out waits for nothing: then it is under way.
    #[inline]
    pub(in crate::posting) fn starts_at_once(&mut self, wr_id: WrId) -> bool {
        self.passes_fence(wr_id) && !self.waits_for_puts(wr_id)
    }

    #[inline]
    fn waits_for_puts(&mut self, wr_id: WrId) -> bool {
        let segment = &mut self.transmit.segments[wr_id.0];
        if segment.follows == Follows::Nothing {
            return false;
        }
        let pe = segment.pe;
        let Some(connection) = self.peers.find_mut(pe) else { return false };
        segment.behind_sent = true;
        if connection.puts_under_way() == 0 {
            connection.go_first(segment);
            return false;
        }
        segment.stage = Stage::BehindPuts;
        connection.hold_back(&mut self.transmit.segments, wr_id.0);
        // Some puts may be messages.
        self.peers.want_ack(pe);
        true
    }

    /// Whether a segment that has all it needs is under way from now on. Else it waits behind its
    /// connection's fence; once that is passed it sets out, or [`Event::Begins`] says so.
    pub(crate) fn passes_fence(&mut self, wr_id: WrId) -> bool {
        let segment = &mut self.transmit.segments[wr_id.0];
        let (pe, direction) = (segment.pe, segment.direction);
        let Some(connection) = self.peers.find_mut(pe) else { return false };
        let waits = connection.is_closed() && direction == Direction::Write;
        if waits && !(segment.is_request() && connection.passes_requests()) {
            segment.hold(connection.epoch());
            connection.held.push(&mut self.transmit.segments, wr_id.0);
            // What it waits for may be messages, whose delivery only the peer can tell.
            self.peers.want_ack(pe);
            return false;
        }
        connection.begin_segment(segment);
        true
    }

    /// While a fence to a peer is pending, a put that others may join comes behind all before it,
    /// not only behind those before the fence: so what comes behind later fences may join it.
    pub(crate) fn stand_behind_fence(&mut self, pe: Pe) {
        if let Some(connection) = self.peers.find_mut(pe) {
            connection.fence_again();
        }
    }

    pub(crate) fn post_ready(&mut self) -> bool {
        let mut moved = false;
        self.transmit.burst.end();
        for rail in self.transmit.rail_ids() {
            let has_blocked = self.transmit.rails[rail.index()].has_blocked();
            if has_blocked && self.transmit.phase.blocked_first() {
                moved |= self.retry_blocked(rail);
            }
            let (mut burst, mut refusals) = (0, 0);
            while let Some(index) = self.transmit.rails[rail.index()].front() {
                let wr_id = WrId(index);
                let doorbell = self.transmit.doorbell(rail, index, burst);
                let pe = self.transmit.segments[index].pe;
                // Nothing is sent to a peer after a failure: what follows might be a flag for data
                // that never left.
                let failed = self.peers.check(pe).is_err();
                let blocked = self.is_blocked(pe, rail);
                let left = match (failed, blocked) {
                    (true, _) => None,
                    // Not before what was there first.
                    (false, true) => Some(Left::Again),
                    (false, false) => Some(self.launch(wr_id, rail, doorbell)),
                };
                match left {
                    Some(Left::NoRoom) => break,
                    Some(Left::Taken) => burst = self.transmit.rang(rail, index, doorbell),
                    Some(Left::Again) => {
                        refusals += usize::from(!blocked);
                        burst = 0;
                    }
                    _ => {}
                }
                moved |= !matches!(left, Some(Left::Again));
                self.transmit.rails[rail.index()].pop(&self.transmit.segments);
                self.transmit.ready -= 1;
                self.left_queue(wr_id, rail, left);
                if refusals == REFUSALS {
                    break;
                }
            }
            if has_blocked && !self.transmit.phase.blocked_first() {
                moved |= self.retry_blocked(rail);
            }
        }
        moved
    }

    /// What becomes of a segment that was taken out of a queue; none if its connection has failed.
    pub(in crate::posting) fn left_queue(&mut self, wr_id: WrId, rail: RailId, left: Option<Left>) {
        match left {
            None => self.drop_segment(wr_id),
            Some(Left::Failed(error)) => self.fail_segment(wr_id, error),
            Some(Left::NoWindow) => self.wait_for_window(wr_id),
            Some(Left::Again) => self.block(wr_id, rail),
            Some(Left::Taken) => self.has_left(wr_id),
            Some(Left::NoRoom) => {}
        }
    }

    #[cold]
    pub(crate) fn release(&mut self, pe: Pe) {
        while let Some(connection) = self.peers.find_mut(pe) {
            let Some(index) = connection.let_go(&mut self.transmit.segments) else { break };
            let segment = &mut self.transmit.segments[index];
            segment.born = self.failures.stamp();
            let rail = segment.rail;
            if self.failures.recovers() && self.transmit.paths.is_out(pe, rail) {
                self.send_elsewhere(WrId(index));
            } else {
                self.transmit.queue(WrId(index), rail);
            }
        }
        let Some(connection) = self.peers.find_mut(pe) else { return };
        let Some((epoch, all)) = connection.passed(&self.transmit.segments) else { return };
        while let Some(connection) = self.peers.find_mut(pe) {
            let Some(index) = connection.held.front() else { return };
            let segment = &mut self.transmit.segments[index];
            if segment.fence() != epoch || !all && !segment.is_request() {
                break;
            }
            segment.stage = Stage::Ready;
            segment.born = self.failures.stamp();
            let (rail, has_mover) = (segment.rail, segment.work().has_mover());
            connection.begin_segment(segment);
            connection.held.pop(&self.transmit.segments);
            if self.waits_for_puts(WrId(index)) {
                continue;
            }
            if has_mover {
                self.failures.raise(Event::Begins(WrId(index)));
                continue;
            }
            if self.failures.recovers() && self.transmit.paths.is_out(pe, rail) {
                self.send_elsewhere(WrId(index));
                continue;
            }
            self.transmit.rails[rail.index()].push(&mut self.transmit.segments, index);
            self.transmit.ready += 1;
        }
    }

    #[cold]
    fn send_elsewhere(&mut self, wr_id: WrId) {
        let segment = &self.transmit.segments[wr_id.0];
        let Segment { pe, rail, .. } = *segment;
        if !segment.work().is_rma() {
            let rail = self.peers.find(pe).map_or(rail, |connection| connection.next.rail);
            self.transmit.segments[wr_id.0].rail = rail;
            self.transmit.queue(wr_id, rail);
        } else {
            self.lose(wr_id, false);
        }
    }
}
