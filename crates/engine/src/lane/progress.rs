//! The iteration of a lane: completions, messages, queues, and what mechanisms have to see to, in
//! this order.

use crate::error::EngineError;
use crate::ids::{RailId, WrId};
use crate::lane::Lane;
use crate::lane::idle::is_idle;
use crate::lane::user_threads::handoff::Inbox;
use crate::port::packet::Packet;
use crate::port::{Failure, Polled, Port};
use crate::posting::Core;
use crate::posting::failures::{Event, unknown_failure, unknown_wr_id};
use crate::recovery::reset::LAST_ITERATIONS;
use crate::state::batch::Batch;
use crate::state::segment::Stage;
use crate::state::segment::work::Work;

impl<P: Port> Lane<P> {
    /// One progress iteration: completions, queues, watchdog. Says whether it found anything to do.
    ///
    /// # Errors
    /// The lane's first failure, from then on at every call: data has been lost. In a box, so that
    /// what is given fits into registers.
    #[inline]
    pub fn progress(&mut self) -> Result<bool, Box<EngineError>> {
        let busy = self.iterate();
        match self.core.failures.first() {
            None => Ok(busy),
            Some(_) => self.failed_iteration(),
        }
    }

    /// Whether a caller that hands over operations one by one had better hand over more before the
    /// next iteration: short ones of memory of devices, which go together then. It says so some
    /// thirty times in a row at most, and only where an operation came since the last question.
    #[inline]
    pub fn takes_more(&mut self) -> bool {
        self.staging.goes_on()
    }

    #[inline]
    pub(crate) fn iterate(&mut self) -> bool {
        let mut busy = false;
        for rail in 0..self.core.transmit.rails().len() {
            let rail = RailId(rail as u8);
            if self.core.transmit.port_mut().has_completions(rail) {
                busy |= self.take_completions(rail);
            }
            if self.receives && self.core.transmit.port().has_message(rail) {
                busy |= self.receive(rail);
            }
        }
        if self.core.transmit.has_ready() {
            busy |= self.post_or_send();
        }
        if self.inbox.as_deref().is_some_and(Inbox::has_work) {
            busy |= self.serve_user_threads();
        }
        if self.staging.has_work() {
            busy |= self.staging.pump(&mut self.core);
            self.execute_due();
            self.staging.settle_own(&mut self.core);
        }
        if self.core.peers.is_control_due() {
            busy |= self.send_due();
        }
        if self.core.failures.is_due() {
            self.inspect();
        }
        busy
    }

    #[inline(always)]
    pub(crate) fn take_completions(&mut self, rail: RailId) -> bool {
        let (polled, mut known) = self.core.take_plain(rail);
        while let Some(wr_id) = self.core.transmit.next_rare() {
            known += u32::from(self.completed(wr_id));
        }
        if known != 0 {
            let Core { transmit, failures, .. } = &mut self.core;
            transmit.completed_on(rail, known, failures.stamp());
        }
        match polled {
            Polled::Empty => false,
            Polled::Completed(_) => true,
            Polled::Failed(failure) => {
                self.failed(rail, *failure);
                true
            }
        }
    }

    #[inline]
    pub(crate) fn wait_iteration(&mut self, idle: &mut u32) {
        let busy = self.iterate();
        if is_idle(idle, busy) {
            self.core.transmit.port_mut().relax();
            self.core.failures.count_yielded();
        }
    }

    #[cold]
    pub(crate) fn post_ready(&mut self) -> bool {
        let moved = self.core.post_ready();
        moved | self.pool.hand_out(&mut self.core)
    }

    #[cold]
    fn post_or_send(&mut self) -> bool {
        let sent = self.core.transmit.next_turn() && self.send_due();
        let posted = self.post_ready();
        let served = !self.pending_queue.is_empty() && self.serve_pending_queue();
        posted | sent | served
    }

    #[cold]
    fn send_due(&mut self) -> bool {
        let Some(mut packet) = self.packet.take() else { return false };
        if let Some(recovery) = self.recovery.as_deref_mut() {
            recovery.resend_in_turn(&mut self.core);
        }
        let moved = self.core.send_control(&mut packet);
        self.packet = Some(packet);
        if let Some(recovery) = self.recovery.as_deref_mut().filter(|_| moved) {
            recovery.resends_first = true;
        }
        moved
    }

    #[cold]
    pub(crate) fn make_room(&mut self, idle: &mut u32) -> Result<(), EngineError> {
        self.core.peers.want_acks();
        // What the iteration begins for others does not belong to the submitter's batch.
        let submitted = self.core.transmit.batches_mut().enter(Batch::NONE);
        self.wait_iteration(idle);
        self.core.transmit.batches_mut().enter(submitted);
        self.room_or_failure()
    }

    #[cold]
    fn completed(&mut self, wr_id: WrId) -> bool {
        let segment = self.core.transmit.away(wr_id);
        let is_lost = segment.is_some_and(|segment| segment.stage == Stage::Lost);
        if is_lost && !self.core.came_back(wr_id) {
            unknown_wr_id(wr_id);
            return false;
        }
        self.core.end_load_completed(wr_id);
        let known =
            self.core.completed(wr_id) || self.staging.completed_fragment(&mut self.core, wr_id);
        if !known {
            unknown_wr_id(wr_id);
        }
        known
    }

    #[cold]
    fn failed(&mut self, rail: RailId, failure: Failure) {
        let Self { core, recovery, .. } = self;
        if failure.is_message {
            return match recovery.as_deref_mut() {
                Some(recovery) => recovery.failed_message(core, rail, &failure),
                None => core.failed_message(rail, failure),
            };
        }
        let Some(wr_id) = failure.wr_id else {
            return match recovery.as_deref_mut().filter(|_| core.transmit.port().can_reset(rail)) {
                Some(recovery) => recovery.rail_failed(core, rail, &failure.error),
                None => core.fail_rail(rail, failure.error),
            };
        };
        match core.transmit.away(wr_id) {
            Some(segment) if segment.stage == Stage::Posted => {
                let rail = segment.rail;
                core.transmit.failed_on(rail);
            }
            Some(segment) if segment.stage == Stage::Lost => {
                let rail = segment.rail;
                if !core.came_back(wr_id) {
                    return unknown_wr_id(wr_id);
                }
                core.transmit.failed_on(rail);
                core.transmit.segment_mut(wr_id).stage = Stage::Lost;
                core.failures.hurry();
                return core.wr_id_is_back(wr_id);
            }
            // What has left as a message is named otherwise.
            Some(_) | None => {
                let name = core.transmit.port().rail_name(rail);
                return unknown_failure(rail, name, wr_id, &failure.error);
            }
        }
        core.fail_segment(wr_id, failure.error);
    }

    #[cold]
    fn inspect(&mut self) {
        self.see_to_events();
        let now = self.core.transmit.now();
        let due = self.core.failures.starts(now);
        if self.recovery.is_some() {
            self.recover(due);
        }
        if !due {
            return;
        }
        for rail in self.core.transmit.rail_ids() {
            if let Some(error) = self.core.transmit.port_mut().trouble(rail) {
                self.failed(rail, Failure { wr_id: None, is_message: false, error });
            }
        }
        while let Some(pe) = self.core.transmit.port_mut().ended_process() {
            self.core.failures.note_ended(pe);
        }
        for pe in self.core.failures.take_ended() {
            // Others may wait for it though nothing is under way with it.
            if !self.lets_peers_end {
                self.core.fail_connection(pe, EngineError::PeerEnded { pe });
            }
        }
        // Peers may be told what stages before anything does.
        self.staging.sync_regions(&mut self.core);
        self.staging.take_back_bounce_buffers(&mut self.core);
        // What nobody waits for, nobody asks about; unasked, it would seem to be stuck.
        self.core.peers.want_acks();
        let staged = self.staging.moved();
        let pending = self.pending_queue.peers();
        let Core { transmit, peers, failures } = &mut self.core;
        for (pe, failed) in failures.look(peers, transmit, staged, pending) {
            self.core.fail_connection(pe, failed);
        }
        self.signals.inspect_counts(&mut self.core);
        self.see_to_events();
        self.execute_due();
    }

    fn see_to_events(&mut self) {
        let Self { core, pool, staging, recovery, .. } = self;
        loop {
            let Some(event) = core.failures.next_event() else {
                // Last: what is dropped already has an event of its own.
                let Some(pe) = core.failures.next_failed() else { break };
                staging.give_up(core, pe);
                core.end_messages(pe);
                continue;
            };
            match event {
                Event::Begins(wr_id) => match core.transmit.segment(wr_id).work() {
                    Work::Pooled { .. } => pool.begin_pooled(core, wr_id),
                    _ => staging.begin_fragment(core, wr_id),
                },
                // The peer's answer may have ended it since.
                Event::Dropped(wr_id) if !core.transmit.segment(wr_id).is_dropped => {}
                Event::Dropped(wr_id) => match core.transmit.segment(wr_id).work() {
                    Work::Pooled { .. } => pool.drop_pooled(core, wr_id),
                    _ => staging.drop_fragment(core, wr_id),
                },
                Event::Refused(wr_id, error) => match recovery.as_deref_mut() {
                    Some(recovery) => recovery.refused(core, wr_id, error),
                    None => core.end_failed(wr_id, error),
                },
                Event::PathFailed { pe, rail, error } => {
                    if let Some(recovery) = recovery.as_deref_mut() {
                        recovery.path_failed(core, pe, rail, &error);
                    }
                }
            }
        }
    }

    #[cold]
    fn recover(&mut self, look: bool) {
        self.hear();
        if let Some(recovery) = self.recovery.as_deref_mut() {
            recovery.adopt(&mut self.core);
            if look {
                recovery.look_at_paths(&mut self.core);
                recovery.close_over_orphans(&mut self.core);
            }
        }
        let due = |lane: &Self| lane.recovery.as_deref()?.due_to_close(&lane.core);
        while let Some((rail, cause)) = due(self) {
            self.take_last(rail);
            if let Some(recovery) = self.recovery.as_deref_mut() {
                recovery.reset(&mut self.core, rail, cause);
            }
        }
        if let Some(recovery) = self.recovery.as_deref_mut() {
            recovery.go_on(&mut self.core, &mut self.staging);
        }
        self.see_to_events();
    }

    fn hear(&mut self) {
        let mut packet = Packet::EMPTY;
        for rail in self.core.transmit.rail_ids() {
            while self.core.transmit.port_mut().receive_control(rail, &mut packet) {
                let len = packet.len();
                self.core.peers.unseal(&mut packet, len);
                self.message_at_length(rail, packet.bytes());
            }
        }
        self.execute_due();
        self.staging.settle(&mut self.core);
    }

    fn take_last(&mut self, rail: RailId) {
        for _ in 0..LAST_ITERATIONS {
            let mut busy =
                self.core.transmit.port_mut().has_completions(rail) && self.take_completions(rail);
            busy |= self.receives && self.receive(rail);
            if !busy {
                break;
            }
        }
        self.see_to_events();
    }

    /// The lane has failed: user threads need not wait any longer, and peers hear of it.
    #[cold]
    fn failed_iteration(&mut self) -> Result<bool, Box<EngineError>> {
        let Some(failed) = self.core.failures.first().cloned() else { return Ok(true) };
        if let Some(inbox) = &self.inbox {
            inbox.fail(&failed);
        }
        if !self.core.peers.has_no_answers() || self.staging.is_copying() {
            self.last_words();
        }
        Err(Box::new(failed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::atomic::AtomicOp;
    use crate::fake::PortCall;
    use crate::ids::Pe;
    use crate::posting::tests::{Bed, PLAIN, Setup, lost};
    use crate::state::messages::unnumbered::{NO_TICKET, Owed};
    use crate::state::segment::waits::Waits;

    fn in_doubt(posted: bool) -> (Bed, WrId) {
        let mut bed = Bed::new(Setup { rails: 2, health: true, ..PLAIN });
        bed.put(1);
        let wr_id = bed.to(1);
        bed.lane.core.lose(wr_id, posted);
        (bed, wr_id)
    }

    #[test]
    fn what_was_in_doubt_completes_if_the_fabric_had_it() {
        for posted in [true, false] {
            let (mut bed, wr_id) = in_doubt(posted);
            assert_eq!(bed.lane.completed(wr_id), posted);
            assert_eq!(bed.lane.core.transmit.has_segments(), !posted);
        }
    }

    #[test]
    fn what_was_in_doubt_fails_if_the_fabric_had_it() {
        for posted in [true, false] {
            let (mut bed, wr_id) = in_doubt(posted);
            let rail = bed.lane.core.transmit.segment(wr_id).rail;
            for _ in 0..2 {
                let failure = Failure { wr_id: Some(wr_id), is_message: false, error: lost() };
                bed.lane.failed(rail, failure);
                let core = &bed.lane.core;
                let segment = core.transmit.segment(wr_id);
                let in_flight = core.transmit.rail(rail).in_flight();
                assert_eq!((in_flight, segment.stage), (u32::from(!posted), Stage::Lost));
                assert!(!segment.waits().has(Waits::FABRIC) && core.failures.raised().is_empty());
            }
        }
    }

    #[test]
    fn what_was_lost_twice_is_listed_once() {
        let (mut bed, wr_id) = in_doubt(true);
        let Lane { core, recovery, .. } = &mut bed.lane;
        let recovery = recovery.as_deref_mut().unwrap();
        recovery.adopt(core);
        assert!(core.came_back(wr_id));
        core.lose(wr_id, false);
        recovery.adopt(core);
        assert_eq!(recovery.lost, [wr_id]);
    }

    #[test]
    fn what_was_refused_and_is_posted_again_before_that_is_seen_to_goes_on() {
        let mut bed = Bed::new(Setup { rails: 2, health: true, ..PLAIN });
        bed.fabric.fail_calls(PortCall::Post, 0, 1);
        bed.put(1);
        let wr_id = bed.to(1);
        assert_eq!(bed.lane.core.failures.raised().len(), 1);
        let Lane { core, staging, recovery, .. } = &mut bed.lane;
        let recovery = recovery.as_deref_mut().unwrap();
        recovery.adopt(core);
        recovery.go_on(core, staging);
        assert!(core.post_ready());
        bed.lane.see_to_events();
        assert_eq!(bed.lane.core.transmit.segment(wr_id).stage, Stage::Posted);
        bed.lane.audit().unwrap();
        bed.lane.core.peers.check(Pe(1)).unwrap();
    }

    #[test]
    fn a_failure_that_names_a_message_by_its_segment_has_no_effect() {
        let mut bed = Bed::new(PLAIN);
        bed.atomic(1, AtomicOp::Inc);
        bed.lane.core.give_segments(Pe(1));
        let wr_id = bed.to(1);
        let failure = Failure { wr_id: Some(wr_id), is_message: false, error: lost() };
        bed.lane.failed(RailId(0), failure);
        assert_eq!(bed.lane.core.transmit.segment(wr_id).stage, Stage::Sent);
        bed.lane.core.peers.check(Pe(1)).unwrap();
    }

    #[test]
    fn a_rail_is_emptied_before_it_is_closed() {
        let mut bed = Bed::new(PLAIN);
        let rail = RailId(0);
        bed.put(1);
        bed.pass_time();
        bed.fabric.forge_message(Pe(0), rail, b"of nobody");
        bed.lane.take_last(rail);
        let counters = bed.rail().counters();
        assert_eq!((counters.completed, counters.foreign), (1, 1));
    }

    #[test]
    fn a_message_without_a_number_that_is_refused() {
        for health in [true, false] {
            let mut bed = Bed::new(Setup { rails: 2, health, ..PLAIN });
            let core = &mut bed.lane.core;
            let path = core.connection_to(Pe(1)).unwrap().next;
            core.queue_unnumbered(Pe(1), Owed::Word { request_id: NO_TICKET, value: 0 });
            bed.fabric.fail_calls(PortCall::Send, 0, 1);
            assert!(bed.lane.send_due());
            let core = &mut bed.lane.core;
            let events = std::iter::from_fn(|| core.failures.next_event());
            let failed: Vec<RailId> = events.filter_map(|event| of_path(&event)).collect();
            assert_eq!(failed, if health { vec![path.rail] } else { vec![] });
            assert_eq!(core.peers.check(Pe(1)).is_ok(), health);
        }
    }

    fn of_path(event: &Event) -> Option<RailId> {
        match event {
            Event::PathFailed { rail, .. } => Some(*rail),
            _ => None,
        }
    }
}
