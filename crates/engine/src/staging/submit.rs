//! Puts and gets of staged memory, as they are submitted: what has to be staged, by which way, cut
//! into fragments. How a fragment goes on is in [`crate::staging::fragments`].

use std::sync::Arc;

use crate::error::EngineError;
use crate::ids::{LaneKind, Pe, RailId, WrId};
use crate::port::copies::Reach;
use crate::port::{Direction, Port, PortError};
use crate::posting::Core;
use crate::rails::paths::Hop;
use crate::request::{LocalSide, Request, refused};
use crate::staging::Staging;
use crate::staging::fragments::staging_failed;
use crate::staging::gathered::{LONGEST, gathered_len};
use crate::staging::state::role::Role;
use crate::staging::state::{FRAGMENT, Fragment, LocalEnd, NOWHERE, RemoteEnd};
use crate::state::operation::OpId;
use crate::state::regions::{Place, View, desc_of};
use crate::state::segment::work::Work;
use crate::wire::handle::{HandleError, HandleView};
use crate::wire::message::{Body, Spot};
use crate::wire::staged::{Exposure, ListedSignal, MAX_PAYLOAD, Staged};

impl Staging {
    #[inline]
    pub(crate) fn is_staged<P: Port>(
        &mut self,
        core: &mut Core<P>,
        request: &Request<'_>,
        remote: &HandleView<'_>,
    ) -> Result<bool, EngineError> {
        if remote.is_staged() {
            return Ok(true);
        }
        match request.local {
            LocalSide::Memory(addr) if core.transmit.has_devices() => {
                let Request { pe, len, .. } = *request;
                let reach = self.local_reach(core, (request.what(), pe), addr, len)?;
                Ok(self.needs_bounce(core, reach, addr, request.len))
            }
            LocalSide::Memory(addr) => Ok(core.transmit.is_bare(addr, request.len)),
            LocalSide::Value(_) => Ok(false),
        }
    }

    /// Whether local memory takes part in operations through a bounce buffer: when it is staged,
    /// and when the fabric would need it registered, it is not, and there is something to stage
    /// with, or has to be.
    fn needs_bounce<P: Port>(
        &mut self,
        core: &mut Core<P>,
        reach: Reach,
        addr: usize,
        len: usize,
    ) -> bool {
        let regions = core.transmit.regions();
        let usable = || !core.transmit.needs_desc() || regions.is_registered(addr, len);
        reach == Reach::Staged
            || (self.bouncing().is_some() || core.transmit.refuses_bare()) && !usable()
    }

    /// Sees to bounce memory for local memory that nobody has registered. Whether there is some;
    /// not while another thread is making it.
    #[cold]
    fn has_bounce<P: Port>(
        &mut self,
        core: &mut Core<P>,
        memory: (usize, usize),
    ) -> Result<bool, EngineError> {
        if self.bouncing().is_none() {
            core.transmit.regions().provide_stager(memory)?;
            self.sync_regions(core);
        }
        Ok(self.bouncing().is_some())
    }

    /// Returns how local memory is reached that an operation with a PE is about.
    ///
    /// # Errors
    /// No process and no device has memory there, or it is of several kinds.
    #[cold]
    pub(crate) fn local_reach<P: Port>(
        &mut self,
        core: &mut Core<P>,
        (what, pe): (&'static str, Pe),
        addr: usize,
        len: usize,
    ) -> Result<Reach, EngineError> {
        self.sync_regions(core);
        let reach = core.transmit.regions().reach(addr, len);
        if reach != Reach::Direct || core.transmit.regions().is_registered(addr, len) {
            return Ok(reach);
        }
        match self.bouncing() {
            Some(bouncing) => {
                let reach = bouncing.copies.reach(addr, len);
                reach.map_err(|error| staging_failed(what, pe, len, error))
            }
            _ => Ok(Reach::Direct),
        }
    }

    /// As the submission of others, for what has to be staged. `offset` is that of the first remote
    /// byte in its region.
    #[cold]
    pub(crate) fn submit_staged<P: Port>(
        &mut self,
        core: &mut Core<P>,
        request: &Request<'_>,
        remote: &HandleView<'_>,
        offset: u64,
        sent: &mut usize,
        op: OpId,
    ) -> Result<(), EngineError> {
        self.sync_regions(core);
        let Request { direction, pe, local, len, .. } = *request;
        if len == 0 {
            return Ok(());
        }
        let by_peer = remote.is_staged();
        if by_peer && direction == Direction::Write && len <= MAX_PAYLOAD {
            return self.submit_few(core, request, Spot { slot: remote.slot(), offset }, sent, op);
        }
        let LocalSide::Memory(addr) = local else {
            let fault = HandleError::Unregistered;
            return Err(refused(request, "local", fault));
        };
        let reach = self.local_reach(core, (request.what(), pe), addr, len)?;
        let staged = self.needs_bounce(core, reach, addr, len);
        let local_end = if staged { None } else { local_end(core, request, addr)? };
        if !by_peer && local_end.is_none() && !self.has_bounce(core, (addr, len))? {
            return Ok(());
        }
        let mut most = self.bouncing().map_or(FRAGMENT, |bouncing| bouncing.bounce.bounce_len);
        if local_end.is_none() && self.bouncing().is_none() {
            // Nothing of this process is staged, so it has no bounce buffers. Then it goes by
            // messages.
            if direction == Direction::Write {
                return self.submit_in_messages(core, request, remote, offset, sent, op);
            }
            most = MAX_PAYLOAD;
        }
        if by_peer {
            most = most.min(remote.bounce_len());
        }
        let shares = by_peer && self.bouncing().is_some_and(|own| own.copies.is_seen_by(pe));
        let may_join = by_peer && local_end.is_none() && op == OpId::NONE && *sent == 0;
        if may_join && direction == Direction::Write {
            let to = Spot { slot: remote.slot(), offset };
            let most = gathered_len(most, shares);
            if self.joins(core, pe, (addr, len), (to, None), most) {
                *sent = len;
                self.state().influx.takes();
                return Ok(());
            }
        }
        let is_short = may_join && direction == Direction::Write && len <= LONGEST;
        let busy = self.state().peer(pe).fragments >= PIECES;
        let most = fragment_len(len, most, shares, busy);
        while *sent < len {
            let Some(path) = self.path_of_next(core, pe, by_peer) else { return Ok(()) };
            let at = offset + *sent as u64;
            let remote_end = if by_peer {
                RemoteEnd::Peer(Spot { slot: remote.slot(), offset: at })
            } else {
                let key = remote.key(path.remote_key.rail());
                let key = key.map_err(|fault| refused(request, "remote", fault))?;
                RemoteEnd::Fabric { remote: remote.remote_address(at), key }
            };
            let Some((wr_id, message)) = Self::take_segment(core, pe, by_peer) else {
                return Ok(());
            };
            let bytes = (len - *sent).min(most);
            let local_end = match &local_end {
                None => LocalEnd::BounceBuffer,
                Some(local_end) => local_end.at(*sent, path.rail),
            };
            let role = if direction == Direction::Write { Role::Put } else { Role::Get };
            let memory = addr + *sent;
            *sent += bytes;
            let fragment =
                Fragment { role, len: bytes, memory, local_end, remote_end, ..Fragment::NONE };
            let whole = bytes == len;
            self.set_out(core, (wr_id, message), pe, path.rail, (op, whole), fragment)?;
        }
        // The iteration starts what is short, with others that it finds.
        match is_short {
            true => self.state().influx.takes(),
            false => drop(self.start_waiting(core)),
        }
        Ok(())
    }

    fn path_of_next<P: Port>(&mut self, core: &mut Core<P>, pe: Pe, by_peer: bool) -> Option<Hop> {
        // Fragments with messages are not among the messages of the connection's books.
        if !core.fits_quota(self.state().peer(pe).fragments)
            || by_peer && !core.peers.is_within_message_quota(pe)
        {
            return None;
        }
        if by_peer { core.next_path(pe) } else { core.fragment_path(pe) }
    }

    fn take_segment<P: Port>(
        core: &mut Core<P>,
        pe: Pe,
        by_peer: bool,
    ) -> Option<(WrId, Option<u32>)> {
        let wr_id = core.transmit.take()?;
        if !by_peer {
            return Some((wr_id, None));
        }
        let Some(slot) = core.peers.take_beside(wr_id) else {
            core.transmit.give_unused(wr_id);
            return None;
        };
        core.peers.count_unsent(pe);
        Some((wr_id, Some(slot)))
    }

    fn set_out<P: Port>(
        &mut self,
        core: &mut Core<P>,
        (wr_id, message): (WrId, Option<u32>),
        pe: Pe,
        rail: RailId,
        (op, whole): (OpId, bool),
        fragment: Fragment,
    ) -> Result<(), EngineError> {
        let segment = core.transmit.segment_mut(wr_id);
        segment.pe = pe;
        segment.count_for(op.0);
        segment.born = core.failures.stamp();
        segment.direction = match fragment.role {
            Role::Put => Direction::Write,
            _ => Direction::Read,
        };
        segment.set_work(Work::fragment(message, segment.direction, fragment.len));
        segment.rail = rail;
        if op != OpId::NONE {
            core.transmit.ops_mut().add(op.0);
        }
        *self.state().fragment(wr_id) = fragment;
        self.state().peer(pe).fragments += 1;
        if whole && fragment.role == Role::Put && fragment.len <= LONGEST {
            core.stand_behind_fence(pe);
        }
        if core.passes_fence(wr_id) {
            self.begin_fragment(core, wr_id);
        }
        self.open(core, wr_id, op, whole);
        core.peers.check(pe)
    }

    /// A put of some KiB with its signal, both listed: the peer applies the signal when it has
    /// copied the put. Whether there was room. None, and nothing has happened, where they cannot go
    /// so.
    pub(crate) fn submit_listed<P: Port>(
        &mut self,
        core: &mut Core<P>,
        request: &Request<'_>,
        remote: &HandleView<'_>,
        offset: u64,
        signal: ListedSignal,
    ) -> Result<Option<bool>, EngineError> {
        self.sync_regions(core);
        let Request { pe, local, len, .. } = *request;
        let LocalSide::Memory(memory) = local else { return Ok(None) };
        if !remote.is_staged() || !(MAX_PAYLOAD + 1..=LONGEST).contains(&len) {
            return Ok(None);
        }
        if self.bouncing().is_none() {
            return Ok(None);
        }
        let reach = self.local_reach(core, ("put", pe), memory, len)?;
        if !self.needs_bounce(core, reach, memory, len)
            && local_end(core, request, memory)?.is_some()
        {
            return Ok(None);
        }
        let most = self.most_gathered(pe, remote.bounce_len());
        let to = Spot { slot: remote.slot(), offset };
        if self.joins(core, pe, (memory, len), (to, Some(signal)), most) {
            self.state().influx.takes();
            return Ok(Some(true));
        }
        let Some(path) = self.path_of_next(core, pe, true) else { return Ok(Some(false)) };
        let Some(list) = self.list_alone(pe, (memory, len), (to, signal), most) else {
            return Ok(None);
        };
        let Some(taken) = Self::take_segment(core, pe, true) else {
            self.give_list(list);
            return Ok(Some(false));
        };
        let (role, list, remote_end) = (Role::Put, Some(list), RemoteEnd::Peer(to));
        let fragment = Fragment { role, len, memory, remote_end, list, ..Fragment::NONE };
        self.set_out(core, taken, pe, path.rail, (OpId::NONE, true), fragment)?;
        self.state().influx.takes();
        Ok(Some(true))
    }

    /// A fragment of which the peer was asked, perhaps over another rail than it was to be, reads
    /// into its local memory next: with the descriptor of the rail that it is on now.
    pub(crate) fn describe_anew<P: Port>(
        &mut self,
        core: &mut Core<P>,
        wr_id: WrId,
    ) -> Result<(), PortError> {
        let rail = core.transmit.segment(wr_id).rail;
        let fragment = self.state().fragment(wr_id);
        let (addr, len) = (fragment.memory, fragment.len);
        let LocalEnd::Fabric { desc, .. } = &mut fragment.local_end else { return Ok(()) };
        if !core.failures.recovers() || !core.transmit.needs_desc() {
            return Ok(());
        }
        core.transmit.regions_mut().sync();
        match core.transmit.regions().desc_at(addr, len, rail) {
            Some(found) => *desc = found,
            None if core.transmit.port().takes_unregistered() => {}
            None => {
                let text = String::from("its local memory is not registered any more");
                return Err(PortError { call: "reading", code: 0, text });
            }
        }
        Ok(())
    }

    fn submit_in_messages<P: Port>(
        &mut self,
        core: &mut Core<P>,
        request: &Request<'_>,
        remote: &HandleView<'_>,
        offset: u64,
        sent: &mut usize,
        op: OpId,
    ) -> Result<(), EngineError> {
        let LocalSide::Memory(addr) = request.local else { return Ok(()) };
        while *sent < request.len {
            let local = LocalSide::Memory(addr + *sent);
            let len = (request.len - *sent).min(MAX_PAYLOAD);
            let spot = Spot { slot: remote.slot(), offset: offset + *sent as u64 };
            let mut few = 0;
            self.submit_few(core, &Request { local, len, ..*request }, spot, &mut few, op)?;
            if few == 0 {
                break;
            }
            *sent += few;
        }
        Ok(())
    }

    /// A put of a few bytes to staged memory: one message, which the peer acknowledges when they
    /// are there.
    fn submit_few<P: Port>(
        &mut self,
        core: &mut Core<P>,
        request: &Request<'_>,
        to: Spot,
        sent: &mut usize,
        op: OpId,
    ) -> Result<(), EngineError> {
        let Request { pe, len, local, .. } = *request;
        if !core.peers.has_message_room() {
            return Ok(());
        }
        let mut payload = [0; MAX_PAYLOAD];
        let payload = &mut payload[..len];
        match local {
            LocalSide::Value(value) => payload.copy_from_slice(&value.to_le_bytes()[..len]),
            LocalSide::Memory(addr) => {
                let reach = self.local_reach(core, ("put", pe), addr, len)?;
                self.load_at(core, Place { addr, reach }, payload)
                    .map_err(|error| staging_failed("put", pe, len, error))?;
            }
        }
        let is_word = matches!(local, LocalSide::Value(_)) && op == OpId::NONE;
        let submitted = if is_word {
            core.try_word(pe, to, payload)?
        } else {
            core.try_plain_message(pe, op, len, Body::Staged(Staged::Put { to, payload }))?
        };
        if submitted {
            self.counters.in_messages += len as u64;
            *sent = len;
        }
        Ok(())
    }
}

/// How the fabric takes part in moving local memory of a request whose bytes the peer reads, or
/// that are read from the peer. None where it cannot.
fn local_end<P: Port>(
    core: &mut Core<P>,
    request: &Request<'_>,
    addr: usize,
) -> Result<Option<FabricSide>, EngineError> {
    let regions = core.transmit.regions();
    let region = regions.registered(addr, request.len);
    let Some(view) = region.map_err(|fault| refused(request, "local", fault))? else {
        let bare = FabricSide { exposed: NOWHERE, region: None };
        return Ok(
            (request.direction == Direction::Read && !core.transmit.needs_desc()).then_some(bare)
        );
    };
    if request.direction == Direction::Write && view.keys.is_empty() {
        return Ok(None);
    }
    let offset = (addr - view.base) as u64;
    let exposed = Exposure { slot: view.place, stamp: view.stamp, offset };
    Ok(Some(FabricSide { exposed, region: Some((Arc::clone(view), regions.kind())) }))
}

struct FabricSide {
    exposed: Exposure,
    /// Its region, and the lane whose descriptors count. None for what is registered nowhere.
    region: Option<(Arc<View>, LaneKind)>,
}

impl FabricSide {
    /// The part from byte `sent` on, for a rail.
    fn at(&self, sent: usize, rail: RailId) -> LocalEnd {
        let exposed = Exposure { offset: self.exposed.offset + sent as u64, ..self.exposed };
        let desc = self.region.as_ref().map(|(view, kind)| desc_of(view.descs(*kind), rail));
        LocalEnd::Fabric { desc: desc.unwrap_or_default(), exposed }
    }
}

const PIECES: u32 = 4;

/// Bytes of each fragment of an operation of `len` bytes, where bounce buffers take `most`.
///
/// Peers that share bounce memory leave all to copy engines, whose copies cost the same to begin
/// whatever their length: long ones, but [`PIECES`] of them at least. Where so many are under way
/// already, `busy`, those of other operations are: then as long as there is room for. A fabric is
/// best kept busy by more and shorter ones: measured over tcp and shm, none are better than those
/// of [`FRAGMENT`].
fn fragment_len(len: usize, most: usize, shares: bool, busy: bool) -> usize {
    let wanted = match (shares, busy) {
        (false, _) => most / 4,
        (true, false) => len.div_ceil(PIECES as usize).next_multiple_of(4096),
        (true, true) => most,
    };
    wanted.max(FRAGMENT).min(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_are_long_between_peers_that_share_and_short_for_a_fabric() {
        let (kib, mib) = (1 << 10, 1 << 20);
        for (len, most, shares, busy, fragment) in [
            (1, 2 * mib, true, false, FRAGMENT),
            (2 * mib, 2 * mib, true, false, FRAGMENT),
            (2 * mib + 1, 2 * mib, true, false, 516 * kib),
            (8 * mib, 2 * mib, true, false, 2 * mib),
            (64 * mib, 2 * mib, true, false, 2 * mib),
            (64 * mib, 4096, true, false, 4096),
            (mib, 2 * mib, true, true, 2 * mib),
            (64 * mib, 4096, true, true, 4096),
            (64 * mib, 2 * mib, false, false, FRAGMENT),
            (64 * mib, 2 * mib, false, true, FRAGMENT),
            (64 * mib, 8 * mib, false, false, 2 * mib),
            (64 * mib, 64 * kib, false, false, 64 * kib),
        ] {
            let len = fragment_len(len, most, shares, busy);
            assert_eq!(len, fragment, "{len} {most} {shares} {busy}");
        }
    }
}
