//! The iteration of a lane, and what a lane that has failed still does.

use std::time::Duration;

use crate::error::EngineError;
use crate::ids::RailId;
use crate::lane::Lane;
use crate::lane::idle::is_idle;
use crate::port::packet::LongPacket;
use crate::port::{Incoming, Polled, Port};
use crate::rails::rail_ids;

/// How long, and for how many iterations, a lane that has failed tries to tell peers so.
const LAST_WORDS: (Duration, u32) = (Duration::from_millis(200), 1 << 16);

impl<P: Port> Lane<P> {
    /// One progress iteration. Returns whether it found anything to do.
    ///
    /// # Errors
    /// The lane's first failure, from then on at every call: data has been lost. In a box, so that
    /// the result fits into registers.
    #[inline]
    pub fn progress(&mut self) -> Result<bool, Box<EngineError>> {
        let busy = self.iterate();
        match self.core.failures.first() {
            None => Ok(busy),
            Some(_) => self.failed_iteration(),
        }
    }

    /// Whether a caller that hands over operations one by one had better hand over more before the
    /// next iteration, so that short ones on staged memory go together.
    #[inline]
    pub fn takes_more(&mut self) -> bool {
        self.staging.takes_more()
    }

    /// One progress iteration, whatever has failed before.
    #[inline]
    pub(crate) fn iterate(&mut self) -> bool {
        let mut busy = false;
        for rail in rail_ids(&self.core.rails) {
            if self.core.port.has_completions(rail) {
                busy |= self.core.take_completions(rail, &mut self.others);
            }
            if self.packet.is_some() && self.core.port.has_message(rail) {
                busy |= self.receive(rail);
            }
        }
        if self.has_due() {
            busy |= self.see_to_due();
        }
        if self.core.watchdog.is_due() {
            self.inspect();
        }
        busy
    }

    /// Whether anything but rails is to be seen to.
    #[inline(always)]
    fn has_due(&self) -> bool {
        self.core.has_due()
            || self.staging.is_in_use()
            || self.inbox.as_ref().is_some_and(|inbox| inbox.has_work())
    }

    /// Sees to what completions and messages have made possible, and to what waits.
    #[inline(never)]
    fn see_to_due(&mut self) -> bool {
        let mut busy = false;
        if self.core.has_settling() {
            self.core.settle();
        }
        if !self.core.ready.is_empty() || !self.core.ring.is_empty() {
            // Both may need the same queue of the fabric, and take turns for its last place.
            self.control_first = !self.control_first;
            if self.control_first && self.core.has_control() {
                busy |= self.core.send_control();
            }
            busy |= self.serve();
        }
        if self.inbox.as_ref().is_some_and(|inbox| inbox.has_work()) {
            busy |= self.serve_inbox();
        }
        if self.staging.has_work() || !self.core.staged.is_empty() {
            busy |= self.staging.pump(&mut self.core);
            if !self.core.due.is_empty() {
                self.execute_due();
                self.staging.flush(&mut self.core);
            }
        }
        if self.core.has_control() {
            busy |= self.core.send_control();
        }
        busy
    }

    #[inline]
    pub(crate) fn wait_iteration(&mut self, idle: &mut u32) {
        let busy = self.iterate();
        if is_idle(idle, busy) {
            self.core.port.relax();
            self.core.watchdog.count_yielded();
        }
    }

    /// Reads the clock, and looks at rails and peers when it is time.
    #[cold]
    fn inspect(&mut self) {
        let now = self.core.port.now();
        if !self.core.watchdog.starts(now) {
            return;
        }
        for rail in rail_ids(&self.core.rails) {
            if let Some(error) = self.core.port.trouble(rail) {
                self.core.fail_rail(rail, error);
            }
        }
        self.core.regions.sync();
        // Unless somebody asks, executed messages would seem to be stuck.
        self.core.want_acks();
        while let Some(pe) = self.core.port.ended_process() {
            self.core.watchdog.note_ended(pe);
        }
        for pe in self.core.watchdog.take_ended() {
            // Others may wait for it though nothing is under way with it.
            if let (false, Ok(at)) = (self.lets_peers_end, self.core.open(pe)) {
                self.core.fail_peer(at, EngineError::PeerEnded { pe });
            }
        }
        self.staging.take_back(&mut self.core);
        self.core.look(self.staging.moved());
    }

    /// The lane has failed: user threads need not wait any longer, and peers hear of it.
    #[cold]
    fn failed_iteration(&mut self) -> Result<bool, Box<EngineError>> {
        let Some(failed) = self.core.failures.first().cloned() else { return Ok(true) };
        if let Some(inbox) = &self.inbox {
            inbox.fail(&failed);
        }
        self.last_words();
        Err(Box::new(failed))
    }

    /// Sends what is due and lets copies end, once: the caller may never iterate the lane again,
    /// and peers would wait for their deadlines.
    fn last_words(&mut self) {
        if std::mem::replace(&mut self.has_said_last_words, true) {
            return;
        }
        let (patience, iterations) = LAST_WORDS;
        let (start, mut idle) = (self.core.port.now(), 0);
        for _ in 0..iterations {
            let waited = self.core.port.now().saturating_sub(start);
            let is_said = !self.core.has_control() && !self.staging.is_copying();
            if is_said || u128::from(waited) >= patience.as_nanos() {
                return;
            }
            self.wait_iteration(&mut idle);
        }
    }

    /// Before the end: lets what the fabric has under way end, for at most so long, and starts
    /// nothing. Returns whether all of it has ended.
    ///
    /// Providers may crash when an endpoint is closed whose operations a peer then cuts off
    /// (`ofi_rxm` of libfabric 1.17 does).
    pub fn drain_before_close(&mut self, patience: Duration) -> bool {
        let start = self.core.port.now();
        while self.core.rails.iter().any(|rail| rail.in_flight() != 0) {
            let waited = self.core.port.now().saturating_sub(start);
            if u128::from(waited) >= patience.as_nanos() {
                return false;
            }
            for rail in rail_ids(&self.core.rails) {
                self.drop_completions(rail);
            }
            self.core.port.relax();
        }
        true
    }

    /// Takes what has come to a rail without any effect: the memory that it is about may be gone.
    fn drop_completions(&mut self, rail: RailId) {
        let Self { core, .. } = self;
        let (segments, of) = (&mut core.segments, &mut core.rails[rail.index()]);
        let mut end = |index: usize| {
            let is_known = segments.owner(index).is_some();
            if is_known {
                segments.free(index);
                of.end(1);
            }
            is_known
        };
        if let Polled::Failed(failure) = core.port.drain(rail, &mut end) {
            if let Some(wr_id) = failure.wr_id.filter(|_| !failure.is_message) {
                end(wr_id.index());
            }
        }
        let mut packet = LongPacket::EMPTY;
        while self.packet.is_some()
            && self.core.port.receive(rail, &mut packet) != Incoming::Nothing
        {}
    }
}
