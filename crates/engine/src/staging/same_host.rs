//! Peers of the same host that share their bounce memory: bytes that no processor touches.
//!
//! The sender's copy engine writes into a bounce buffer of its own, which the target sees; the
//! message that tells of it names the place in the bounce memory; the target's copy engine reads
//! from there. So the target takes no bounce buffer, no keys are told, and no message brings bytes.
//! All else is as with bytes that the fabric moves: an answer gives the bounce buffer back.
//!
//! # Why it cannot deadlock
//! A copy from a peer's bounce buffer needs a segment of those set aside, of which
//! [`SHARED_COPIES`] are for these copies. It is taken when everything that the copy comes behind
//! is executed, and given back when the copy has ended, which waits for nothing but the device.

use crate::ids::{Pe, WrId};
use crate::port::copies::CopyDirection;
use crate::port::{Port, PortError};
use crate::posting::Core;
use crate::staging::Staging;
use crate::staging::state::bounce_buffers::BounceBuffer;
use crate::staging::state::role::Role;
use crate::staging::state::waiting::Wanted;
use crate::staging::state::{Fragment, NOWHERE, PEER_REQUESTS, RemoteEnd, SHARED_COPIES, State};
use crate::state::messages::unnumbered::Owed;
use crate::state::segment::work::Work;
use crate::state::segment::{Segment, Stage};
use crate::wire::staged::Exposure;

impl Staging {
    /// Where a peer is to read what lies in a bounce buffer for bytes on their way out.
    pub(crate) fn exposure_to(&mut self, pe: Pe, bounce: BounceBuffer) -> Exposure {
        let Some(bouncing) = self.bouncing() else { return NOWHERE };
        let by_fabric = bouncing.exposure(bounce);
        if bouncing.copies.is_seen_by(pe) {
            return Exposure::in_bounce(by_fabric.offset);
        }
        by_fabric
    }

    /// The address of a fragment's bytes in bounce memory, its own bounce buffer or a peer's. None
    /// if it has none, or has failed for that.
    pub(crate) fn bounce_addr<P: Port>(
        &mut self,
        core: &mut Core<P>,
        wr_id: WrId,
    ) -> Option<usize> {
        let Fragment { role, len, bounce, remote_end, .. } = *self.state().fragment(wr_id);
        if let Some(bounce) = bounce {
            return self.bouncing().map(|bouncing| bouncing.addr(role, bounce));
        }
        let RemoteEnd::Exposed(from) = remote_end else { return None };
        let pe = core.transmit.segment(wr_id).pe;
        match self.shared_addr(pe, from, len) {
            Ok(addr) => Some(addr),
            Err(why) => {
                let error =
                    PortError { call: "copying from the peer's bounce memory", code: 0, text: why };
                self.fail_fragment(core, wr_id, error);
                None
            }
        }
    }

    /// The address of bytes that a peer has exposed in its bounce memory. Nothing that it names
    /// leads outside of that.
    fn shared_addr(&mut self, pe: Pe, from: Exposure, len: usize) -> Result<usize, String> {
        let window = self.bouncing().and_then(|bouncing| bouncing.copies.window(pe));
        let Some(window) = window.filter(|_| from.is_in_bounce()) else {
            return Err(String::from("it names bounce memory that is not shared with it"));
        };
        window.at(from.offset, len).ok_or_else(|| {
            format!(
                "{len} bytes at offset {} of bounce memory of {} bytes",
                from.offset, window.len
            )
        })
    }

    /// A peer wants bytes stored that lie in a bounce buffer of its own.
    pub(crate) fn want_shared<P: Port>(&mut self, core: &mut Core<P>, wanted: Wanted) {
        let Wanted { pe, role, len, from, .. } = wanted;
        let Role::Pull(request_id) = role else { return };
        if let Err(why) = self.shared_addr(pe, from, len) {
            return self.refuse(core, pe, role, request_id, &why);
        }
        if self.state().peer(pe).shared_waiting >= PEER_REQUESTS {
            let why = format!("a PE has at most {PEER_REQUESTS} requests under way");
            return self.refuse(core, pe, role, request_id, &why);
        }
        if let Some(connection) = core.peers.find_mut(pe) {
            connection.channel().begin_pull(request_id.seq);
        }
        self.state().peer(pe).shared_waiting += 1;
        // The iteration starts it, with others that it finds.
        self.queue_shared(core, wanted);
    }

    /// Queues a copy, unless it comes behind others that are not executed.
    fn queue_shared<P: Port>(&mut self, core: &mut Core<P>, wanted: Wanted) {
        let Wanted { pe, role, mark, .. } = wanted;
        let channel = core.peers.find(pe).and_then(|connection| connection.channel.as_deref());
        match (channel, mark, role) {
            (Some(channel), Some(mark), Role::Pull(request_id)) if channel.is_refused(mark) => {
                self.state().peer(pe).shared_waiting -= 1;
                let why = "what it comes behind cannot be executed";
                self.refuse(core, pe, role, request_id, why);
            }
            (Some(channel), Some(mark), _) if !channel.is_executed(mark) => {
                self.state().peer(pe).behind.push_back(wanted);
            }
            _ => self.state().same_host.queue.push_back(wanted),
        }
    }

    pub(crate) fn go_on_behind<P: Port>(&mut self, core: &mut Core<P>, pe: Pe) {
        let behind = self.state().peer(pe).behind.len();
        for _ in 0..behind {
            // Those that still wait come back to the end.
            let Some(wanted) = self.state().peer(pe).behind.pop_front() else { return };
            self.queue_shared(core, wanted);
        }
        if behind != 0 {
            self.start_waiting(core);
        }
    }

    pub(crate) fn take_shared<P: Port>(&mut self, core: &mut Core<P>) -> bool {
        let mut moved = false;
        while let Some(wanted) = self.state().same_host.queue.front().copied() {
            let Wanted { pe, role, .. } = wanted;
            if core.peers.check(pe).is_err() {
                self.leave_queue(pe);
                self.end_pull(core, pe, role, false);
                moved = true;
                continue;
            }
            if self.state().same_host.under_way >= SHARED_COPIES {
                break;
            }
            let Some(wr_id) = self.begin_peer_request(core, &wanted) else { break };
            self.state().same_host.under_way += 1;
            self.leave_queue(pe);
            self.state().ready(CopyDirection::In).push_back(wr_id);
            moved = true;
        }
        moved
    }

    fn leave_queue(&mut self, pe: Pe) {
        self.state().same_host.queue.pop_front();
        self.state().peer(pe).shared_waiting -= 1;
    }

    pub(crate) fn leave_shared(&mut self, wr_id: WrId) {
        let state = self.state();
        if state.peek(wr_id).copies_from_peer() {
            state.same_host.under_way -= 1;
        }
    }

    pub(crate) fn was_copied_from_peer<P: Port>(
        &mut self,
        core: &mut Core<P>,
        wr_id: WrId,
        bytes: usize,
    ) {
        let Fragment { role, remote_end, .. } = *self.state().fragment(wr_id);
        let RemoteEnd::Exposed(from) = remote_end else { return };
        if !from.is_in_bounce() {
            return;
        }
        self.counters.shared += bytes as u64;
        if role == Role::Get {
            let pe = core.transmit.segment(wr_id).pe;
            let request_id = core.transmit.segment(wr_id).request_id(wr_id);
            core.queue_unnumbered(pe, Owed::Release { request_id });
            self.end_request(core, pe, wr_id);
        }
    }

    #[cold]
    pub(crate) fn give_up_same_host<P: Port>(&mut self, core: &mut Core<P>, pe: Pe) {
        let state = self.state();
        state.same_host.queue.retain(|wanted| wanted.pe != pe);
        let peer = state.peer(pe);
        peer.behind.clear();
        peer.shared_waiting = 0;
        let shares = |state: &State| state.bouncing.as_ref()?.copies.window(pe);
        if shares(state).is_some() && !state.same_host.failed.contains(&pe) {
            state.same_host.failed.push(pe);
        }
        self.take_back_bounce_buffers(core);
    }

    #[cold]
    pub(crate) fn take_back_bounce_buffers<P: Port>(&mut self, core: &mut Core<P>) {
        let Some(state) = self.state.as_deref_mut() else { return };
        if state.same_host.failed.is_empty() {
            return;
        }
        for at in (0..state.same_host.failed.len()).rev() {
            let State { same_host, bouncing: Some(bouncing), .. } = self.state() else { return };
            let pe = same_host.failed[at];
            if !bouncing.copies.has_ended(pe) {
                continue;
            }
            same_host.failed.swap_remove(at);
            // What it has asked for and not released, and what it was to read of ours.
            let lent = std::mem::take(&mut self.state().lent);
            let (its, others) =
                lent.into_iter().partition(|wr_id| core.transmit.segment(*wr_id).pe == pe);
            self.state().lent = others;
            let kept = |s: &Segment| {
                s.pe == pe && s.stage == Stage::Sent && matches!(s.work(), Work::PeerRequest { .. })
            };
            let its: Vec<WrId> = its;
            for wr_id in its.into_iter().chain(core.transmit.wr_ids(kept)) {
                self.drop_fragment(core, wr_id);
            }
        }
        self.start_waiting(core);
    }
}
