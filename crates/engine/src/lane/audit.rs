//! The audit of a lane: whatever it counts, or lists, beside the things themselves, told anew from these.
//!
//! Between two calls of the lane all of it is right, whatever is under way, and whatever has failed. What belongs together
//! changes in many places, so a mistake in one of them shows itself late, and somewhere else. It takes a walk
//! through all tables, and is for tests, and for a lane that has stopped.

use crate::ids::RailId;
use crate::lane::Lane;
use crate::port::Port;
use crate::posting::{Core, Event};
use crate::state::audit::{Found, OfPeer, tally};
use crate::state::discrepancy::{Discrepancy, same};
use crate::state::fabric_atomics::FabricAtomics;
use crate::state::rail::Rail;
use crate::state::segment::Stage;

impl<P: Port> Lane<P> {
    /// Whether everything that is counted is there, and nothing else.
    ///
    /// # Errors
    /// The first thing that differs.
    pub fn audit(&self) -> Result<(), Discrepancy> {
        let Self { core, signals, pool, staging, pending_queue, inbox, .. } = self;
        let raised: Vec<_> = core.events.iter().filter_map(Event::wr_id).collect();
        core.segments.audit(!pending_queue.is_empty())?;
        let found = tally(&core.segments, core.rails.len(), &raised);
        core.ops.audit(&core.segments, found.all.chained)?;
        let in_pool = pool.audit(&core.segments)?;
        let reserved = found.all.pooled + staging.audit(&core.segments, &raised)?;
        same("segments set aside in use", core.reserved, reserved)?;
        signals.audit(core)?;
        pending_queue
            .audit(core.connections.iter().filter(|s| s.has_pending()).map(|s| s.pe).collect())?;
        core.audit(&found, in_pool + u32::from(!pending_queue.is_empty()))?;
        inbox.as_deref().map_or(Ok(()), |inbox| inbox.audit())
    }
}

impl<P: Port> Core<P> {
    /// What the core keeps. So many operations wait for rails, or are pending.
    fn audit(&self, found: &Found, waiting: u32) -> Result<(), Discrepancy> {
        same("stripes", self.stripes.used, found.all.stripes)?;
        let atomics = self.atomics.as_deref().map_or(0, FabricAtomics::used);
        same("atomics of the fabric", atomics, found.all.fabric_atomics)?;
        let nothing = OfPeer { ahead: vec![0; self.rails.len()], ..OfPeer::default() };
        for connection in self.connections.iter() {
            let of_peer = found.peers.get(&connection.pe).unwrap_or(&nothing);
            connection
                .audit(&self.segments, of_peer)
                .map_err(|differs| differs.of(connection.pe))?;
        }
        let connections = self.connections.iter();
        let channels = connections.filter_map(|s| Some((s.channel.as_deref()?, s.error.is_some())));
        let channels: Vec<_> = channels.collect();
        let unsent = found.peers.values().map(|of_peer| of_peer.unsent).sum();
        let channel_of = |pe| self.connections.find(pe)?.channel.as_deref();
        self.messages.audit(&channels, channel_of, &found.all, unsent)?;
        for connection in self.connections.iter() {
            let owed = connection.channel.as_deref().map_or(0, |channel| channel.owed as usize);
            let listed = self.unnumbered.iter().filter(|due| due.pe == connection.pe).count();
            same("messages without numbers", owed, listed)
                .map_err(|differs| differs.of(connection.pe))?;
        }
        let listed = channels.iter().filter(|(channel, _)| channel.in_control).count();
        same("peers to whom control messages are due", self.control.len(), listed)?;
        for connection in self.connections.iter() {
            let of_rail = |rail: &Rail<P::Fast>| rail.blocked.len_of(connection.pe);
            let blocked: usize = self.rails.iter().map(of_rail).sum();
            same("blocked segments", connection.blocked() as usize, blocked)
                .map_err(|differs| differs.of(connection.pe))?;
        }
        let mut queued = 0;
        for rail in self.rail_ids() {
            queued += self.audit_rail(rail, found).map_err(|differs| differs.of(rail))?;
        }
        same("segments in queues", queued, found.all.ready)?;
        same("what is ready", self.ready, queued + waiting)?;
        let orphans = self.regions.orphans().of(self.regions.kind());
        same("orphans", self.orphans as usize, orphans.len())?;
        let over = orphans.iter().filter(|wr_id| !self.segments[wr_id.0].is_out()).count();
        same("orphans that have ended", over, 0)
    }

    /// How many segments are in the queue of a rail.
    fn audit_rail(&self, rail: RailId, found: &Found) -> Result<u32, Discrepancy> {
        let state = &self.rails[rail.index()];
        let (in_flight, ahead) = found.rails[rail.index()];
        same("segments in flight", state.in_flight(), in_flight)?;
        same("bytes ahead", self.balance.ahead(rail), ahead)?;
        state.blocked.audit("blocked segments of a rail")?;
        for (pe, index) in state.blocked.iter() {
            let segment = &self.segments[*index];
            let is = (segment.pe, segment.stage);
            same("whom a blocked segment is for, and its stage", (pe, Stage::Ready), is)?;
        }
        Ok(state.audit(&self.segments)? + state.blocked.len() as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Pe;
    use crate::posting::tests::{Bed, PLAIN, Setup, lost};

    /// Each in a book of its own.
    #[test]
    fn an_audit_finds_what_is_not_there() {
        let wrongs: [fn(&mut Core<crate::fake::FakePort>); 6] = [
            |core| assert!(core.segments.take().is_some()),
            |core| assert!(core.messages.take(0).is_some()),
            |core| core.ops.add(0),
            |core| core.connections.find_mut(Pe(1)).unwrap().lost_writes += 1,
            |core| core.connections.find_mut(Pe(1)).unwrap().channel().unsent += 1,
            |core| core.reserved += 1,
        ];
        for (at, wrong) in wrongs.into_iter().enumerate() {
            let mut bed = Bed::new(PLAIN);
            bed.put(1);
            bed.lane.begin_op();
            bed.lane.core.connections.find_mut(Pe(1)).unwrap().channel();
            bed.lane.audit().unwrap();
            wrong(&mut bed.lane.core);
            assert!(bed.lane.audit().is_err(), "{at}");
        }
    }

    /// What is pending is of a batch as well, but no segment.
    #[test]
    fn a_batch_has_the_segments_that_it_counts_and_what_is_pending() {
        for has_pending in [false, true] {
            let mut bed = Bed::new(PLAIN);
            let batch = bed.lane.core.segments.batches.start().unwrap();
            let before = bed.lane.core.segments.batches.enter(batch);
            (0..2).for_each(|_| bed.put(2));
            bed.lane.core.segments.batches.enter(before);
            if has_pending {
                bed.enqueue_pending(1);
            }
            bed.lane.audit().unwrap();
            let batches = &mut bed.lane.core.segments.batches;
            batches.begin(batch);
            assert_eq!(bed.lane.audit().is_ok(), has_pending);
            bed.lane.core.segments.batches.end(batch, 2);
            bed.lane.audit().unwrap_err();
        }
    }

    /// What waits for recovery is in no queue.
    #[test]
    fn an_event_names_its_segment() {
        let mut bed = Bed::new(Setup { rails: 2, health: true, ..PLAIN });
        bed.put(1);
        let wr_id = bed.to(1);
        bed.lane.core.fail_segment(wr_id, lost());
        assert_eq!(bed.lane.core.events.len(), 1);
        assert_eq!(bed.lane.core.events[0].wr_id(), Some(wr_id));
    }
}
