//! The load of rails: the bytes that each has ahead, and the paths that are chosen by them.

use crate::error::EngineError;
use crate::ids::{Pe, WrId};
use crate::port::{Port, Transfer};
use crate::posting::Core;
use crate::posting::transmit::Transmit;
use crate::rails::balance::Balance;
use crate::rails::paths::Hop;
use crate::request::{LocalSide, Request, refused};
use crate::state::operation::OpId;
use crate::state::segment::work::Work;
use crate::state::segment::{Segment, Stage, WriteClass};
use crate::wire::handle::HandleView;
use crate::wire::message::Tag;

/// What a segment is whose rail was chosen by load: bytes of a put or a get.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stripe {
    pub(crate) counted: Option<Tag>,
    pub(crate) of: usize,
}

impl<P: Port> Core<P> {
    pub(crate) fn pick(&mut self, pe: Pe, len: usize, left: u64, now: u64) -> Option<Hop> {
        if !self.transmit.stripes.is_left() {
            return None;
        }
        let rails = self.transmit.rails.len();
        let usable = self.transmit.usable(pe, self.failures.recovers());
        let ahead = self.peers.find_mut(pe)?.ahead(rails);
        let rail = self.transmit.balance.pick(now, ahead, len, left, usable)?;
        Some(self.transmit.paths.get(pe, rail))
    }

    fn path_in_turn(&mut self, pe: Pe, now: u64) -> Hop {
        let usable = self.transmit.usable(pe, self.failures.recovers());
        self.transmit.paths.get(pe, self.transmit.balance.next_in_turn(now, usable))
    }

    pub(crate) fn fragment_path(&mut self, pe: Pe) -> Option<Hop> {
        if self.transmit.balance.is_on() {
            let now = self.transmit.now();
            return Some(self.path_in_turn(pe, now));
        }
        self.next_path(pe)
    }

    /// The path whose turn it is among messages, which have no load. Were they given turns by rate,
    /// what they alternate with would go by few rails.
    pub(crate) fn next_path(&mut self, pe: Pe) -> Option<Hop> {
        let connection = self.peers.find_mut(pe)?;
        let next = connection.next;
        self.transmit.rotate(connection);
        Some(next)
    }

    pub(crate) fn check_request(&mut self, request: &Request<'_>) -> Result<(), EngineError> {
        let refuse = |fault| refused(request, "remote", fault);
        let remote = HandleView::check_of(request.pe, request.remote_handle).map_err(refuse)?;
        remote.locate(request.remote_addr, request.len as u64).map_err(refuse)?;
        let staged = remote.is_staged();
        let is_bare = |transmit: &mut Transmit<P>| match request.local {
            LocalSide::Memory(addr) => transmit.is_bare(addr, request.len),
            LocalSide::Value(_) => false,
        };
        let transmit = &mut self.transmit;
        if staged || request.len == 0 || transmit.has_devices() || is_bare(transmit) {
            // How its local side is reached is looked at when it is its turn.
            return Ok(());
        }
        let hop = self.connection_to(request.pe)?.next;
        self.transmit.transfer(request, 0, 1, &hop).map(drop)
    }

    /// Lets a segment of an operation leave by a path that was chosen by load. It belongs to those
    /// before any fence. `of` is the class of the operation, if that is under way. Whether there
    /// was room for it.
    #[expect(clippy::too_many_arguments, reason = "what a segment is")]
    pub(crate) fn send_stripe(
        &mut self,
        stripe: Stripe,
        pe: Pe,
        hop: &Hop,
        transfer: Transfer,
        op: OpId,
        of: Option<WriteClass>,
        now: u64,
    ) -> bool {
        let Some(wr_id) = self.transmit.segments.take() else { return false };
        let bulk = self.transmit.balance.is_bulk(stripe.of);
        self.fill(wr_id, pe, hop, op, Work::Stripe { bulk, transfer });
        let segment = &mut self.transmit.segments[wr_id.0];
        if let Some(tag) = stripe.counted {
            segment.set_counted(tag, self.peers.order_of_counted());
        }
        segment.stage = Stage::Ready;
        segment.is_stripe = true;
        self.transmit.stripes.used += 1;
        self.add_load(wr_id, now);
        if let Some(connection) = self.peers.find_mut(pe) {
            let segment = &mut self.transmit.segments[wr_id.0];
            match of {
                None => connection.begin_segment(segment),
                Some(class) => connection.begin_part(segment, class),
            }
        }
        self.dispatch(wr_id, hop.rail);
        true
    }

    /// Counts a segment's bytes among those that its rail has ahead.
    pub(crate) fn add_load(&mut self, wr_id: WrId, now: u64) {
        let rails = self.transmit.rails.len();
        let segment = &mut self.transmit.segments[wr_id.0];
        let (rail, len) = (segment.rail, segment.len());
        segment.in_load = true;
        self.transmit.rails[rail.index()].counters.by_load += 1;
        if let Some(connection) = self.peers.find_mut(segment.pe) {
            connection.ahead(rails)[rail.index()] += len as u64;
        }
        self.transmit.balance.give(rail, len, now);
    }

    pub(crate) fn add_fragment_load(&mut self, wr_id: WrId) {
        if self.transmit.balance.is_on() {
            let now = self.transmit.now();
            self.add_load(wr_id, now);
        }
    }

    /// As [`Core::take_load`], of a segment that ends or, if it is a part of a fragment, has ended.
    /// With a stripe ends the use of its room, too.
    pub(crate) fn end_load(&mut self, wr_id: WrId, done: bool) {
        if std::mem::take(&mut self.transmit.segments[wr_id.0].is_stripe) {
            self.transmit.stripes.used -= 1;
            self.transmit.load_changed = true;
        }
        self.take_load(wr_id, done);
    }

    /// Counts its bytes no longer among those that its rail has ahead, if they were. `done` says
    /// whether the rail has moved them.
    pub(in crate::posting) fn take_load(&mut self, wr_id: WrId, done: bool) {
        let segment = &mut self.transmit.segments[wr_id.0];
        if !std::mem::take(&mut segment.in_load) {
            return;
        }
        let (rail, len) = (segment.rail, segment.len());
        self.transmit.load_changed = true;
        let rails = self.transmit.rails.len();
        if let Some(connection) = self.peers.find_mut(segment.pe) {
            connection.ahead(rails)[rail.index()] -= len as u64;
        }
        if done {
            let now = self.transmit.now();
            self.transmit.balance.done(rail, len, now);
        } else {
            self.transmit.balance.take_back(rail, len);
        }
    }

    pub(crate) fn end_load_completed(&mut self, wr_id: WrId) {
        let posted = |segment: &Segment| segment.stage == Stage::Posted;
        if self.transmit.segments.away(wr_id).is_some_and(posted) {
            self.end_load(wr_id, true);
        }
    }
}

impl<P: Port> Transmit<P> {
    /// The rails that what goes to a peer may be given to now, a bit for each: those whose path to
    /// it is in service, and of these the ones that are not about to be closed, if there are any.
    pub(super) fn usable(&self, pe: Pe, recovers: bool) -> u32 {
        let in_service = self.paths.in_service(pe);
        if !recovers {
            return in_service;
        }
        let bit = |at: usize| u32::from(!self.rails[at].is_paused()) << at;
        let running = (0..self.rails.len()).fold(0, |bits, at| bits | bit(at));
        if in_service & running == 0 { in_service } else { in_service & running }
    }

    #[inline(always)]
    pub(crate) fn balance(&self) -> &Balance {
        &self.balance
    }

    pub(crate) fn has_load_change(&self) -> bool {
        self.load_changed
    }

    pub(crate) fn forget_load_change(&mut self) {
        self.load_changed = false;
    }

    pub(crate) fn waits_for_rails(&mut self) {
        self.load_changed = true;
        self.waits();
    }
}
