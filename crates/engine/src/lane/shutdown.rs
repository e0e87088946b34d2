//! Shutdown of a lane that has failed: what it still has to say, and what it has under way.

use std::time::Duration;

use crate::ids::RailId;
use crate::lane::Lane;
use crate::port::packet::LongPacket;
use crate::port::{Incoming, Port};

const LAST_WORDS: (Duration, u32) = (Duration::from_millis(200), 1 << 16);

impl<P: Port> Lane<P> {
    /// Sends refusals and answers that are due, and lets copies end. Who hears of the lane's
    /// failure may never run it again: peers would wait for their deadlines, and memory that is
    /// copied could not be given back. What does not come to its end in time stays, and is not
    /// waited for a second time.
    #[cold]
    pub(crate) fn last_words(&mut self) {
        if std::mem::replace(&mut self.has_waited, true) {
            return;
        }
        let (patience, iterations) = LAST_WORDS;
        let (start, mut idle) = (self.core.transmit.now(), 0);
        for _ in 0..iterations {
            let waited = self.core.transmit.now().saturating_sub(start);
            let said = self.core.peers.has_no_answers() && !self.staging.is_copying();
            if said || u128::from(waited) >= patience.as_nanos() {
                return;
            }
            self.wait_iteration(&mut idle);
        }
    }

    /// Before the end: lets what the fabric has under way come to its end, for at most so long, and
    /// starts nothing. Whether all of it has. Only after a failure is there anything.
    ///
    /// Providers may crash when an endpoint is closed whose operations a peer then cuts off
    /// (`ofi_rxm` of libfabric 1.17 does).
    pub fn drain_before_close(&mut self, patience: Duration) -> bool {
        let under_way =
            |lane: &Self| lane.core.transmit.rails().iter().any(|rail| rail.in_flight() != 0);
        let start = self.core.transmit.now();
        while under_way(self) {
            let waited = self.core.transmit.now().saturating_sub(start);
            if u128::from(waited) >= patience.as_nanos() {
                return false;
            }
            for rail in self.core.transmit.rail_ids() {
                self.forget_ended(rail);
            }
            self.core.transmit.port_mut().relax();
        }
        true
    }

    fn forget_ended(&mut self, rail: RailId) {
        self.core.transmit.forget_ended(rail);
        let mut packet = LongPacket::EMPTY;
        let port = self.core.transmit.port_mut();
        while self.receives && port.receive(rail, &mut packet) != Incoming::Nothing {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Pe;
    use crate::posting::tests::{Bed, PLAIN, Setup, failed};
    use crate::state::messages::unnumbered::{NO_TICKET, Owed};

    #[test]
    fn a_lane_that_has_failed_waits_for_what_it_has_to_say() {
        let mut bed = Bed::new(PLAIN);
        bed.lane.core.fail_lane(failed(1));
        bed.lane.progress().unwrap_err();
        assert!(!bed.lane.has_waited, "nothing is due");
        bed.lane.core.connection_to(Pe(1)).unwrap();
        bed.lane.core.queue_unnumbered(Pe(1), Owed::Pulled { request_id: NO_TICKET });
        bed.fabric.refuse(Pe(1), true);
        let start = bed.fabric.now();
        for _ in 0..2 {
            bed.lane.progress().unwrap_err();
            assert!(bed.lane.has_waited && !bed.lane.core.peers.has_no_answers());
            let waited = Duration::from_nanos(bed.fabric.now() - start);
            assert!((LAST_WORDS.0..2 * LAST_WORDS.0).contains(&waited), "{waited:?}");
        }

        // All is said.
        let mut bed = Bed::new(PLAIN);
        bed.fabric.trace_calls();
        bed.lane.last_words();
        assert_eq!(bed.fabric.calls(), []);
    }

    #[test]
    fn what_is_under_way_is_waited_for_before_the_end() {
        let mut bed = Bed::new(PLAIN);
        assert!(bed.lane.drain_before_close(Duration::ZERO), "nothing is under way");
        bed.put(1);
        bed.pass_time();
        assert!(!bed.lane.drain_before_close(Duration::ZERO), "it has ended, but there is no time");
        assert!(bed.lane.drain_before_close(Duration::from_nanos(1)));
    }

    #[test]
    fn drain_ends_with_the_last_operation() {
        let mut bed = Bed::new(Setup { rails: 2, ..PLAIN });
        (0..6).for_each(|_| bed.put(1));
        let in_flight =
            |bed: &Bed| bed.lane.core.transmit.rails().iter().map(|rail| rail.in_flight()).sum();
        let under_way: u32 = in_flight(&bed);
        assert_eq!(under_way, 6);
        assert!(bed.lane.drain_before_close(Duration::from_secs(1)));
        let left: u32 = in_flight(&bed);
        assert_eq!((left, bed.fabric.in_flight()), (0, 0));
    }
}
