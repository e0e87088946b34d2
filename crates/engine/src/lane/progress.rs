//! Progress iteration of a lane, and the last acts of a lane that has failed.

use std::time::Duration;

use crate::error::EngineError;
use crate::ids::RailId;
use crate::lane::Lane;
use crate::lane::idle::is_idle;
use crate::port::packet::LongPacket;
use crate::port::{Incoming, Polled, Port};

/// Time and number of iterations for which a failed lane tries to tell its peers.
const LAST_MESSAGES: (Duration, u32) = (Duration::from_millis(200), 1 << 16);

impl<P: Port> Lane<P> {
    /// Makes one progress iteration. Returns whether it found anything to do.
    ///
    /// # Errors
    /// The lane's first failure, at every later call too: data is lost. Boxed, to fit registers.
    #[inline]
    pub fn progress(&mut self) -> Result<bool, Box<EngineError>> {
        let busy = self.iterate();
        match self.core.failures.first() {
            None => Ok(busy),
            Some(_) => self.failed_iteration(),
        }
    }

    /// Returns true if the caller should submit more operations before the next iteration, so that
    /// short ones on staged memory share a copy.
    #[inline]
    pub fn is_collecting(&mut self) -> bool {
        let Self { staging, core, .. } = self;
        staging.is_collecting(|| core.port.now())
    }

    /// Makes one progress iteration, whatever has failed before.
    #[inline]
    pub(crate) fn iterate(&mut self) -> bool {
        self.pulse.beat();
        let mut busy = false;
        for rail in self.core.rails.ids() {
            if self.core.port.has_completions(rail) {
                busy |= self.core.take_completions(rail, &mut self.others);
            }
            if self.packet.is_some() && self.core.port.has_message(rail) {
                busy |= self.receive(rail);
            }
        }
        if self.has_pending() {
            busy |= self.run_pending();
        }
        if self.core.watchdog.is_due() {
            self.inspect();
        }
        self.pulse.beat();
        busy
    }

    #[inline(always)]
    fn has_pending(&self) -> bool {
        self.core.has_pending()
            || self.staging.is_in_use()
            || self.inbox.as_ref().is_some_and(|inbox| inbox.has_work())
    }

    #[inline(never)]
    fn run_pending(&mut self) -> bool {
        let mut busy = false;
        // First, since it makes peers ready, which are served next.
        if self.core.has_settling() {
            self.core.settle();
        }
        // All may need the transmit queue's last entry: who got it lets the others go first.
        busy |= self.core.send_refused_control();
        if self.staged_first {
            let posted = self.staging.post_outgoing(&mut self.core);
            self.staged_first = !posted;
            busy |= posted;
        }
        if !self.core.ready.is_empty() || !self.core.ring.is_empty() {
            let served = self.serve();
            self.core.take_turn(served);
            self.staged_first |= served && self.staging.has_outgoing();
            busy |= served;
        }
        if self.inbox.as_ref().is_some_and(|inbox| inbox.has_work()) {
            busy |= self.serve_inbox();
        }
        if self.staging.has_work() || !self.core.staging_events.is_empty() {
            busy |= self.staging.progress(&mut self.core);
            if !self.core.executable.is_empty() {
                // Copies that have ended may have reached marks; acknowledgements leave below.
                self.execute_held();
                self.staging.flush_executed(&mut self.core);
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
            // The clock is read sooner: the iteration may have taken a scheduler's time slice.
            self.core.watchdog.count_yielded();
        }
    }

    #[cold]
    fn inspect(&mut self) {
        let now = self.core.port.now();
        if !self.core.watchdog.tick(now) {
            return;
        }
        for rail in self.core.rails.ids() {
            if let Some(error) = self.core.port.endpoint_error(rail) {
                self.core.fail_rail(rail, error);
            }
        }
        self.core.regions.sync();
        // An executed message ends with its acknowledgement, and seems stuck if none is requested.
        self.core.request_acks();
        while let Some(pe) = self.core.port.ended_process() {
            self.core.watchdog.add_ended(pe);
        }
        for pe in self.core.watchdog.take_ended() {
            // Other PEs may wait for it even if this lane has nothing in flight.
            if !self.allows_peer_exit && self.core.open(pe).is_ok() {
                self.core.fail_peer(pe, EngineError::PeerEnded { pe });
            }
        }
        self.staging.release_ended(&mut self.core);
        self.core.check_peers(self.staging.last_progress());
    }

    #[cold]
    fn failed_iteration(&mut self) -> Result<bool, Box<EngineError>> {
        // User threads stop waiting, and peers learn of the failure.
        let Some(failed) = self.core.failures.first().cloned() else { return Ok(true) };
        if let Some(inbox) = &self.inbox {
            inbox.fail(&failed);
        }
        self.send_last_messages();
        Err(Box::new(failed))
    }

    fn send_last_messages(&mut self) {
        // The caller may never iterate the lane again, and leave its peers to their deadlines.
        if std::mem::replace(&mut self.has_sent_last_messages, true) {
            return;
        }
        let (patience, iterations) = LAST_MESSAGES;
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

    /// Waits, for at most `patience`, until nothing is in flight; starts nothing. Returns whether
    /// nothing is. To be called before the port is closed.
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
            for rail in self.core.rails.ids() {
                self.drop_completions(rail);
            }
            self.core.port.relax();
        }
        true
    }

    fn drop_completions(&mut self, rail: RailId) {
        // Completions and messages have no effect here: the memory that they name may be gone.
        let Self { core, .. } = self;
        let (segments, of) = (&mut core.segments, &mut core.rails[rail]);
        let mut end = |index: usize| {
            let is_known = segments.account(index).is_some();
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
        // All messages have to be taken before the rail is polled again.
        let mut packet = LongPacket::EMPTY;
        while self.packet.is_some()
            && self.core.port.receive(rail, &mut packet) != Incoming::Nothing
        {}
    }
}
