//! The rails of a lane and the paths over them, as everybody sees them.

use std::fmt::Display;

use log::warn;

use crate::ids::{Pe, RailId, WrId};
use crate::port::{PeerAddr, Port};
use crate::posting::peers::Peers;
use crate::posting::transmit::Transmit;
use crate::rails::counters::RailCounters;
use crate::rails::paths::{Hop, RailsTo};
use crate::state::connection::Connection;
use crate::state::rail::Rail;
use crate::state::segment::Stage;

impl<P: Port> Transmit<P> {
    #[inline(always)]
    pub(crate) fn rail(&self, rail: RailId) -> &Rail<P::Fast> {
        &self.rails[rail.index()]
    }

    #[inline(always)]
    pub(crate) fn rails(&self) -> &[Rail<P::Fast>] {
        &self.rails
    }

    pub(crate) fn rail_ids(&self) -> impl ExactSizeIterator<Item = RailId> + use<P> {
        (0..self.rails.len()).map(|rail| RailId(rail as u8))
    }

    pub(crate) fn counters(&self) -> impl Iterator<Item = RailCounters> + '_ {
        let rate = |rail| self.balance.shown(rail);
        self.rail_ids()
            .map(move |rail| RailCounters { rate: rate(rail), ..self.rail(rail).counters() })
    }

    #[inline(always)]
    pub(crate) fn completed_on(&mut self, rail: RailId, count: u32, now: u32) {
        let state = &mut self.rails[rail.index()];
        state.completed(count);
        state.moved = now;
    }

    pub(crate) fn failed_on(&mut self, rail: RailId) {
        self.rails[rail.index()].completed(1);
    }

    /// The fabric had no room for something on a rail.
    pub(in crate::posting) fn count_again(&mut self, rail: RailId) {
        self.rails[rail.index()].counters.again += 1;
    }

    pub(crate) fn count_failure(&mut self, rail: RailId) {
        self.rails[rail.index()].counters.failures += 1;
    }

    pub(crate) fn count_reissued(&mut self, rail: RailId) {
        self.rails[rail.index()].counters.reissued += 1;
    }

    /// A message was sent again over a rail.
    pub(in crate::posting) fn count_resent(&mut self, rail: RailId) {
        self.rails[rail.index()].counters.resent += 1;
    }

    pub(crate) fn pause(&mut self, rail: RailId) {
        self.rails[rail.index()].pause();
    }

    pub(crate) fn resume(&mut self, rail: RailId) {
        self.rails[rail.index()].resume();
    }

    pub(crate) fn reopened(&mut self, rail: RailId) {
        let fast = self.port.fast(rail);
        self.rails[rail.index()].reopen(fast);
        let now = self.port.now();
        self.balance.reopened(rail, now);
        self.load_changed = true;
    }

    #[inline]
    pub(crate) fn path(&self, pe: Pe, rail: RailId) -> Hop {
        self.paths.get(pe, rail)
    }

    pub(crate) fn remote_rail(&self, pe: Pe, rail: RailId) -> RailId {
        self.paths.get(pe, rail).remote_key.rail()
    }

    pub(crate) fn is_out(&self, pe: Pe, rail: RailId) -> bool {
        self.paths.is_out(pe, rail)
    }

    pub(crate) fn leads(&self, pe: Pe, rail: RailId) -> bool {
        self.paths.leads(pe, rail)
    }

    pub(crate) fn reach(&self) -> &RailsTo {
        self.paths.reach()
    }

    pub(crate) fn in_service(&self, pe: Pe) -> u32 {
        self.paths.in_service(pe)
    }

    pub(crate) fn serve(&mut self, pe: Pe, in_service: u32) {
        self.paths.serve(pe, in_service);
        self.load_changed = true;
    }

    pub(crate) fn readdress(&mut self, pe: Pe, rail: RailId, to: PeerAddr) {
        self.paths.set_address(pe, rail, to);
    }

    #[inline(always)]
    pub(crate) fn rotate(&self, connection: &mut Connection) {
        connection.rotate(&self.paths);
    }

    /// The connection to a peer, opened if need be, with its paths laid out. None for a PE outside
    /// the job.
    #[inline]
    pub(in crate::posting) fn open<'a>(
        &mut self,
        peers: &'a mut Peers,
        pe: Pe,
    ) -> Option<&'a mut Connection> {
        peers.open(pe, &mut self.paths)
    }

    pub(crate) fn path_after(&self, mut hop: Hop) -> Hop {
        self.paths.advance(&mut hop);
        hop
    }

    /// The connection's next path, if its rail is not paused, or else the one after that. None if
    /// that one's is as well.
    pub(in crate::posting) fn running_path(&self, connection: &mut Connection) -> Option<Hop> {
        if self.rail(connection.next.rail).is_paused() {
            self.rotate(connection);
            if self.rail(connection.next.rail).is_paused() {
                return None;
            }
        }
        Some(connection.next)
    }

    pub(crate) fn queue(&mut self, wr_id: WrId, rail: RailId) {
        self.segments[wr_id.0].stage = Stage::Ready;
        self.rails[rail.index()].counters.queued += 1;
        self.requeue(wr_id, rail);
    }

    pub(crate) fn requeue(&mut self, wr_id: WrId, rail: RailId) {
        self.rails[rail.index()].push(&mut self.segments, wr_id.0);
        self.ready += 1;
    }

    pub(crate) fn unqueue(&mut self, rail: RailId) -> Option<WrId> {
        let index = self.rails[rail.index()].pop(&self.segments)?;
        self.ready -= 1;
        Some(WrId(index))
    }

    #[inline(always)]
    pub(crate) fn has_ready(&self) -> bool {
        self.ready != 0
    }

    pub(crate) fn waits(&mut self) {
        self.ready += 1;
    }

    pub(crate) fn waits_no_more(&mut self) {
        self.ready -= 1;
    }

    pub(crate) fn next_turn(&mut self) -> bool {
        self.phase.advance();
        self.phase.control_first()
    }

    /// Something that no PE of this job has sent, or that was damaged or broke off: anybody who
    /// reaches the rail can send that. It has no effect but to be counted, and the first one of a
    /// rail is reported.
    #[cold]
    pub(crate) fn drop_foreign(&mut self, rail: RailId, what: &dyn Display) {
        let foreign = &mut self.rails[rail.index()].counters.foreign;
        *foreign += 1;
        if *foreign == 1 {
            warn!(
                target: "TRANSPORT",
                "{rail} {} got something that is not of this job, and drops it, and all like it: {what}. Another \
                 process knows or guessed its address; a firewall would keep it out",
                self.port().rail_name(rail),
            );
        }
    }
}
