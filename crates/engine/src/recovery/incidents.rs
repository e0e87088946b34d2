//! Incidents: what has failed on a path, as the lane hears of it.

use log::debug;

use crate::ids::{Pe, RailId, WrId};
use crate::port::{Failure, Port, PortError};
use crate::posting::Core;
use crate::posting::failures::{CONTROL, local_fault};
use crate::recovery::Recovery;
use crate::state::segment::Stage;

const NEWS: u32 = 12;

impl Recovery {
    pub(crate) fn refused<P: Port>(&mut self, core: &mut Core<P>, wr_id: WrId, error: PortError) {
        self.adopt(core);
        let segment = core.transmit.segment(wr_id);
        let (pe, rail, stage) = (segment.pe, segment.rail, segment.stage);
        let is_message = segment.message().is_some();
        if !is_message && stage != Stage::Lost {
            // It is on its way again: what it did then is over.
            return;
        }
        let others = self.suspect(core, pe, rail, &error.to_string(), true);
        match (is_message, others) {
            (true, true) => {
                let rail = core.peers.find(pe).map_or(rail, |connection| connection.next.rail);
                core.transmit.segment_mut(wr_id).rail = rail;
                core.transmit.queue(wr_id, rail);
            }
            (true, false) => core.end_failed(wr_id, error),
            // It is among those that are posted again.
            (false, true) => {}
            (false, false) => self.wait_for_peer(core, wr_id, &error),
        }
    }

    pub(crate) fn path_failed<P: Port>(
        &mut self,
        core: &mut Core<P>,
        pe: Pe,
        rail: RailId,
        error: &PortError,
    ) {
        if !self.suspect(core, pe, rail, &error.to_string(), true) {
            let failed = local_fault(pe, error);
            core.fail_connection(pe, failed);
        }
    }

    /// The only path to a peer has failed. It may be that the peer has opened its rail again, and
    /// the news are on their way.
    fn wait_for_peer<P: Port>(&mut self, core: &mut Core<P>, wr_id: WrId, error: &PortError) {
        let now = core.failures.stamp();
        let segment = core.transmit.segment(wr_id);
        let (pe, rail) = (segment.pe, segment.rail);
        let failed = core.segment_error(wr_id, rail, error.clone());
        let remote = core.transmit.remote_rail(pe, rail);
        let until = now + 2 * self.timeout + NEWS;
        let peer = self.peer(pe);
        peer.grace.get_or_insert_with(|| (until, Box::new(failed)));
        peer.want(remote);
    }

    pub(crate) fn failed_message<P: Port>(
        &mut self,
        core: &mut Core<P>,
        rail: RailId,
        failure: &Failure,
    ) {
        let error = &failure.error;
        debug!(target: "TRANSPORT", "a message over {rail}: {error}");
        let Some(wr_id) = failure.wr_id.filter(|wr_id| *wr_id != CONTROL) else { return };
        let sent = core.sent_to(wr_id);
        // An answer, or what has told of an operation that is over, is no segment's.
        let Some((pe, sent_over)) = sent.or_else(|| core.peers.unacknowledged(wr_id)) else {
            return;
        };
        if sent_over == rail && !self.suspect(core, pe, rail, &error.to_string(), true) {
            self.lose_messages(core, pe, |over| over == rail);
        }
    }
}
