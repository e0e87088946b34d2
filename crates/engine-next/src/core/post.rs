//! Segments: posted in turn or by load, as far as there is room.

use crate::core::Core;
use crate::error::EngineError;
use crate::group::{Class, GroupId, GroupRef};
use crate::ids::RailId;
use crate::op::{Kind, Op, Step};
use crate::port::{Direction, Local, Operation, Port, Posted, Transfer};
use crate::rails::load;
use crate::rails::paths::Hop;
use crate::request::{LocalSide, Request};
use crate::segments::{Purpose, State};
use crate::wire::handle::HandleView;

/// Segments of a long operation for each rail or worker, at least, unless they would be shorter than
/// this part of the longest. Longer ones end at multiples of a page.
const PARTS: usize = 8;
const FINEST: usize = 8;
const ALIGN: usize = 4096;

/// A segment that is about to be posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Posting {
    pub(crate) peer: u32,
    pub(crate) hop: Hop,
    pub(crate) transfer: Transfer,
    /// Immediate data for the target.
    pub(crate) immediate: Option<u64>,
    pub(crate) purpose: Purpose,
    pub(crate) completion: GroupId,
    /// The order group that counts it, or the class that it has in the last one.
    pub(crate) counted: Counted,
    /// Whether it is a part of a long operation, for the rail's workers.
    pub(crate) is_long: bool,
}

/// What counts a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Counted {
    Last(Class),
    By(GroupRef),
}

impl<P: Port> Core<P> {
    /// Posts a put or a get on the fast path: one segment in turn, to a peer with nothing queued and
    /// no pending fence, between memory that the fabric reaches. Returns whether it was posted; if
    /// not, nothing has happened. It does not panic.
    #[inline(always)]
    pub(crate) fn try_post(&mut self, request: &Request<'_>, completion: GroupId) -> bool {
        let Self { peers, rails, segments, regions, groups, port, fast, .. } = self;
        let Some((at, peer)) = peers.entry(request.pe) else { return false };
        let Some(hop) = peer.hop().copied() else { return false };
        let Some(rail) = rails.get_mut(hop.rail.index()) else { return false };
        let Some(way) = fast.get(hop.rail.index()) else { return false };
        if !peer.is_open || peer.in_flight >= self.eightfold_room || !rail.has_room() {
            return false;
        }
        let most = rail.limits.max_segment.min(self.spread.balanced_from - 1);
        if request.len.wrapping_sub(1) >= most {
            return false;
        }
        let Some(remote) = HandleView::keyed(request.remote_handle, peer.identity) else {
            return false;
        };
        let Some(address) = remote.target(request.remote_addr, request.len as u64) else {
            return false;
        };
        let local = match request.local {
            LocalSide::Memory(addr) => match regions.recent_desc(addr, request.len, hop.rail) {
                Some(desc) => Local::Memory { addr, desc },
                None => return false,
            },
            LocalSide::Value(value)
                if request.direction == Direction::Write && request.len <= 8 =>
            {
                Local::Value(value)
            }
            LocalSide::Value(_) => return false,
        };
        let Some((wr_id, segment)) = segments.reserve() else { return false };
        segment.transfer = Transfer {
            direction: request.direction,
            local,
            len: request.len,
            remote: address,
            key: remote.key_at(hop.remote),
        };
        let (context, transfer) = (segment.context, &segment.transfer);
        if !port.try_post(*way, hop.rail, hop.to, wr_id, context, transfer) {
            return false;
        }
        let class = match request.direction {
            Direction::Write => Class::Write,
            Direction::Read => Class::Read,
        };
        segment.group = peer.order.begin(class);
        segment.peer = at;
        segment.purpose = Purpose::Plain;
        segment.completion = completion;
        segment.rail = hop.rail;
        segment.born = self.watchdog.stamp();
        segments.commit();
        rail.begin(request.len);
        self.eightfold_room -= 8;
        peer.in_flight += 1;
        match request.direction {
            Direction::Write => peer.writes = peer.writes.wrapping_add(1),
            Direction::Read => peer.reads = peer.reads.wrapping_add(1),
        }
        groups.begin(completion);
        peer.next = hop.next;
        true
    }

    /// Posts a segment. Returns whether the fabric has taken it.
    ///
    /// # Errors
    /// The fabric has refused it for good; its peer has failed with that.
    pub(crate) fn post(&mut self, posting: &Posting) -> Result<bool, EngineError> {
        let Posting { peer: at, hop, ref transfer, immediate, purpose, completion, .. } = *posting;
        let rail = &mut self.rails[hop.rail.index()];
        if !rail.has_room() {
            return Ok(false);
        }
        let Some((wr_id, segment)) = self.segments.reserve() else { return Ok(false) };
        let operation = match immediate {
            None => Operation::Transfer(transfer),
            Some(data) => Operation::WriteWithImmediate(transfer, data),
        };
        let by_workers = posting.is_long && rail.limits.bulk > 0;
        let posted = if by_workers {
            self.port.post_bulk(hop.rail, hop.to, wr_id, operation).transpose()
        } else {
            None
        };
        let is_bulk = posted.is_some();
        let posted = posted.unwrap_or_else(|| self.port.post(hop.rail, hop.to, wr_id, operation));
        match posted {
            Ok(Posted::Yes) => {}
            Ok(Posted::Again) => {
                rail.counters.again += 1;
                self.peers.get_mut(at).is_refused = true;
                return Ok(false);
            }
            Err(error) => {
                let peer = self.peers.get(at);
                let failed = EngineError::Segment {
                    what: if transfer.direction == Direction::Read { "get" } else { "put" },
                    pe: peer.pe,
                    len: transfer.len,
                    rail: hop.rail,
                    rail_name: self.port.rail_name(hop.rail).to_owned(),
                    error,
                };
                self.fail_peer(at, failed.clone());
                return Err(failed);
            }
        }
        if is_bulk {
            rail.counters.bulk_bytes += transfer.len as u64;
        }
        rail.begin(transfer.len);
        let peer = self.peers.get_mut(at);
        peer.is_refused = false;
        segment.transfer = *transfer;
        segment.peer = at;
        segment.born = self.watchdog.stamp();
        segment.purpose = purpose;
        segment.completion = completion;
        segment.group = match posting.counted {
            Counted::Last(class) => peer.order.begin(class),
            Counted::By(group) => group,
        };
        segment.rail = hop.rail;
        segment.state = State::Posted;
        self.segments.commit();
        self.eightfold_room -= 8;
        peer.in_flight += 1;
        match transfer.direction {
            Direction::Write => peer.writes = peer.writes.wrapping_add(1),
            Direction::Read => peer.reads = peer.reads.wrapping_add(1),
        }
        self.groups.begin(completion);
        Ok(true)
    }

    /// Posts the segments of an operation as far as there is room. `mark` gives the immediate data
    /// of each, if the target counts them. Returns how many were posted, and whether that was all.
    ///
    /// # Errors
    /// Local memory that the fabric does not take, or a segment that it refuses.
    pub(crate) fn post_parts(
        &mut self,
        at: u32,
        op: &mut Op,
        request: &Request<'_>,
        immediate: Option<u64>,
    ) -> Result<(u32, Step), EngineError> {
        let (remote, offset) = request.remote()?;
        self.learn(at, &remote);
        let direction = request.direction;
        if direction == Direction::Write {
            let peer = self.peers.get(at);
            if !peer.order.is_ordered(peer.fence) {
                return Ok((0, Step::Held));
            }
        }
        let class = match (direction, immediate) {
            (Direction::Read, _) => Class::Read,
            (Direction::Write, None) => Class::Write,
            // The message that tells how many there are is behind them at the target.
            (Direction::Write, Some(_)) => Class::Message,
        };
        let counted = op.counted_by.map_or(Counted::Last(class), Counted::By);
        let completion = match op.kind {
            Kind::PutSignal(_, crate::op::Way::Chained { data, .. }) => data,
            _ => op.completion,
        };
        let by_load = op.len >= self.spread.balanced_from;
        let is_long = op.len >= self.spread.striped_from;
        let whole = if is_long { self.piece(at, op.len) } else { op.len };
        let mut posted = 0;
        while op.sent < op.len {
            if !self.is_within_quota(self.peers.get(at)) {
                return Ok((posted, Step::NoRoom));
            }
            let len = whole.min(op.len - op.sent);
            let first = if by_load { self.choose(at, len) } else { self.next_hop(at) };
            let Some(mut hop) = first else { return Ok((posted, Step::NoRoom)) };
            let first = hop.rail;
            let mut is_posted = false;
            loop {
                let key = remote.key(hop.remote.rail());
                let key = key.map_err(|fault| request.refuse("remote", fault))?;
                let len = len.min(self.rails[hop.rail.index()].limits.max_segment);
                let local = self.local(request, op.sent, len, hop.rail)?;
                let remote = remote.remote_address(offset) + op.sent as u64;
                let transfer = Transfer { direction, local, len, remote, key };
                let purpose = if by_load { Purpose::Stripe } else { Purpose::Plain };
                let posting = Posting {
                    peer: at,
                    hop,
                    transfer,
                    immediate,
                    purpose,
                    completion,
                    counted,
                    is_long,
                };
                if self.post(&posting)? {
                    (is_posted, posted) = (true, posted + 1);
                    op.sent += len;
                    if by_load {
                        self.give_load(at, hop.rail, len);
                    } else {
                        self.peers.get_mut(at).next = hop.next;
                    }
                    break;
                }
                // The fabric takes nothing on this rail now; another rail may have room.
                match self.peers.get(at).hops.get(hop.next as usize) {
                    Some(next) if next.rail != first => hop = *next,
                    _ => break,
                }
            }
            if !is_posted {
                return Ok((posted, Step::NoRoom));
            }
        }
        Ok((posted, Step::Done))
    }

    /// Length of the segments of a long operation: shorter ones are cut finer, so that all rails and
    /// workers have a part.
    fn piece(&self, at: u32, len: usize) -> usize {
        let rails = self.peers.get(at).hops.iter().map(|hop| &self.rails[hop.rail.index()]);
        let ways: usize = rails.map(|rail| usize::from(rail.limits.bulk).max(1)).sum();
        let segment = self.spread.segment.max(1);
        if ways == 1 && self.rails[0].limits.bulk == 0 {
            return len;
        }
        let part = len.div_ceil(PARTS * ways).next_multiple_of(ALIGN.min(segment));
        part.clamp(segment.div_ceil(FINEST), segment)
    }

    /// The next path whose rail has room.
    fn next_hop(&self, at: u32) -> Option<Hop> {
        let peer = self.peers.get(at);
        let mut hop = *peer.hop()?;
        for _ in 0..peer.hops.len() {
            if self.rails[hop.rail.index()].has_room() {
                return Some(hop);
            }
            hop = *peer.hops.get(hop.next as usize)?;
        }
        None
    }

    /// The path of the rail that is expected to finish a segment first, if that has room.
    fn choose(&mut self, at: u32, len: usize) -> Option<Hop> {
        let now = self.port.now();
        let peer = self.peers.get(at);
        let loads = peer.hops.iter().map(|hop| {
            let rail = &self.rails[hop.rail.index()];
            (hop.rail.0, rail.load, rail.limits.bulk, peer.ahead[hop.rail.index()])
        });
        let rail = load::choose(loads, len, now)?;
        let hop = peer.hops.iter().find(|hop| hop.rail.0 == rail)?;
        self.rails[hop.rail.index()].has_room().then_some(*hop)
    }

    fn give_load(&mut self, at: u32, rail: RailId, len: usize) {
        let now = self.port.now();
        let of = &mut self.rails[rail.index()];
        of.load.give(len as u64, now);
        of.counters.by_load += 1;
        self.peers.get_mut(at).ahead[rail.index()] += len as u64;
    }
}
