//! Faults of the fake fabric: links that are down, rails that fail.

use super::fault;
use super::flights::Done;
use super::state::World;
use engine::ids::{Pe, RailId, WrId};
use engine::port::Failure;

impl World {
    /// The proxy lane's rail: that of the first lane which the PE has opened.
    pub(crate) fn fail_rail(&mut self, pe: Pe, rail: RailId) {
        self.report(pe, rail, None, "the rail is gone");
    }

    /// A PE's rail speaks of a work-request id that its lane has not given out: it has failed.
    pub fn fail_unknown(&mut self, pe: Pe, rail: RailId, wr_id: WrId) {
        self.report(pe, rail, Some(wr_id), "nobody knows what");
    }

    fn report(&mut self, pe: Pe, rail: RailId, wr_id: Option<WrId>, text: &str) {
        let lane = self.lanes.iter().position(|owner| *owner == pe);
        let Some(lane) = lane else { panic!("{pe} has no lane") };
        let failure = Failure { wr_id, is_message: false, error: fault("poll", 5, text) };
        self.done[lane][rail.index()].push_back(Done::Failure(failure));
    }

    /// The messages that were delivered and fail all the same are reported with the next poll.
    pub fn report_failing(&mut self) {
        for (lane, rail, wr_id) in std::mem::take(&mut self.failing) {
            let error = fault("sending a message", 104, "failed by the script");
            let failure = Failure { wr_id: Some(wr_id), is_message: true, error };
            self.done[lane][rail.index()].push_back(Done::Failure(failure));
        }
    }
}
