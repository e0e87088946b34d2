//! Lost segments: posted, or to be posted, on a path that has failed, so that nobody knows what
//! becomes of them.
//!
//! They wait here until [`crate::recovery::reissue`] posts them again. If one completes after all,
//! in the meantime, it has ended, as always.

use crate::ids::{Pe, WrId};
use crate::port::{Direction, Port};
use crate::posting::Core;
use crate::state::segment::Stage;
use crate::state::segment::waits::Waits;

impl<P: Port> Core<P> {
    pub(crate) fn lose(&mut self, wr_id: WrId, posted: bool) {
        // Its slot stays a stripe's until it ends; its rail is not waited for.
        self.take_load(wr_id, false);
        let stamp = self.failures.watchdog.stamp();
        let segment = self.transmit.segment_mut(wr_id);
        let (pe, direction) = (segment.pe, segment.fabric_direction());
        let waits = match (posted, direction) {
            (false, _) => Waits::NONE,
            (true, Direction::Read) => Waits::FABRIC,
            (true, Direction::Write) => Waits::FABRIC.and(Waits::TARGET),
        };
        let is_new = segment.lose(waits);
        segment.born = stamp;
        if let (true, Direction::Write, Some(connection)) =
            (is_new, direction, self.peers.find_mut(pe))
        {
            connection.lost_writes += 1;
            connection.fence();
        }
        self.failures.lost.push(wr_id);
        self.failures.watchdog.hurry();
    }

    pub(crate) fn wr_id_is_back(&mut self, wr_id: WrId) {
        let segment = self.transmit.segment_mut(wr_id);
        segment.set_waits(segment.waits().without(Waits::FABRIC));
    }

    pub(crate) fn came_back(&mut self, wr_id: WrId) -> bool {
        let segment = self.transmit.segment_mut(wr_id);
        let had = segment.waits().has(Waits::FABRIC);
        if had {
            segment.stage = Stage::Posted;
        }
        had
    }

    /// A write that was in doubt has ended.
    pub(in crate::posting) fn reissued_ended(&mut self, pe: Pe) {
        if let Some(connection) = self.peers.find_mut(pe) {
            connection.lost_writes = connection.lost_writes.saturating_sub(1);
        }
        self.failures.watchdog.hurry();
    }
}
