//! The audit of a lane: whatever it counts, or lists, beside the things themselves, told anew from
//! these.
//!
//! Between two calls of the lane all of it is right, whatever is under way, and whatever has
//! failed. What belongs together changes in many places, so a mistake in one of them shows itself
//! late, and somewhere else. It takes a walk through all tables, and is for tests, and for a lane
//! that has stopped.

use crate::lane::Lane;
use crate::port::Port;
use crate::state::discrepancy::Discrepancy;

impl<P: Port> Lane<P> {
    /// Whether everything that is counted is there, and nothing else.
    ///
    /// # Errors
    /// The first thing that differs.
    pub fn audit(&self) -> Result<(), Discrepancy> {
        let Self { core, signals, pool, staging, pending_queue, inbox, .. } = self;
        let has_pending = !pending_queue.is_empty();
        let raised = core.failures.raised();
        let found = core.transmit.tally(&core.peers, has_pending, &raised)?;
        let table = core.transmit.table();
        let in_pool = pool.audit(table)?;
        let reserved = found.all.pooled + staging.audit(table, &raised)?;
        signals.audit(core)?;
        pending_queue
            .audit(core.peers.iter().filter(|s| s.has_pending()).map(|s| s.pe).collect())?;
        core.transmit.audit(&found, reserved, in_pool + u32::from(has_pending))?;
        core.peers.audit(&core.transmit, &found)?;
        core.failures.audit(&core.transmit)?;
        inbox.as_deref().map_or(Ok(()), |inbox| inbox.audit())
    }
}

#[cfg(test)]
mod tests {
    use crate::ids::Pe;
    use crate::posting::Core;
    use crate::posting::tests::{Bed, PLAIN, Setup, lost};

    #[test]
    fn an_audit_finds_what_is_not_there() {
        let wrongs: [fn(&mut Core<crate::fake::FakePort>); 6] = [
            |core| assert!(core.transmit.take().is_some()),
            |core| assert!(core.peers.take_message()),
            |core| core.transmit.ops_mut().add(0),
            |core| core.peers.find_mut(Pe(1)).unwrap().lost_writes += 1,
            |core| core.peers.find_mut(Pe(1)).unwrap().channel().unsent += 1,
            |core| core.transmit.reserve(),
        ];
        for (at, wrong) in wrongs.into_iter().enumerate() {
            let mut bed = Bed::new(PLAIN);
            bed.put(1);
            bed.lane.begin_op();
            bed.lane.core.peers.find_mut(Pe(1)).unwrap().channel();
            bed.lane.audit().unwrap();
            wrong(&mut bed.lane.core);
            assert!(bed.lane.audit().is_err(), "{at}");
        }
    }

    #[test]
    fn a_batch_has_the_segments_that_it_counts_and_what_is_pending() {
        for has_pending in [false, true] {
            let mut bed = Bed::new(PLAIN);
            let batch = bed.lane.core.transmit.batches_mut().start().unwrap();
            let before = bed.lane.core.transmit.batches_mut().enter(batch);
            (0..2).for_each(|_| bed.put(2));
            bed.lane.core.transmit.batches_mut().enter(before);
            if has_pending {
                bed.enqueue_pending(1);
            }
            bed.lane.audit().unwrap();
            let batches = bed.lane.core.transmit.batches_mut();
            batches.begin(batch);
            assert_eq!(bed.lane.audit().is_ok(), has_pending);
            bed.lane.core.transmit.batches_mut().end(batch, 2);
            bed.lane.audit().unwrap_err();
        }
    }

    #[test]
    fn an_event_names_its_segment() {
        let mut bed = Bed::new(Setup { rails: 2, health: true, ..PLAIN });
        bed.put(1);
        let wr_id = bed.to(1);
        bed.lane.core.fail_segment(wr_id, lost());
        assert_eq!(bed.lane.core.failures.raised(), [wr_id]);
    }
}
