//! Reset of rails: closed and opened again, ours and those of peers.
//!
//! A rail is closed because a peer has in doubt writes to it, or because work-request ids that are
//! on it do not come back. Nothing of what was on it happens after that. It has
//! another *generation* then, and perhaps another address. Those PEs are told that this one has
//! talked to, or that have talked to it, again and again until they say that they know. Others are
//! told when they ask: who finds that nothing comes of what it sends to a rail asks whether the PE
//! lives, and hears the news in answer. So a reset costs nothing for PEs that have nothing to do
//! with this one.
//!
//! # Why it disturbs little, and comes to an end
//! Before, nothing more is posted on it, and what is under way to peers ends, unless it does not
//! within the timeout. So only paths that do not work lose writes, and cause their targets to close
//! rails of theirs. What peers have under way to the rail is cut: they learn that the generation is
//! another one already, and post it again without more ado.
//!
//! While a rail waits to be closed, it is polled as always, so two PEs that close rails at the same
//! time do not wait for one another longer than the timeout.
//!
//! Where the fabric does not give back the work-request ids of what a peer's reset has cut off,
//! only a reset of the rail that it was on does, which cuts off what the peer has sent there
//! meanwhile, and so on. So the next one waits longer than it takes to find that a path is silent:
//! what the peer has sent again has come through by then, or goes another way. A segment that is
//! cut off too often ends its connection all the same.

use std::collections::BTreeSet;

use log::{info, warn};

use crate::error::EngineError;
use crate::ids::{Pe, RailId};
use crate::port::{Port, PortError};
use crate::posting::Core;
use crate::recovery::Recovery;
use crate::recovery::health::{Answer, Closing, PathHealth};
use crate::state::segment::{Segment, Stage};

/// Most iterations in which what has come in is taken before a rail is closed.
pub(crate) const LAST_ITERATIONS: u32 = 4096;

impl Recovery {
    pub(crate) fn close_rail<P: Port>(&mut self, core: &mut Core<P>, rail: RailId, cause: Pe) {
        let since = core.failures.stamp();
        let mine = &mut self.mine[rail.index()];
        if mine.closing.is_none() && !mine.fixed {
            mine.closing = Some(Closing { since, cause });
            core.transmit.pause(rail);
            core.failures.hurry();
        }
    }

    /// One of our rails has failed as a whole. It is closed and opened again, but no more often
    /// than a peer may want that: what is kept of each time may be much, and whoever brings it
    /// about may do so for ever. Else what is on it goes another way when nothing of it ends.
    pub(crate) fn rail_failed<P: Port>(
        &mut self,
        core: &mut Core<P>,
        rail: RailId,
        error: &PortError,
    ) {
        let (now, mine) = (core.failures.stamp(), &mut self.mine[rail.index()]);
        if mine.closing.is_some() || mine.fixed {
            return;
        }
        let closes = mine.failures.take(now);
        if let Some(unsaid) = core.may_say() {
            let what =
                if closes { "is closed and opened again" } else { "was closed often enough" };
            warn!(target: "TRANSPORT", "{rail} has failed, and {what}: {error}{unsaid}");
        }
        if closes {
            self.close_rail(core, rail, core.peers.me());
        }
    }

    pub(crate) fn close_over_orphans<P: Port>(&mut self, core: &mut Core<P>) {
        if core.failures.has_no_orphans() || !core.transmit.regions().orphans().take_wanted() {
            return;
        }
        let is_orphan = |s: &Segment| {
            let failed = core.peers.find(s.pe).is_some_and(|connection| connection.error.is_some());
            s.stage == Stage::Posted && failed
        };
        let has_orphan =
            |rail: &RailId| core.transmit.in_use().any(|s| s.rail == *rail && is_orphan(s));
        let rails = core
            .transmit
            .rail_ids()
            .filter(|rail| has_orphan(rail) && core.transmit.port().can_reset(*rail));
        for rail in rails.collect::<Vec<_>>() {
            self.close_rail(core, rail, core.peers.me());
        }
    }

    /// A rail that is to be closed and on which nothing is under way any more, or for too long; and
    /// who wants that. What has completed on it and what has come in is to be taken before
    /// [`Recovery::reset`].
    pub(crate) fn due_to_close<P: Port>(&self, core: &Core<P>) -> Option<(RailId, Pe)> {
        let now = core.failures.stamp();
        core.transmit.rail_ids().find_map(|rail| {
            let Closing { since, cause } = self.mine[rail.index()].closing?;
            let under_way = core.transmit.in_use().any(|segment| is_on(segment, rail));
            (!under_way || now - since >= self.timeout).then_some((rail, cause))
        })
    }

    pub(crate) fn reset<P: Port>(&mut self, core: &mut Core<P>, rail: RailId, cause: Pe) {
        let at = rail.index();
        for wr_id in core.transmit.wr_ids(|segment| is_on(segment, rail)) {
            let segment = core.transmit.segment(wr_id);
            let (pe, reason) =
                (segment.pe, "something on it has not completed, and the rail is closed");
            if is_on(segment, rail) && !self.suspect(core, pe, rail, reason, false) {
                self.lose_path(core, pe, rail);
            }
        }
        let name = core.transmit.port().rail_name(rail).to_owned();
        let address = match core.transmit.port_mut().reset_rail(rail) {
            Ok(address) => address,
            Err(error) => {
                warn!(target: "TRANSPORT", "{rail} ({name}) cannot be opened again: {error}");
                core.transmit.resume(rail);
                let me = core.peers.me();
                let mine = &mut self.mine[at];
                (mine.closing, mine.fixed) = (None, true);
                if cause != me {
                    let answer = Answer::CannotReset(rail, mine.generation);
                    self.add_answer(cause, answer);
                }
                return;
            }
        };
        if let Some(unsaid) = core.may_say() {
            info!(
                target: "TRANSPORT",
                "{rail} ({name}) was closed and opened again, for {cause}{unsaid}"
            );
        }
        core.transmit.reopened(rail);
        let on_it = |s: &Segment| s.rail == rail && s.stage == Stage::Lost;
        for wr_id in core.transmit.wr_ids(on_it) {
            core.wr_id_is_back(wr_id);
        }
        let talks = self.in_touch(core);
        for pe in talks.iter().copied() {
            self.lose_messages(core, pe, |over| over == rail);
        }
        let (me, stamp) = (core.peers.me(), core.failures.stamp());
        let mine = &mut self.mine[at];
        mine.generation += 1;
        mine.address.clone_from(&address);
        mine.closing = None;
        mine.cause = Some(cause);
        mine.reset = Some(stamp);
        mine.unconfirmed = talks.into_iter().filter(|pe| *pe != me).collect();
        let generation = mine.generation;
        for pe in mine.unconfirmed.clone() {
            self.add_answer(pe, Answer::RailIs(rail));
        }
        self.learn_rail(core, me, rail, generation, cause, &address);
    }

    fn in_touch<P: Port>(&self, core: &Core<P>) -> BTreeSet<Pe> {
        core.peers
            .iter()
            .map(|connection| connection.pe)
            .chain(self.peers.keys().copied())
            .collect()
    }

    fn take_out_for_good<P: Port>(&mut self, core: &mut Core<P>, pe: Pe, rail: RailId) {
        let others = self.suspect(core, pe, rail, "the rail is closed for good", false);
        self.peer(pe).paths[rail.index()].gone = true;
        if !others && core.peers.find(pe).is_some() {
            let rail_name = core.transmit.port().rail_name(rail).to_owned();
            let text = String::from("the rail is closed for good, and it was the last");
            let error = PortError { call: "reaching a PE", code: 0, text };
            let (what, len) = ("an operation", 0);
            core.fail_connection(
                pe,
                EngineError::Segment { what, pe, len, rail, rail_name, error },
            );
        }
    }

    pub(crate) fn learn_rail<P: Port>(
        &mut self,
        core: &mut Core<P>,
        pe: Pe,
        remote: RailId,
        generation: u32,
        cause: Pe,
        address: &[u8],
    ) {
        let peer = self.peer(pe);
        let known = peer.generation(remote);
        if generation <= known {
            if generation == known && address.is_empty() && peer.wants.contains(&(remote, known)) {
                let why = format!(
                    "its {remote} cannot be opened again, so what was under way to it when the path \
                     failed cannot go another way"
                );
                let what = "a put";
                core.fail_connection(pe, EngineError::PeerRefused { what, pe, len: 0, why });
            }
            return;
        }
        peer.set_generation(remote, generation);
        peer.grace = None;
        if let Some(fallback_routes) = self.fallback_routes.as_deref() {
            fallback_routes.set(pe);
        }
        for at in 0..core.transmit.rails().len() {
            let rail = RailId(at as u8);
            if core.transmit.leads(pe, rail) && core.transmit.remote_rail(pe, rail) == remote {
                self.readdress(core, pe, rail, cause, address);
            }
        }
        // Nothing is on its way to it that could arrive late.
        self.peer(pe).wants.retain(|(wanted, _)| *wanted != remote);
    }

    fn readdress<P: Port>(
        &mut self,
        core: &mut Core<P>,
        pe: Pe,
        rail: RailId,
        cause: Pe,
        address: &[u8],
    ) {
        // What is on it goes nowhere.
        self.lose_path(core, pe, rail);
        let on_it = |s: &Segment| s.pe == pe && s.rail == rail && s.stage == Stage::Lost;
        for wr_id in core.transmit.wr_ids(on_it) {
            self.target_is_safe(core, wr_id);
        }
        self.lose_messages(core, pe, |over| over == rail);
        if address.is_empty() {
            return self.take_out_for_good(core, pe, rail);
        }
        if !self.takes_address(pe) {
            return self.take_out_for_good(core, pe, rail);
        }
        match core.transmit.port_mut().insert_address(rail, address) {
            Ok(to) => {
                core.transmit.readdress(pe, rail, to);
                self.serve(core, pe, core.transmit.in_service(pe));
            }
            Err(error) => {
                warn!(target: "TRANSPORT", "the new address of a rail of {pe}: {error}");
                return self.take_out_for_good(core, pe, rail);
            }
        }
        let now = core.failures.stamp();
        let pause = self.cooling.unwrap_or(u32::MAX);
        let path = &mut self.peer(pe).paths[rail.index()];
        if cause != core.peers.me() && path.may_return(now, pause) {
            path.returned = Some(now);
            self.reinstate(core, pe, rail);
        }
    }
}

fn is_on(segment: &Segment, rail: RailId) -> bool {
    segment.rail == rail && segment.stage == Stage::Posted
}

impl PathHealth {
    /// Whether it comes back unprobed when its far end has been opened again, for somebody else.
    /// Perhaps it was the closing that cut it, and nothing is wrong with it. Or not: then it is
    /// probed the next time.
    fn may_return(&self, now: u32, pause: u32) -> bool {
        let rested = self.returned.is_none_or(|before| now - before >= pause);
        self.out.is_some() && self.by_error && !self.gone && rested
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_an_error_took_out_returns_unprobed_now_and_then() {
        let out = PathHealth { out: Some(80), by_error: true, ..PathHealth::default() };
        assert!(out.may_return(100, 15));
        assert!(!PathHealth { out: None, ..out }.may_return(100, 15), "it is in service");
        assert!(!PathHealth { by_error: false, ..out }.may_return(100, 15), "it was silent");
        assert!(!PathHealth { gone: true, ..out }.may_return(100, 15));
        for (before, may) in [(14, false), (15, true), (16, true)] {
            let returned = Some(100 - before);
            assert_eq!(PathHealth { returned, ..out }.may_return(100, 15), may, "{before}");
        }
    }
}
