//! The audit of transmission: rails, queues and room, beside the segments. See
//! [`Lane::audit`](crate::lane::Lane::audit).

use crate::ids::{RailId, WrId};
use crate::port::Port;
use crate::posting::transmit::Transmit;
use crate::state::audit::{Found, tally};
use crate::state::discrepancy::{Discrepancy, same};
use crate::state::segment::Stage;
use crate::state::segment::table::SegmentTable;

impl<P: Port> Transmit<P> {
    /// The segments, for the audits of others.
    pub(crate) fn table(&self) -> &SegmentTable {
        &self.segments
    }

    /// What the segments in use say. Those that were `raised` are in no queue; batches have more
    /// than segments where something is pending.
    pub(crate) fn tally(&self, has_pending: bool, raised: &[WrId]) -> Result<Found, Discrepancy> {
        self.segments.audit(has_pending)?;
        let found = tally(&self.segments, self.rails.len(), raised);
        self.ops.audit(&self.segments, found.all.chained)?;
        Ok(found)
    }

    /// What it keeps. So many segments are set aside, and so many operations wait for rails, or are
    /// pending.
    pub(crate) fn audit(
        &self,
        found: &Found,
        reserved: u32,
        waiting: u32,
    ) -> Result<(), Discrepancy> {
        same("segments set aside in use", self.reserved, reserved)?;
        same("stripes", self.stripes.used, found.all.stripes)?;
        let mut queued = 0;
        for rail in self.rail_ids() {
            queued += self.audit_rail(rail, found).map_err(|differs| differs.of(rail))?;
        }
        same("segments in queues", queued, found.all.ready)?;
        same("what is ready", self.ready, queued + waiting)
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
