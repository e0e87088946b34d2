//! Segments: posted over rails in turn or by load, as far as capacity permits.

use crate::core::Core;
use crate::error::EngineError;
use crate::group::{Class, CompletionId, OrderGroup};
use crate::ids::{Pe, RailId, WrId};
use crate::op::{Op, OpKind, Outcome};
use crate::port::{Direction, Local, Operation, Port, Posted, Transfer};
use crate::rails::load;
use crate::rails::paths::PeerPath;
use crate::request::{LocalSide, Request, Start};
use crate::segments::{self, BALANCED, BY_LOAD, PLAIN, Segment, SegmentState};
use crate::wire::handle::HandleView;

/// Minimum number of segments of a long operation per rail or worker, unless they would be shorter
/// than 1/`FINEST` of the longest. They end at multiples of `ALIGN` bytes, a page.
const PARTS: usize = 8;
const FINEST: usize = 8;
const ALIGN: usize = 4096;

#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentPost {
    pub(crate) path: PeerPath,
    pub(crate) transfer: Transfer,
    pub(crate) immediate: Option<u64>,
    /// [`BALANCED`], [`PLAIN`], or the number of staging's transfer.
    pub(crate) token: u32,
    pub(crate) completion: CompletionId,
    pub(crate) group: OrderGroup,
    /// Whether it is part of a long operation, for which the rail's workers may be used.
    pub(crate) is_long: bool,
}

impl<P: Port> Core<P> {
    /// Posts a put or a get on the fast path: one segment, over the next path, to a peer with
    /// nothing queued and no pending fence, between memory that the fabric reaches. Never panics.
    #[inline(always)]
    pub(crate) fn try_post(&mut self, request: &Request<'_>, completion: CompletionId) -> Start {
        let Self { peers, rails, segments, regions, groups, port, .. } = self;
        let Request { direction, pe, remote_handle, remote_addr, local, len } = *request;
        let Some(peer) = peers.of_mut(pe) else { return Start::Blocked };
        let Some(handle) = HandleView::keyed(remote_handle, peer.fast_prefix) else {
            return Start::Blocked;
        };
        let Some(remote) = handle.target(remote_addr, len as u64) else { return Start::Blocked };
        let id = peer.path.rail;
        let rail = &mut rails[id];
        // `len - 1` wraps for 0, so one comparison refuses empty and long operations.
        if len.wrapping_sub(1) >= rail.max_round_robin || peer.in_flight >= rail.quota {
            return Start::Blocked;
        }
        let is_local = match local {
            LocalSide::Memory(addr) => regions.is_recent(addr, len),
            LocalSide::Value(_) => direction == Direction::Write && len <= 8,
        };
        if !is_local {
            return Start::Blocked;
        }
        let Some((wr_id, segment)) = segments.take() else { return Start::Blocked };
        // Counted before the fabric is called: little has to be kept in registers over the call.
        segment.set_memory(local, len);
        segment.account = peer.account.of_class(class_of(direction), completion).towards(direction);
        segment.born = self.watchdog.time();
        peer.begin(peer.order.next(class_of(direction)));
        rail.begin(len);
        groups.begin(completion);
        // From here on values are made in the order of the call's arguments.
        let local = match local {
            LocalSide::Memory(addr) => Local::Memory { addr, desc: regions.last_desc(id) },
            LocalSide::Value(value) => Local::Value(value),
        };
        let key = handle.key_at(peer.path.remote);
        let transfer = Transfer { direction, local, len, remote, key };
        let is_posted = port.try_post(rail.fast, id, peer.path.to, wr_id, &transfer);
        // Advanced also if the post fails: then the general path tries the next rail first.
        peer.advance_path(peer.path.next);
        if is_posted { Start::Done } else { Start::Refused }
    }

    /// Undoes the counts of the last post, which the fabric has not taken.
    pub(crate) fn undo_last_post(&mut self) {
        self.undo_post(self.segments.last_taken());
    }

    /// Undoes the counts of a segment that the fabric has not taken. Always returns false.
    fn undo_post(&mut self, wr_id: WrId) -> bool {
        let Some(segment) = self.segments.posted_mut(wr_id.index()) else { return false };
        let Segment { account, len, .. } = *segment;
        self.segments.free(wr_id.index());
        self.rails[account.rail()].undo(len);
        let peer = self.peers.get_mut(account.pe());
        peer.in_flight -= 1;
        let may_settle = peer.order.end(account.group(), 1);
        // The caller or queue still counts in a group with a continuation, so it does not end here.
        let _ = self.groups.end(account.completion(), 1);
        if may_settle {
            self.settle_later(account.pe());
        }
        false
    }

    /// Posts a segment. Returns false if the fabric has no capacity for it.
    ///
    /// # Errors
    /// The fabric has refused it for good, and its peer has failed with that error.
    pub(crate) fn post(&mut self, posting: &SegmentPost) -> Result<bool, EngineError> {
        let SegmentPost { path, ref transfer, token, completion, group, .. } = *posting;
        let pe = path.account.pe();
        let Self { peers, rails, segments, port, .. } = self;
        let (peer, rail) = (peers.get_mut(pe), &mut rails[path.rail]);
        // The quota shrinks as the rail fills: a silent peer cannot take it all.
        if peer.in_flight >= rail.quota {
            return Ok(false);
        }
        let operation = match posting.immediate {
            None => Operation::Transfer(transfer),
            Some(data) => Operation::WriteWithImmediate(transfer, data),
        };
        let state = if token == PLAIN { SegmentState::Plain } else { SegmentState::Other };
        let Some((wr_id, segment)) = segments.take() else { return Ok(false) };
        let side = match transfer.local {
            Local::Memory { addr, .. } => LocalSide::Memory(addr),
            Local::Value(value) => LocalSide::Value(value),
        };
        segment.set_memory(side, transfer.len);
        let account = path.account.in_groups(completion, group).with(state);
        segment.account = account.towards(transfer.direction);
        segment.born = self.watchdog.time();
        segment.token = token;
        peer.begin(group);
        rail.begin(transfer.len);
        self.groups.begin(completion);
        let mut posted = Ok(None);
        // A worker has a connection of its own, so its copying does not block this thread.
        if posting.is_long && rail.limits.bulk > 0 {
            posted = port.post_bulk(path.rail, path.to, wr_id, operation);
            if let Ok(Some(Posted::Yes)) = posted {
                rail.counters.bulk_bytes += transfer.len as u64;
            }
        }
        let posted = posted.transpose();
        let posted = posted.unwrap_or_else(|| port.post(path.rail, path.to, wr_id, operation));
        // Tells the watchdog whether the peer waits for the fabric or for other peers.
        peer.is_refused = !matches!(posted, Ok(Posted::Yes));
        match posted {
            Ok(Posted::Yes) => Ok(true),
            Ok(Posted::Again) => {
                rail.counters.again += 1;
                Ok(self.undo_post(wr_id))
            }
            Err(error) => {
                self.undo_post(wr_id);
                let what = segments::name(transfer.direction, token);
                let failed = self.segment_error((what, pe), transfer.len, path.rail, error);
                self.fail_peer(pe, failed.clone());
                Err(failed)
            }
        }
    }

    /// Posts the remaining segments of an operation as far as capacity permits, with `immediate`
    /// data if the target counts them. Returns how many were posted, and whether that was all.
    ///
    /// # Errors
    /// Local memory that the fabric does not take, or a segment that it refuses.
    pub(crate) fn post_parts(
        &mut self,
        pe: Pe,
        op: &mut Op,
        request: &Request<'_>,
        immediate: Option<u64>,
    ) -> Result<(u32, Outcome), EngineError> {
        let (remote, offset) = request.remote()?;
        self.cache_prefix(pe, &remote);
        let direction = request.direction;
        if direction == Direction::Write {
            let peer = self.peers.get(pe);
            // Unlike a message, a segment cannot tell the target what to execute first: messages
            // before the fence have to be executed before it leaves.
            if !peer.order.is_ordered(peer.fence) {
                return Ok((0, Outcome::Blocked));
            }
        }
        // Counted segments belong to the message that names their number: a separate signal must
        // not wait for them as for writes.
        let class = if immediate.is_some() { Class::Message } else { class_of(direction) };
        let group = op.group.unwrap_or_else(|| self.peers.get(pe).order.next(class));
        let completion = match op.kind {
            OpKind::PutSignal(_, crate::op::SignalProtocol::Chained { data, .. }) => data,
            _ => op.completion,
        };
        let by_load = op.len >= self.spread.balanced_from;
        let token = if by_load { BALANCED } else { PLAIN };
        let is_long = op.len >= self.spread.striped_from;
        let whole = if is_long { self.segment_len(pe, op.len) } else { op.len };
        let mut posted = 0;
        while op.sent < op.len {
            let left = whole.min(op.len - op.sent);
            let part = self.post_segment(pe, left, by_load, |core, path, len| {
                let key = remote.key(path.remote.rail());
                let key = key.map_err(|fault| request.refuse("remote", fault))?;
                let local = core.local(request, op.sent, len, path.rail)?;
                let remote = remote.remote_address(offset) + op.sent as u64;
                let transfer = Transfer { direction, local, len, remote, key };
                Ok(Some(SegmentPost {
                    path,
                    transfer,
                    immediate,
                    token,
                    completion,
                    group,
                    is_long,
                }))
            })?;
            let Some(part) = part else { return Ok((posted, Outcome::LaneFull)) };
            (op.sent, posted) = (op.sent + part, posted + 1);
        }
        Ok((posted, Outcome::Done))
    }

    /// Posts a segment of at most `left` bytes, chosen by load or in turn, on the first path that
    /// takes it now and for which `posting` returns one. Returns its length, or None.
    fn post_segment(
        &mut self,
        pe: Pe,
        left: usize,
        by_load: bool,
        mut posting: impl FnMut(&mut Self, PeerPath, usize) -> Result<Option<SegmentPost>, EngineError>,
    ) -> Result<Option<usize>, EngineError> {
        let first = if by_load { self.choose(pe, left) } else { self.next_path(pe) };
        let Some(mut path) = first else { return Ok(None) };
        let first = path.rail;
        loop {
            // A rail that is tried next may take less than the one chosen first.
            let len = left.min(self.rails[path.rail].limits.max_segment);
            if let Some(posting) = posting(self, path, len)? {
                if self.post(&posting)? {
                    if by_load {
                        self.add_load(pe, path.rail, len);
                    }
                    self.peers.get_mut(pe).advance_path(path.next);
                    return Ok(Some(len));
                }
            }
            // The fabric takes nothing on this rail now; another one may have capacity.
            match self.peers.get(pe).paths.get(path.next as usize) {
                Some(next) if next.rail != first => path = *next,
                _ => return Ok(None),
            }
        }
    }

    /// Posts the next segment of a staged transfer that has `left` bytes left of an operation of
    /// `len`, over a rail for which there is a key. Returns its length, or None if no rail takes it
    /// now.
    pub(crate) fn post_staged(
        &mut self,
        (pe, token, direction): (Pe, u32, Direction),
        (left, len): (usize, usize),
        local: impl Fn(RailId) -> Local,
        remote: impl Fn(RailId) -> Option<(u64, u64)>,
    ) -> Result<Option<usize>, EngineError> {
        let by_load = len >= self.spread.balanced_from;
        let token = if by_load { token | BY_LOAD } else { token };
        let is_long = len >= self.spread.striped_from;
        // Own transfers count themselves, from start to end; reads for a peer count in no group.
        let (completion, group, immediate) = (CompletionId::NONE, OrderGroup::NONE, None);
        self.post_segment(pe, left, by_load, |_, path, len| {
            let Some((remote, key)) = remote(path.remote.rail()) else { return Ok(None) };
            let transfer = Transfer { direction, local: local(path.rail), len, remote, key };
            Ok(Some(SegmentPost { path, transfer, immediate, token, completion, group, is_long }))
        })
    }

    fn segment_len(&self, pe: Pe, len: usize) -> usize {
        // Shorter operations are cut finer, so that each rail and worker has a part.
        let rails = self.peers.get(pe).paths.iter().map(|path| &self.rails[path.rail]);
        let workers: usize = rails.map(|rail| usize::from(rail.limits.bulk).max(1)).sum();
        let segment = self.spread.segment.max(1);
        if workers == 1 && self.rails[RailId(0)].limits.bulk == 0 {
            return len;
        }
        let part = len.div_ceil(PARTS * workers).next_multiple_of(ALIGN.min(segment));
        part.clamp(segment.div_ceil(FINEST), segment)
    }

    fn next_path(&self, pe: Pe) -> Option<PeerPath> {
        let peer = self.peers.get(pe);
        let mut path = peer.path;
        // Each path once: all rails may be full.
        for _ in 0..peer.paths.len() {
            if peer.in_flight < self.rails[path.rail].quota {
                return Some(path);
            }
            path = *peer.paths.get(path.next as usize)?;
        }
        None
    }

    /// Returns the path whose rail is expected to finish a segment first, if it has capacity.
    fn choose(&mut self, pe: Pe, len: usize) -> Option<PeerPath> {
        let now = self.port.now();
        let peer = self.peers.get(pe);
        // Rails with equal loads take turns: the first of the best is chosen.
        let turn = peer.paths.iter().position(|path| path.rail == peer.path.rail).unwrap_or(0);
        let paths = peer.paths[turn..].iter().chain(&peer.paths[..turn]);
        let loads = paths.map(|path| {
            let rail = &self.rails[path.rail];
            (path.rail.0, rail.load, rail.limits.bulk, peer.bytes_ahead[path.rail.index()])
        });
        let rail = load::choose(loads, len, now)?;
        let path = peer.paths.iter().find(|path| path.rail.0 == rail)?;
        (peer.in_flight < self.rails[path.rail].quota).then_some(*path)
    }

    fn add_load(&mut self, pe: Pe, rail: RailId, len: usize) {
        let now = self.port.now();
        let of = &mut self.rails[rail];
        of.load.add(len as u64, now);
        of.counters.by_load += 1;
        self.peers.get_mut(pe).bytes_ahead[rail.index()] += len as u64;
    }
}

#[inline(always)]
fn class_of(direction: Direction) -> Class {
    match direction {
        Direction::Write => Class::Write,
        Direction::Read => Class::Read,
    }
}
