//! Reissue: segments that were on a path which has failed, posted again on another one.
//!
//! A segment in *lost* was posted, or was to be, on a path that has failed. It is posted again, in
//! its slot and with its work-request id, when nothing of the first time can happen any more. For
//! that
//! - the fabric must not have its work-request id ([`Waits::FABRIC`]): it has come back with an
//!   error, or the rail has been closed. A read could else land in memory that is in use for
//!   something else by then, and a work-request id name two operations;
//! - the target must not take it ([`Waits::TARGET`]), if it is a write: the peer has closed the
//!   rail that it was sent to. It could else land late, over what others have stored since.
//!
//! If it completes after all, in the meantime, it has ended, as always.
//!
//! Data may be written twice: a signal is sent when its data is delivered, or applied when that has
//! been counted, and what is counted is not recovered. So nothing but the data itself tells the
//! peer's program that it is there before the second time.

use crate::error::EngineError;
use crate::ids::{Pe, RailId, WrId};
use crate::port::{Direction, Local, Port, PortError};
use crate::posting::Core;
use crate::recovery::Recovery;
use crate::staging::Staging;
use crate::staging::state::{LocalEnd, RemoteEnd};
use crate::state::segment::queue::Queue;
use crate::state::segment::waits::{REISSUES, Waits};
use crate::state::segment::{Segment, Stage};
use crate::wire::rails::Rails;

const LATELY: u32 = 8;

impl Recovery {
    pub(crate) fn lose_path<P: Port>(&mut self, core: &mut Core<P>, pe: Pe, rail: RailId) {
        let on_it = |segment: &Segment| segment.pe == pe && segment.rail == rail;
        for wr_id in core.transmit.wr_ids(|s| on_it(s) && s.stage == Stage::Posted) {
            core.lose(wr_id, true);
        }
        // They have not completed, and are no sign of life.
        self.peer(pe).paths[rail.index()].total = 0;
        self.adopt(core);
    }

    pub(crate) fn adopt<P: Port>(&mut self, core: &mut Core<P>) {
        let lost = core.failures.take_lost();
        if lost.is_empty() {
            return;
        }
        // One that had come back, and is lost again, is here already. It would be posted twice.
        let mut again = lost.clone();
        again.sort_unstable();
        self.lost.retain(|wr_id| again.binary_search(wr_id).is_err());
        for wr_id in lost {
            let segment = core.transmit.segment(wr_id);
            if segment.stage != Stage::Lost {
                continue;
            }
            let (pe, rail, direction) = (segment.pe, segment.rail, segment.fabric_direction());
            let (waits, often) = (segment.waits(), segment.reissues());
            self.lost.push(wr_id);
            if waits.has(Waits::TARGET) {
                let remote = core.transmit.remote_rail(pe, rail);
                self.peer(pe).want(remote);
            }
            if direction == Direction::Write {
                self.note_loss(pe);
            }
            if often >= REISSUES {
                let why = format!("its path has failed {REISSUES} times");
                give_up_reissuing(core, wr_id, why);
            }
        }
    }

    pub(crate) fn target_is_safe<P: Port>(&mut self, core: &mut Core<P>, wr_id: WrId) {
        let segment = core.transmit.segment_mut(wr_id);
        segment.set_waits(segment.waits().without(Waits::TARGET));
    }

    /// Takes what is for a peer out of a rail's queue: bytes wait for another path, and messages go
    /// to the queue of one. What waits in the pool of [`crate::striping::pool`] is in no rail's
    /// queue, and has none yet.
    pub(crate) fn unqueue<P: Port>(&mut self, core: &mut Core<P>, pe: Pe, rail: RailId) {
        let mut rest = Queue::EMPTY;
        let mut messages = Vec::new();
        // What waits for the peer alone was there first.
        let next =
            |core: &mut Core<P>| core.unblock(pe, rail).or_else(|| core.transmit.unqueue(rail));
        while let Some(wr_id) = next(core) {
            let segment = core.transmit.segment(wr_id);
            if segment.pe != pe {
                core.transmit.enqueue(&mut rest, wr_id);
            } else if segment.message().is_some() {
                messages.push(wr_id);
            } else {
                core.lose(wr_id, false);
            }
        }
        while let Some(wr_id) = core.transmit.dequeue(&mut rest) {
            core.transmit.requeue(wr_id, rail);
        }
        let next = core.peers.find(pe).map_or(rail, |connection| connection.next.rail);
        for wr_id in messages {
            core.transmit.segment_mut(wr_id).rail = next;
            core.transmit.queue(wr_id, next);
        }
        self.adopt(core);
    }

    pub(crate) fn check_lost<P: Port>(&mut self, core: &mut Core<P>) {
        let (now, timeout) = (core.failures.stamp(), self.timeout);
        let overdue = |wr_id: &&WrId| {
            let segment = core.transmit.segment(**wr_id);
            let waits = segment.stage == Stage::Lost && segment.waits().has(Waits::FABRIC);
            let reset = self.mine[segment.rail.index()].reset;
            waits && now - segment.born >= patience(now, reset, timeout)
        };
        let rails = self.lost.iter().filter(overdue);
        let mut rails: Vec<RailId> =
            rails.map(|wr_id| core.transmit.segment(*wr_id).rail).collect();
        rails.sort_unstable();
        rails.dedup();
        for rail in rails {
            if core.transmit.port().can_reset(rail) {
                self.close_rail(core, rail, core.peers.me());
            }
        }
    }

    pub(crate) fn relaunch_all<P: Port>(&mut self, core: &mut Core<P>, staging: &mut Staging) {
        let mut waiting = std::mem::take(&mut self.lost);
        waiting.retain(|wr_id| {
            core.transmit.segment(*wr_id).stage == Stage::Lost && self.waits(core, staging, *wr_id)
        });
        self.lost.append(&mut waiting);
    }

    fn waits<P: Port>(&mut self, core: &mut Core<P>, staging: &mut Staging, wr_id: WrId) -> bool {
        let segment = *core.transmit.segment(wr_id);
        let (pe, waits) = (segment.pe, segment.waits());
        let is_staged = segment.work().is_staged();
        if core.peers.check(pe).is_err() {
            // It ends with its connection, as soon as the fabric has done with it.
            if !waits.has(Waits::FABRIC) {
                core.transmit.segment_mut(wr_id).stage = Stage::Ready;
                core.drop_segment(wr_id);
            } else {
                core.transmit.segment_mut(wr_id).stage = Stage::Posted;
            }
            return false;
        }
        if !waits.is_over() || self.peer(pe).grace.is_some() {
            return true;
        }
        // Each time that it is posted its own time begins anew.
        let since = core.peers.find(pe).filter(|_| waits.reissues() != 0);
        if let Some(seconds) = since.and_then(|s| core.failures.gives_up(s.watch.since)) {
            let why = format!("nothing has got through to the PE for {seconds} s, on any path");
            give_up_reissuing(core, wr_id, why);
            return true;
        }
        let old = core.transmit.path(pe, segment.rail);
        let mut hop = old;
        if core.transmit.is_out(pe, segment.rail) {
            hop = core.transmit.path_after(hop);
        }
        if core.transmit.rail(hop.rail).is_paused() {
            return true;
        }
        let (from, to) = (old.remote_key.rail(), hop.remote_key.rail());
        let remote_end = is_staged.then(|| staging.state().fragment(wr_id).remote_end);
        let key = match remote_end {
            None => segment.work().transfer().map(|transfer| transfer.key),
            Some(RemoteEnd::Fabric { key, .. }) => Some(key),
            Some(_) => None,
        };
        let key = match key {
            Some(key) if from != to => match self.key_on(core, pe, from, key, to) {
                None => return true,
                Some(None) => {
                    let why = format!("it has no region any more with key {key:#x} on its {from}");
                    let (what, len) = (segment.what(), segment.len());
                    core.fail_connection(pe, EngineError::PeerRefused { what, pe, len, why });
                    return true;
                }
                Some(found) => found,
            },
            key => key,
        };
        if let Err(error) = put_on(core, staging, wr_id, hop.rail, key) {
            let (what, len, rail) = (segment.what(), segment.len(), hop.rail);
            let rail_name = core.transmit.port().rail_name(rail).to_owned();
            core.fail_connection(
                pe,
                EngineError::Segment { what, pe, len, rail, rail_name, error },
            );
            return true;
        }
        core.transmit.count_reissued(hop.rail);
        if is_staged {
            core.transmit.segment_mut(wr_id).stage = Stage::Staged;
            staging.next_part(core, wr_id);
        } else {
            if segment.is_stripe {
                let now = core.transmit.now();
                core.add_load(wr_id, now);
            }
            core.transmit.queue(wr_id, hop.rail);
        }
        false
    }

    fn key_on<P: Port>(
        &mut self,
        core: &mut Core<P>,
        pe: Pe,
        rail: RailId,
        key: u64,
        wanted: RailId,
    ) -> Option<Option<u64>> {
        let asked = (rail, key, wanted);
        let peer = self.peer(pe);
        let known = peer.keys.get(&asked).copied();
        if known.is_none() && !peer.asked.contains(&asked) {
            peer.asked.push(asked);
            self.tell(core, pe, Rails::KeyWanted { rail, key, wanted });
        }
        known
    }
}

#[cold]
fn give_up_reissuing<P: Port>(core: &mut Core<P>, wr_id: WrId, text: String) {
    let Segment { pe, rail, .. } = *core.transmit.segment(wr_id);
    let failed =
        core.segment_error(wr_id, rail, PortError { call: "posting again", code: 0, text });
    core.fail_connection(pe, failed);
}

fn patience(now: u32, reset: Option<u32>, timeout: u32) -> u32 {
    // Not the next one before it would have been found that a path is silent.
    let lately = reset.is_some_and(|before| now - before < LATELY * timeout);
    if lately { 2 * timeout + 2 } else { timeout / 2 }
}

fn put_on<P: Port>(
    core: &mut Core<P>,
    staging: &mut Staging,
    wr_id: WrId,
    rail: RailId,
    key: Option<u64>,
) -> Result<(), PortError> {
    let refused = |text: String| PortError { call: "posting again", code: 0, text };
    let most = core.transmit.rail(rail).max_segment;
    let segment = core.transmit.segment(wr_id);
    let (len, staged) = (segment.len(), segment.work().is_staged());
    let transfer = segment.work().transfer().copied();
    if len > most && !staged {
        return Err(refused(format!("the rail takes {most} bytes at once")));
    }
    let memory = match transfer.map(|transfer| transfer.local) {
        _ if staged => match staging.state().fragment(wr_id) {
            fragment if matches!(fragment.local_end, LocalEnd::Fabric { .. }) => {
                Some((fragment.memory, fragment.len))
            }
            _ => None,
        },
        Some(Local::Memory { addr, .. }) => Some((addr, len)),
        _ => None,
    };
    let mut local = None;
    if let (Some((addr, len)), true) = (memory, core.transmit.needs_desc()) {
        core.transmit.regions_mut().sync();
        local = core.transmit.regions().desc_at(addr, len, rail);
        if local.is_none() && !core.transmit.port().takes_unregistered() {
            return Err(refused(String::from("its local memory is not registered any more")));
        }
    }
    if staged {
        let fragment = staging.state().fragment(wr_id);
        if let (RemoteEnd::Fabric { key: old, .. }, Some(key)) = (&mut fragment.remote_end, key) {
            *old = key;
        }
        if let (LocalEnd::Fabric { desc, .. }, Some(new)) = (&mut fragment.local_end, local) {
            *desc = new;
        }
    }
    let segment = core.transmit.segment_mut(wr_id);
    if let Some(mut transfer) = transfer {
        if let (Local::Memory { desc, .. }, Some(new), false) = (&mut transfer.local, local, staged)
        {
            *desc = new;
        }
        transfer.key = key.unwrap_or(transfer.key);
        segment.set_transfer(transfer);
    }
    segment.rail = rail;
    segment.set_waits(segment.waits().again());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rail_that_was_closed_lately_is_not_closed_again_soon() {
        assert_eq!(patience(100, None, 5), 2);
        for (before, units) in [(0, 12), (1, 12), (39, 12), (40, 2), (41, 2)] {
            assert_eq!(patience(100, Some(100 - before), 5), units, "{before}");
        }
    }
}
