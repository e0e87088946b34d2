//! Puts and gets that are large enough for the choice of their rails to matter: cut into segments that
//! are given to the rails as these get through with them. Which rail a segment goes by is decided in
//! [`crate::engine::striping::balance`].
//!
//! What no rail wants yet of an operation waits in the lane's *pool*, as one segment of the table, which
//! stands for the rest and knows all that is needed to cut it. For stream, fence and operation it is a
//! segment like any other: it is under way until the last byte has been cut off, and behind a fence it is
//! held whole. Its cuts are segments of their own.
//!
//! # Why it cannot deadlock
//! Cuts have slots set aside for them ([`segments_for`]), which neither the pool nor anything else takes.
//! What waits in the pool waits for (a) such a slot or (b) a rail that has less ahead; both come with
//! completions of cuts that are out, and if none are out there is nothing to wait for. When the pool is
//! full the submitter is held, in a call that runs the loop.

use std::collections::VecDeque;

use crate::engine::error::EngineError;
use crate::engine::ids::{Pe, RailId, Token};
use crate::engine::lane::Lane;
use crate::engine::lane::submit::{local_desc, refused};
use crate::engine::port::{Desc, Direction, Local, Port, RailLimits, Transfer};
use crate::engine::request::{LocalSide, Request};
use crate::engine::signal::counted::Told;
use crate::engine::state::operation::OpId;
use crate::engine::state::paths::Hop;
use crate::engine::state::regions::RegionCache;
use crate::engine::state::segment::{Kind, NIL, Stage};
use crate::engine::wire::handle::{HandleBytes, HandleView};

/// Operations that wait in the pool, or behind fences, at a time.
const POOL: usize = 64;

/// Looks at the pool after which it is gone through although nothing has ended: rates change with time
/// too.
const LOOKS: u32 = 64;

/// Segments that are set aside for operations in the pool and for their cuts.
pub(in crate::engine) fn segments_for(limits: &[RailLimits]) -> u32 {
    if limits.len() > 1 { POOL as u32 + cuts_for(limits) } else { 0 }
}

/// Most cuts under way.
fn cuts_for(limits: &[RailLimits]) -> u32 {
    limits.iter().map(|rail| rail.depth.clamp(4, 128)).sum()
}

/// What is needed to cut an operation.
#[derive(Debug)]
struct Bulk {
    remote: HandleBytes,
    remote_addr: u64,
    addr: usize,
    handle: Option<HandleBytes>,
    len: usize,
    /// Bytes that have been cut off.
    sent: usize,
    /// The remote data of its cuts, if the peer counts them.
    data: Option<u32>,
}

impl Bulk {
    fn request(&self, pe: Pe, direction: Direction) -> Request<'_> {
        Request {
            direction,
            pe,
            remote_handle: &self.remote,
            remote_addr: self.remote_addr,
            local: LocalSide::Memory { addr: self.addr, handle: self.handle.as_ref() },
            len: self.len,
        }
    }
}

/// The operations of a lane that wait for rails.
#[derive(Debug)]
pub(in crate::engine) struct Bulks {
    /// By the segments' `message`. It grows to the number that wait at a time.
    places: Vec<Bulk>,
    free: Vec<u32>,
    /// Those that may be cut, oldest first.
    pool: VecDeque<Token>,
    /// Bytes of those in the pool that have not been cut off.
    pooled: u64,
    /// Cuts under way.
    pub(in crate::engine) cuts: u32,
    /// Most of them.
    most_cuts: u32,
    /// Something has happened since the pool was last gone through.
    pub(in crate::engine) stirred: bool,
    looks: u32,
}

impl Bulks {
    pub(in crate::engine) fn new(limits: &[RailLimits]) -> Self {
        let most = if limits.len() > 1 { POOL } else { 0 };
        Self {
            places: Vec::with_capacity(most),
            free: Vec::with_capacity(most),
            pool: VecDeque::with_capacity(most),
            pooled: 0,
            cuts: 0,
            most_cuts: cuts_for(limits),
            stirred: false,
            looks: 0,
        }
    }

    /// Whether another operation may wait.
    pub(in crate::engine) fn has_room(&self) -> bool {
        !self.free.is_empty() || self.places.len() < POOL
    }

    /// Whether there may be another cut.
    pub(in crate::engine) fn has_cut_room(&self) -> bool {
        self.cuts < self.most_cuts
    }

    /// Segments that it has of those set aside.
    pub(in crate::engine) fn used(&self) -> u32 {
        self.cuts + (self.places.len() - self.free.len()) as u32
    }

    fn enter(&mut self, bulk: Bulk) -> u32 {
        if let Some(index) = self.free.pop() {
            self.places[index as usize] = bulk;
            return index;
        }
        self.places.push(bulk);
        self.places.len() as u32 - 1
    }

    /// Whether the pool is to be gone through.
    fn is_due(&mut self) -> bool {
        self.looks += 1;
        if self.pool.is_empty() || !self.stirred && self.looks < LOOKS {
            return false;
        }
        (self.stirred, self.looks) = (false, 0);
        true
    }
}

impl<P: Port> Lane<P> {
    /// As [`Lane::submit`], for an operation whose rails are chosen by load, which is not staged.
    #[inline(never)]
    pub(in crate::engine) fn submit_weighed(
        &mut self,
        request: &Request<'_>,
        sent: &mut usize,
        op: OpId,
        mut told: Option<&mut Told>,
    ) -> Result<(), EngineError> {
        let data = told.as_ref().map(|told| told.data);
        let Some(stream) = self.streams.find(request.pe) else { return Ok(()) };
        let closed = stream.is_closed() && request.direction == Direction::Write;
        if !closed && self.bulks.pool.is_empty() {
            let now = self.port.now();
            while *sent < request.len {
                let left = request.len - *sent;
                let at = request.remote_addr + *sent as u64;
                let len = self.balance.next_len(request.len, left, at);
                let Some(hop) = self.pick(request.pe, len, left as u64, now) else { break };
                let transfer = self.transfer(request, *sent, len, &hop)?;
                self.send_cut(request.pe, &hop, transfer, op, data, now);
                *sent += len;
                if let Some(told) = told.as_deref_mut() {
                    told.segments += 1;
                }
                self.check_stream(request.pe)?;
            }
        }
        if *sent == request.len || !self.bulks.has_room() {
            return Ok(());
        }
        // What is wrong with the request is said now, rather than when a rail wants some of it.
        let hop = self.paths.get(request.pe, RailId(0));
        self.transfer(request, *sent, 1, &hop)?;
        let Some(token) = self.segments.take() else { return Ok(()) };
        if let Some(told) = told {
            let (left, at) = (request.len - *sent, request.remote_addr + *sent as u64);
            told.segments += self.balance.segments(request.len, left, at);
        }
        self.enter_pool(token, request, *sent, op, data);
        *sent = request.len;
        self.check_stream(request.pe)
    }

    /// Lets what is left of an operation wait for rails.
    fn enter_pool(
        &mut self,
        token: Token,
        request: &Request<'_>,
        sent: usize,
        op: OpId,
        data: Option<u32>,
    ) {
        let Request { direction, pe, remote_handle, remote_addr, local, len } = *request;
        let (addr, handle) = match local {
            LocalSide::Memory { addr, handle } => (addr, handle.copied()),
            LocalSide::Value(_) => (0, None),
        };
        let remote = *remote_handle;
        let bulk = Bulk { remote, remote_addr, addr, handle, len, sent, data };
        let segment = &mut self.segments[token.0];
        segment.message = self.bulks.enter(bulk);
        segment.pe = pe;
        segment.count_for(op.0);
        segment.born = self.watchdog.stamp();
        segment.direction = direction;
        segment.kind = Kind::Bulk;
        segment.transfer.direction = direction;
        segment.transfer.len = len - sent;
        if op != OpId::NONE {
            self.ops.add(op.0);
        }
        self.set_out(token);
        self.hand_out();
    }

    /// An operation that no fence holds may be cut.
    pub(in crate::engine) fn begin_bulk(&mut self, token: Token) {
        let segment = &mut self.segments[token.0];
        segment.stage = Stage::Pooled;
        let bulk = &self.bulks.places[segment.message as usize];
        self.bulks.pooled += (bulk.len - bulk.sent) as u64;
        self.bulks.pool.push_back(token);
        self.bulks.stirred = true;
        self.ready += 1;
    }

    /// Gives segments of what waits in the pool to the rails that want them. Whether any left.
    pub(in crate::engine) fn hand_out(&mut self) -> bool {
        if !self.bulks.is_due() {
            return false;
        }
        let now = self.port.now();
        let mut moved = false;
        let mut at = 0;
        while let Some(token) = self.bulks.pool.get(at).copied() {
            let before = self.bulks.pooled;
            if self.cut(token, now) {
                // It has left the pool, and the next one is in its place.
                moved = true;
            } else {
                at += 1;
            }
            moved |= self.bulks.pooled != before;
        }
        moved
    }

    /// Cuts off an operation what rails want. Whether it has left the pool.
    fn cut(&mut self, token: Token, now: u64) -> bool {
        // Its cuts belong to its batch.
        let submitted = self.segments.batches.enter(self.segments[token.0].batch());
        let has_left = self.cut_in_batch(token, now);
        self.segments.batches.enter(submitted);
        has_left
    }

    fn cut_in_batch(&mut self, token: Token, now: u64) -> bool {
        let (pe, direction) = (self.segments[token.0].pe, self.segments[token.0].direction);
        let op = OpId(self.segments[token.0].op());
        let index = self.segments[token.0].message as usize;
        loop {
            if self.check_stream(pe).is_err() {
                self.drop_segment(token);
                return true;
            }
            let Bulk { len, sent, remote_addr, data, .. } = self.bulks.places[index];
            if sent == len {
                self.leave_bulk(token);
                self.segments.give(token);
                if op != OpId::NONE {
                    self.op_done(op.0);
                }
                let stream = self.streams.find_mut(pe);
                if stream.is_some_and(|stream| stream.replaced(direction)) {
                    self.open_stream(pe);
                }
                return true;
            }
            let bytes = self.balance.next_len(len, len - sent, remote_addr + sent as u64);
            let Some(hop) = self.pick(pe, bytes, self.bulks.pooled, now) else { return false };
            let Self { bulks, regions, port, needs_desc, .. } = self;
            let request = bulks.places[index].request(pe, direction);
            let optional = port.takes_unregistered();
            match transfer(&request, sent, bytes, &hop, regions, *needs_desc, optional) {
                Ok(transfer) => {
                    self.bulks.places[index].sent += bytes;
                    self.bulks.pooled -= bytes as u64;
                    self.send_cut(pe, &hop, transfer, op, data, now);
                }
                Err(failed) => self.fail_stream(pe, failed),
            }
        }
    }

    /// The path that a segment is to take now, if there is a slot for it.
    pub(in crate::engine) fn pick(
        &mut self,
        pe: Pe,
        len: usize,
        left: u64,
        now: u64,
    ) -> Option<Hop> {
        if !self.bulks.has_cut_room() {
            return None;
        }
        let rails = self.rails.len();
        let usable = self.usable(pe);
        let ahead = self.streams.find_mut(pe)?.ahead(rails);
        let rail = self.balance.pick(now, ahead, len, left, usable)?;
        Some(self.paths.get(pe, rail))
    }

    /// What is posted for a part of a request on a path.
    pub(in crate::engine) fn transfer(
        &mut self,
        request: &Request<'_>,
        sent: usize,
        len: usize,
        hop: &Hop,
    ) -> Result<Transfer, EngineError> {
        let optional = self.port.takes_unregistered();
        transfer(request, sent, len, hop, &mut self.regions, self.needs_desc, optional)
    }

    /// Lets a segment of an operation leave by a path. It belongs to those before any fence. `data` is its
    /// remote data, if the peer counts it.
    fn send_cut(
        &mut self,
        pe: Pe,
        hop: &Hop,
        transfer: Transfer,
        op: OpId,
        data: Option<u32>,
        now: u64,
    ) {
        let kind = if data.is_some() { Kind::Counted } else { Kind::Weighed };
        self.send_cut_as(kind, data.unwrap_or(0), pe, hop, transfer, op, now);
    }

    /// The same, as a segment of some kind.
    #[expect(clippy::too_many_arguments, reason = "what a segment is")]
    pub(in crate::engine) fn send_cut_as(
        &mut self,
        kind: Kind,
        data: u32,
        pe: Pe,
        hop: &Hop,
        transfer: Transfer,
        op: OpId,
        now: u64,
    ) {
        let Some(token) = self.segments.take() else { return };
        self.fill(token, pe, hop, transfer, op, kind);
        let segment = &mut self.segments[token.0];
        segment.data = data;
        segment.stage = Stage::Ready;
        segment.cut = true;
        self.bulks.cuts += 1;
        self.weigh(token, now);
        if let Some(stream) = self.streams.find_mut(pe) {
            stream.begin(transfer.direction);
        }
        self.dispatch(token, hop.rail);
    }

    /// Fills in a segment of an operation.
    pub(in crate::engine) fn fill(
        &mut self,
        token: Token,
        pe: Pe,
        hop: &Hop,
        transfer: Transfer,
        op: OpId,
        kind: Kind,
    ) {
        let segment = &mut self.segments[token.0];
        segment.transfer = transfer;
        segment.pe = pe;
        segment.count_for(op.0);
        segment.born = self.watchdog.stamp();
        segment.direction = transfer.direction;
        segment.kind = kind;
        segment.message = NIL;
        segment.rail = hop.rail;
        if op != OpId::NONE {
            self.ops.add(op.0);
        }
    }

    /// What waits in the pool, or is held, ends or needs no more waiting: its place is given back.
    pub(in crate::engine) fn leave_bulk(&mut self, token: Token) {
        let segment = &mut self.segments[token.0];
        let index = std::mem::replace(&mut segment.message, NIL);
        if segment.stage == Stage::Pooled {
            self.bulks.pool.retain(|other| *other != token);
            let bulk = &self.bulks.places[index as usize];
            self.bulks.pooled -= (bulk.len - bulk.sent) as u64;
            self.ready -= 1;
        }
        self.bulks.free.push(index);
    }
}

/// What is posted for a part of a request on a path.
fn transfer(
    request: &Request<'_>,
    sent: usize,
    len: usize,
    hop: &Hop,
    regions: &mut RegionCache,
    needs_desc: bool,
    desc_optional: bool,
) -> Result<Transfer, EngineError> {
    let refuse = |fault| refused(request, "remote", fault);
    let remote = HandleView::check(request.remote_handle).map_err(refuse)?;
    let offset = remote.locate(request.remote_addr, request.len as u64).map_err(refuse)?;
    let key = remote.key(hop.remote.rail()).map_err(refuse)?;
    let local = match request.local {
        LocalSide::Value(value) => Local::Inline(value),
        LocalSide::Memory { addr, handle } => {
            let desc = if needs_desc && !(handle.is_none() && desc_optional) {
                local_desc(regions, request, addr, handle, hop.rail)?
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
