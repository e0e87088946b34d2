//! The load of rails: the bytes that each has ahead, and the paths that are chosen by them.

use crate::error::EngineError;
use crate::ids::{Pe, WrId};
use crate::port::{Desc, Local, Port, Transfer};
use crate::posting::Core;
use crate::rails::paths::Hop;
use crate::request::{LocalSide, Request, refused};
use crate::state::operation::OpId;
use crate::state::segment::{Kind, Segment, Stage, WriteClass};
use crate::wire::handle::HandleView;
use crate::wire::message::Tag;

/// What a segment is whose rail was chosen by load.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stripe {
    /// Bytes of a put or a get.
    Plain,
    /// The same, which the peer counts by this tag.
    Counted(Tag),
}

impl<P: Port> Core<P> {
    /// The rails that what goes to a peer may be given to now, a bit for each: those whose path to it is
    /// in service, and of these the ones that are not about to be closed, if there are any.
    pub(super) fn usable(&self, pe: Pe) -> u32 {
        let in_service = self.paths.in_service(pe);
        if !self.recovers {
            return in_service;
        }
        let bit = |at: usize| u32::from(!self.rails[at].is_paused()) << at;
        let running = (0..self.rails.len()).fold(0, |bits, at| bits | bit(at));
        if in_service & running == 0 { in_service } else { in_service & running }
    }

    /// The path that a segment is to take now, by load, if there is room for it.
    pub(crate) fn pick(&mut self, pe: Pe, len: usize, left: u64, now: u64) -> Option<Hop> {
        if !self.stripes.is_left() {
            return None;
        }
        let rails = self.rails.len();
        let usable = self.usable(pe);
        let ahead = self.connections.find_mut(pe)?.ahead(rails);
        let rail = self.balance.pick(now, ahead, len, left, usable)?;
        Some(self.paths.get(pe, rail))
    }

    /// The path whose turn it is, as often as the rails' rates say.
    pub(crate) fn path_in_turn(&mut self, pe: Pe, now: u64) -> Hop {
        let usable = self.usable(pe);
        self.paths.get(pe, self.balance.next_in_turn(now, usable))
    }

    /// The path of what cannot wait for a rail, but is no short operation either: fragments of staged memory.
    pub(crate) fn fragment_path(&mut self, pe: Pe) -> Option<Hop> {
        if self.balance.is_on() {
            let now = self.port.now();
            return Some(self.path_in_turn(pe, now));
        }
        let Self { connections, paths, .. } = self;
        let connection = connections.find_mut(pe)?;
        let next = connection.next;
        connection.rotate(paths);
        Some(next)
    }

    /// Whether local memory may be staged. It may be once some is registered, also in a process that has loaded CUDA only
    /// after the PEs were connected.
    #[inline]
    pub(crate) fn has_devices(&mut self) -> bool {
        self.regions.sync();
        self.devices |= self.regions.has_beyond();
        self.devices
    }

    /// What is wrong with a request, without anything being submitted.
    pub(crate) fn check_request(&mut self, request: &Request<'_>) -> Result<(), EngineError> {
        let refuse = |fault| refused(request, "remote", fault);
        let remote = HandleView::check_of(request.pe, request.remote_handle).map_err(refuse)?;
        remote.locate(request.remote_addr, request.len as u64).map_err(refuse)?;
        let staged = remote.is_staged();
        if staged || request.len == 0 || self.has_devices() {
            // How its local side is reached is looked at when it is its turn.
            return Ok(());
        }
        let hop = self.connection_to(request.pe)?.next;
        self.transfer(request, 0, 1, &hop).map(drop)
    }

    /// What is posted for a part of a request on a path.
    pub(crate) fn transfer(
        &mut self,
        request: &Request<'_>,
        sent: usize,
        len: usize,
        hop: &Hop,
    ) -> Result<Transfer, EngineError> {
        let refuse = |fault| refused(request, "remote", fault);
        let remote = HandleView::check_of(request.pe, request.remote_handle).map_err(refuse)?;
        let offset = remote.locate(request.remote_addr, request.len as u64).map_err(refuse)?;
        let key = remote.key(hop.remote.rail()).map_err(refuse)?;
        let local = match request.local {
            LocalSide::Value(value) => Local::Inline(value),
            LocalSide::Memory { addr, handle } => {
                let optional = handle.is_none() && self.port.takes_unregistered();
                let desc = if self.needs_desc && !optional {
                    self.regions.desc_for(request, addr, handle, hop.rail)?
                } else {
                    Desc(0)
                };
                Local::Memory { addr: addr + sent, desc }
            }
        };
        Ok(Transfer {
            direction: request.direction,
            local,
            len,
            remote: remote.remote_address(offset) + sent as u64,
            key,
        })
    }

    /// Lets a segment of an operation leave by a path that was chosen by load. It belongs to those before any
    /// fence. `of` is the class of the operation, if that is under way. Whether there was room for it.
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
        let Some(wr_id) = self.segments.take() else { return false };
        self.fill(wr_id, pe, hop, transfer, op, Kind::Stripe);
        let segment = &mut self.segments[wr_id.0];
        match stripe {
            Stripe::Plain => {}
            Stripe::Counted(tag) => segment.set_counted(tag),
        }
        segment.stage = Stage::Ready;
        segment.is_stripe = true;
        self.stripes.used += 1;
        self.add_load(wr_id, now);
        if let Some(connection) = self.connections.find_mut(pe) {
            let segment = &mut self.segments[wr_id.0];
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
        let rails = self.rails.len();
        let segment = &mut self.segments[wr_id.0];
        let (rail, len) = (segment.rail, segment.transfer.len);
        segment.in_load = true;
        self.rails[rail.index()].counters.by_load += 1;
        if let Some(connection) = self.connections.find_mut(segment.pe) {
            connection.ahead(rails)[rail.index()] += len as u64;
        }
        self.balance.give(rail, len, now);
    }

    /// As [`Core::add_load`], for the part of a fragment that leaves now.
    pub(crate) fn add_fragment_load(&mut self, wr_id: WrId) {
        if self.balance.is_on() {
            let now = self.port.now();
            self.add_load(wr_id, now);
        }
    }

    /// As [`Core::take_load`], of a segment that ends or, if it is a part of a fragment, has ended. With a stripe
    /// ends the use of its room, too.
    pub(crate) fn end_load(&mut self, wr_id: WrId, done: bool) {
        if std::mem::take(&mut self.segments[wr_id.0].is_stripe) {
            self.stripes.used -= 1;
            self.load_changed = true;
        }
        self.take_load(wr_id, done);
    }

    /// Counts its bytes no longer among those that its rail has ahead, if they were. `done` says whether
    /// the rail has moved them.
    pub(crate) fn take_load(&mut self, wr_id: WrId, done: bool) {
        let segment = &mut self.segments[wr_id.0];
        if !std::mem::take(&mut segment.in_load) {
            return;
        }
        let (rail, len) = (segment.rail, segment.transfer.len);
        self.load_changed = true;
        let rails = self.rails.len();
        if let Some(connection) = self.connections.find_mut(segment.pe) {
            connection.ahead(rails)[rail.index()] -= len as u64;
        }
        if done {
            let now = self.port.now();
            self.balance.done(rail, len, now);
        } else {
            self.balance.take_back(rail, len);
        }
    }

    /// As [`Core::end_load`] of a segment that has completed, before it is known whether there is one.
    pub(crate) fn end_load_completed(&mut self, wr_id: WrId) {
        let posted = |segment: &Segment| segment.stage == Stage::Posted;
        if self.segments.away(wr_id).is_some_and(posted) {
            self.end_load(wr_id, true);
        }
    }
}
