//! Faults of the fake fabric: links that are down, rails that fail and are opened again.

use super::error::fault;
use super::flights::Done;
use super::letters::{Letter, Mail};
use super::state::World;
use crate::fake::script::PortCall;
use engine::ids::{Pe, RailId, WrId};
use engine::port::{Failure, PortError};

impl World {
    /// The proxy lane's rail: that of the first lane which the PE has opened.
    pub(in crate::fake) fn fail_rail(&mut self, pe: Pe, rail: RailId) {
        self.report(pe, rail, None, "the rail is gone");
    }

    pub(in crate::fake) fn fail_unknown(&mut self, pe: Pe, rail: RailId, wr_id: WrId) {
        self.report(pe, rail, Some(wr_id), "nobody knows what");
    }

    fn report(&mut self, pe: Pe, rail: RailId, wr_id: Option<WrId>, text: &str) {
        let lane = self.lanes.iter().position(|owner| *owner == pe);
        let Some(lane) = lane else { panic!("{pe} has no lane") };
        let failure = Failure { wr_id, is_message: false, error: fault("poll", 5, text) };
        self.done[lane][rail.index()].push_back(Done::Failure(failure));
    }

    /// Closes a rail and opens it again: gives its generation, for that of a proxy lane.
    pub(in crate::fake) fn reset(
        &mut self,
        lane: usize,
        pe: Pe,
        rail: RailId,
    ) -> Result<u32, PortError> {
        if self.refuses_resets {
            return Err(fault("reset", 5, "refused by the script"));
        }
        self.call(PortCall::Reset)?;
        self.resets += 1;
        self.done[lane][rail.index()].clear();
        for at in 0..self.flights.len() {
            if (self.flights[at].lane, self.flights[at].rail) == (lane, rail) {
                self.orphan(at);
            }
        }
        // Some of what was sent is lost, and some arrives all the same.
        let mut letters = std::mem::take(&mut self.letters);
        // The filter draws from what the letters were taken out of.
        let links = std::mem::take(&mut self.links);
        letters.filter(&links, |letter| {
            let is_message = matches!(letter.mail, Mail::Message(_));
            let sent = is_message && (letter.from, letter.rail) == (pe, rail);
            !sent || self.draw() % 2 == 0
        });
        (self.letters, self.links) = (letters, links);
        if !self.is_proxy(lane, pe) {
            return Ok(0);
        }
        self.inboxes.remove(&(pe, rail));
        let generation = self.generations.entry((pe, rail)).or_default();
        *generation += 1;
        Ok(*generation)
    }

    /// Messages that were delivered are reported as failed.
    pub(in crate::fake) fn report_failing(&mut self) {
        for (lane, rail, wr_id) in std::mem::take(&mut self.failing) {
            let error = fault("sending a message", 104, "failed by the script");
            let failure = Failure { wr_id: Some(wr_id), is_message: true, error };
            self.done[lane][rail.index()].push_back(Done::Failure(failure));
        }
    }

    /// What is under way where nothing goes is reported as failed, after a while, messages too.
    pub(in crate::fake) fn fail_dead_links(&mut self) {
        if !self.dead_links_fail {
            return;
        }
        for at in 0..self.flights.len() {
            let flight = &self.flights[at];
            let waits = flight.orphan || !flight.rung || self.links.is_stalled(flight.to);
            if !waits && flight.due + 1_000_000 <= self.now && !self.may_move(flight) {
                let (lane, rail, wr_id) = (flight.lane, flight.rail, flight.wr_id);
                let error = fault("delivery", 110, "the link is dead");
                let failure = Failure { wr_id: Some(wr_id), is_message: false, error };
                self.done[lane][rail.index()].push_back(Done::Failure(failure));
                self.orphan(at);
            }
        }
        let (now, links) = (self.now, &self.links);
        let fails = |letter: &Letter| letter.due + 1_000_000 <= now && !links.is_stalled(letter.to);
        for (lane, rail, wr_id) in self.letters.tell(fails) {
            let error = fault("sending a message", 110, "the link is dead");
            let failure = Failure { wr_id: Some(wr_id), is_message: true, error };
            self.done[lane][rail.index()].push_back(Done::Failure(failure));
        }
    }
}
