//! The ends of segments: what a completion, or a segment that is dropped, means for its operation,
//! its connection and what is behind them.

use crate::ids::{RailId, WrId};
use crate::port::{Polled, Port};
use crate::posting::Core;
use crate::posting::failures::Event;
use crate::posting::transmit::Transmit;
use crate::posting::transmit::drain::Drain;
use crate::state::operation::OpId;
use crate::state::segment::table::Finished;
use crate::state::segment::work::Work;
use crate::state::segment::{Segment, Stage};

impl<P: Port> Core<P> {
    #[inline(always)]
    pub(crate) fn take_plain(&mut self, rail: RailId) -> (Polled, u32) {
        let Transmit { port, segments, rare, .. } = &mut self.transmit;
        let mut drain = Drain::new(segments, &mut self.peers, rare);
        let polled = port.drain(rail, &mut drain);
        (polled, drain.finish())
    }

    /// Applies one completion of bytes that no mechanism moves, except for the rail's own count.
    /// Whether it was of such a segment in flight.
    pub(crate) fn completed(&mut self, wr_id: WrId) -> bool {
        let segment = self.transmit.segments.away(wr_id);
        let reissued = segment.is_some_and(Segment::is_reissued_write);
        let Some(finished) = self.transmit.segments.finish(wr_id) else { return false };
        self.is_no_orphan(wr_id);
        if reissued {
            self.reissued_ended(finished.pe);
        }
        self.ended(finished);
        true
    }

    /// Tells the operation and the connection of a segment that was under way that it has ended.
    ///
    /// In this order: a signal chained to the operation is under way before its data is not, so the
    /// connection is never quiet in between.
    #[inline(always)]
    pub(crate) fn ended(&mut self, Finished { pe, op, direction, class }: Finished) {
        if op != OpId::NONE.0 {
            self.op_done(op);
        }
        self.failures.has_moved();
        let Some(connection) = self.peers.find_mut(pe) else { return };
        if connection.end(direction, class) {
            self.release(pe);
        }
    }

    pub(crate) fn op_done(&mut self, op: u32) {
        if let Some(then) = self.transmit.ops.done(op) {
            self.unchain(WrId(then));
        }
    }

    /// A signal's data is delivered: the signal may leave, or is dropped with the rest of a
    /// connection that has failed. Not before fences that came later, which is why it does not look
    /// at them.
    pub(in crate::posting) fn unchain(&mut self, wr_id: WrId) {
        let segment = &mut self.transmit.segments[wr_id.0];
        let Segment { pe, rail, .. } = *segment;
        match self.peers.find_mut(pe) {
            Some(connection) if connection.error.is_none() => {
                connection.begin_segment(segment);
                self.transmit.queue(wr_id, rail);
            }
            _ => self.drop_segment(wr_id),
        }
    }

    #[cold]
    pub(crate) fn drop_segment(&mut self, wr_id: WrId) {
        self.end_load(wr_id, false);
        let segment = &mut self.transmit.segments[wr_id.0];
        if segment.work().has_mover() {
            segment.is_dropped = true;
            return self.failures.raise(Event::Dropped(wr_id));
        }
        if !segment.work().is_rma() {
            self.leave_message(wr_id);
        }
        self.end_dropped(wr_id);
    }

    pub(crate) fn end_dropped(&mut self, wr_id: WrId) {
        let segment = self.transmit.segments[wr_id.0];
        let Segment { pe, stage, .. } = segment;
        let op = segment.op();
        if segment.is_reissued_write() {
            self.reissued_ended(pe);
        }
        self.transmit.segments.give(wr_id);
        self.is_no_orphan(wr_id);
        if matches!(stage, Stage::Held | Stage::Chained) {
            if op != OpId::NONE.0 {
                self.op_done(op);
            }
        } else {
            self.ended(Finished::of(&segment));
        }
    }

    fn leave_message(&mut self, wr_id: WrId) {
        let segment = self.transmit.segments[wr_id.0];
        if let Some(connection) = self.peers.find_mut(segment.pe) {
            match *segment.work() {
                Work::Fetch { place, .. } => {
                    let channel = connection.channel();
                    channel.turn_fetch(place);
                    channel.apart =
                        channel.apart.wrapping_sub(u32::from(segment.stage == Stage::Sent));
                    if segment.message().is_none() {
                        self.peers.restore_message();
                    }
                }
                // Acknowledged, or the connection has failed and sends nothing more.
                Work::CountedSignal { tag, .. } => {
                    if let Some(tags) = connection.channel().tags.as_deref_mut() {
                        tags.give(tag);
                    }
                }
                _ => {}
            }
        }
        match (segment.message(), segment.stage) {
            (None, _) => {}
            // The message itself waits for its acknowledgement.
            (Some(message), Stage::Sent) => self.peers.forget_message(message),
            // Nothing more goes to its peer, so that nobody counts what has not left.
            (Some(message), _) => self.peers.give_message(message),
        }
    }
}

impl<P: Port> Transmit<P> {
    #[inline(always)]
    pub(crate) fn next_rare(&mut self) -> Option<WrId> {
        self.rare.pop()
    }

    pub(crate) fn forget_ended(&mut self, rail: RailId) {
        let Self { port, segments, rails, .. } = self;
        let mut ended = 0;
        let mut known = |wr_id| {
            let known = segments.away(wr_id).is_some();
            ended += u32::from(known);
            known
        };
        let polled = if port.has_completions(rail) {
            port.drain(rail, &mut |index: usize| known(WrId(index as u32)))
        } else {
            Polled::Empty
        };
        if let Polled::Failed(failure) = &polled {
            failure.wr_id.map(known);
        }
        let rail = &mut rails[rail.index()];
        rail.completed(ended.min(rail.in_flight()));
    }
}
