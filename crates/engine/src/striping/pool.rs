//! The pool: puts and gets large enough for the choice of their rails to matter, cut into segments
//! that are given to the rails as these get through with them. Which rail a segment goes by is
//! decided in [`crate::rails::balance`].
//!
//! What no rail wants yet of an operation waits in the lane's *pool*, as one segment of the table,
//! which stands for the rest and knows all that is needed to cut it. For connection, fence and
//! operation it is a segment like any other: it is under way until the last byte has been cut off,
//! and behind a fence it is held whole. Its stripes are segments of their own.
//!
//! # Why it cannot deadlock
//! Cuts have slots set aside for them ([`segments_for`]), which neither the pool nor anything else
//! takes. What waits in the pool waits for (a) such a slot or (b) a rail that has less ahead; both
//! come with completions of stripes that are out, and if none are out there is nothing to wait for.
//! When the pool is full the submitter is held, in a call that runs the loop.

use std::collections::VecDeque;

use crate::error::EngineError;
use crate::ids::{Pe, RailId, WrId};
use crate::port::{Direction, Port, RailLimits};
use crate::posting::Core;
use crate::posting::transmit::load::Stripe;
use crate::request::{OwnedRequest, Request};
use crate::signal::counted::Counting;
#[cfg(any(test, feature = "audit"))]
use crate::state::discrepancy::{Discrepancy, same};
use crate::state::operation::OpId;
#[cfg(any(test, feature = "audit"))]
use crate::state::segment::table::SegmentTable;
use crate::state::segment::work::Work;
use crate::state::segment::{Segment, Stage};
use crate::wire::message::Tag;

const POOL: usize = 64;

const ITERATIONS: u32 = 64;

pub(crate) fn segments_for(limits: &[RailLimits]) -> u32 {
    if has_choice(limits) { POOL as u32 + stripes_for(limits) } else { 0 }
}

fn has_choice(limits: &[RailLimits]) -> bool {
    limits.len() > 1 || limits.iter().any(|rail| rail.bulk > 0)
}

pub(crate) fn stripes_for(limits: &[RailLimits]) -> u32 {
    limits.iter().map(|rail| rail.depth.clamp(4, 128)).sum()
}

#[derive(Debug)]
struct Pooled {
    whole: OwnedRequest,
    sent: usize,
    /// The tag of its stripes, if the peer counts them.
    tag: Option<Tag>,
    of: Option<Pe>,
}

impl Pooled {
    fn left(&self) -> usize {
        self.whole.request().len - self.sent
    }
}

/// The operations of a lane that wait for rails.
#[derive(Debug)]
pub(crate) struct Pool {
    /// By the segments' pool place. It grows to the number that wait at a time.
    places: Vec<Pooled>,
    free: Vec<u32>,
    /// Those that may be cut, oldest first.
    pool: VecDeque<WrId>,
    /// The peers of those that no rail wants anything of at present, while the pool is gone
    /// through.
    waits: Vec<Pe>,
    /// Bytes of those in the pool that have not been cut off.
    pooled: u64,
    iterations: u32,
}

impl Pool {
    pub(crate) fn new(limits: &[RailLimits]) -> Self {
        let most = if has_choice(limits) { POOL } else { 0 };
        Self {
            places: Vec::with_capacity(most),
            free: Vec::with_capacity(most),
            pool: VecDeque::with_capacity(most),
            waits: Vec::with_capacity(most),
            pooled: 0,
            iterations: 0,
        }
    }

    pub(crate) fn has_room(&self) -> bool {
        !self.free.is_empty() || self.places.len() < POOL
    }

    fn is_within_quota(&self, pe: Pe) -> bool {
        let mine = self.places.iter().filter(|place| place.of == Some(pe)).count();
        mine < POOL - (self.places.len() - self.free.len())
    }

    fn enter(&mut self, bulk: Pooled) -> u32 {
        if let Some(index) = self.free.pop() {
            self.places[index as usize] = bulk;
            return index;
        }
        self.places.push(bulk);
        self.places.len() as u32 - 1
    }

    fn is_due(&mut self, load_changed: bool) -> bool {
        self.iterations += 1;
        if self.pool.is_empty() || !load_changed && self.iterations < ITERATIONS {
            return false;
        }
        self.iterations = 0;
        true
    }
}

impl Pool {
    #[inline(never)]
    pub(crate) fn submit_balanced<P: Port>(
        &mut self,
        core: &mut Core<P>,
        request: &Request<'_>,
        sent: &mut usize,
        op: OpId,
        mut counting: Option<&mut Counting>,
    ) -> Result<(), EngineError> {
        let tag = counting.as_ref().map(|counting| counting.tag);
        let Some(connection) = core.peers.find(request.pe) else { return Ok(()) };
        let closed = connection.is_closed() && request.direction == Direction::Write;
        if !closed && self.pool.is_empty() {
            let now = core.transmit.now();
            while *sent < request.len {
                let left = request.len - *sent;
                let at = request.remote_addr + *sent as u64;
                let len = core.transmit.balance().next_len(request.len, left, at);
                let Some(hop) = core.pick(request.pe, len, left as u64, now) else { break };
                let transfer = core.transmit.transfer(request, *sent, len, &hop)?;
                let cut = Stripe { counted: tag, of: request.len };
                if !core.send_stripe(cut, request.pe, &hop, transfer, op, None, now) {
                    break;
                }
                *sent += len;
                if let Some(counting) = counting.as_deref_mut() {
                    counting.segments += 1;
                }
                core.peers.check(request.pe)?;
            }
        }
        if *sent == request.len || !self.is_within_quota(request.pe) {
            return Ok(());
        }
        // What is wrong with the request is said now, rather than when a rail wants some of it.
        let hop = core.transmit.path(request.pe, RailId(0));
        core.transmit.transfer(request, *sent, 1, &hop)?;
        let Some(wr_id) = core.transmit.take() else { return Ok(()) };
        if let Some(counting) = counting {
            let (left, at) = (request.len - *sent, request.remote_addr + *sent as u64);
            counting.segments += core.transmit.balance().segments(request.len, left, at);
        }
        self.enter_pool(core, wr_id, request, *sent, op, tag);
        *sent = request.len;
        core.peers.check(request.pe)
    }

    fn enter_pool<P: Port>(
        &mut self,
        core: &mut Core<P>,
        wr_id: WrId,
        request: &Request<'_>,
        sent: usize,
        op: OpId,
        tag: Option<Tag>,
    ) {
        let Request { direction, pe, len, .. } = *request;
        let bulk = Pooled { whole: OwnedRequest::of(request), sent, tag, of: Some(pe) };
        core.transmit.reserve();
        let class = core.peers.order_of_counted();
        let segment = core.transmit.segment_mut(wr_id);
        if tag.is_some() {
            segment.class = class;
        }
        segment.set_work(Work::Pooled { place: self.enter(bulk), len: len - sent });
        segment.pe = pe;
        segment.count_for(op.0);
        segment.born = core.failures.stamp();
        segment.direction = direction;
        if op != OpId::NONE {
            core.transmit.ops_mut().add(op.0);
        }
        if core.passes_fence(wr_id) {
            self.begin_pooled(core, wr_id);
        }
        self.hand_out(core);
    }

    pub(crate) fn begin_pooled<P: Port>(&mut self, core: &mut Core<P>, wr_id: WrId) {
        let segment = core.transmit.segment_mut(wr_id);
        segment.stage = Stage::Pooled;
        let Work::Pooled { place, .. } = *segment.work() else { return };
        let bulk = &self.places[place as usize];
        self.pooled += bulk.left() as u64;
        self.pool.push_back(wr_id);
        core.transmit.waits_for_rails();
    }

    /// Gives segments of what waits in the pool to the rails that want them. Whether any left.
    ///
    /// None overtakes another to the same peer: a rail may want short ones while it wants no long
    /// one, and then short ones without end would keep the long one waiting for ever.
    pub(crate) fn hand_out<P: Port>(&mut self, core: &mut Core<P>) -> bool {
        if !self.is_due(core.transmit.has_load_change()) {
            return false;
        }
        core.transmit.forget_load_change();
        let now = core.transmit.now();
        let mut moved = false;
        let mut at = 0;
        self.waits.clear();
        while let Some(wr_id) = self.pool.get(at).copied() {
            let pe = core.transmit.segment(wr_id).pe;
            if self.waits.contains(&pe) {
                at += 1;
                continue;
            }
            let before = self.pooled;
            if self.cut(core, wr_id, now) {
                // It has left the pool, and the next one is in its place.
                moved = true;
            } else {
                self.waits.push(pe);
                at += 1;
            }
            moved |= self.pooled != before;
        }
        moved
    }

    fn cut<P: Port>(&mut self, core: &mut Core<P>, wr_id: WrId, now: u64) -> bool {
        // Its stripes belong to its batch.
        let batch = core.transmit.segment(wr_id).batch();
        let submitted = core.transmit.batches_mut().enter(batch);
        let has_left = self.cut_in_batch(core, wr_id, now);
        core.transmit.batches_mut().enter(submitted);
        has_left
    }

    fn cut_in_batch<P: Port>(&mut self, core: &mut Core<P>, wr_id: WrId, now: u64) -> bool {
        let Segment { pe, direction, class, .. } = *core.transmit.segment(wr_id);
        let op = OpId(core.transmit.segment(wr_id).op());
        let Work::Pooled { place, .. } = *core.transmit.segment(wr_id).work() else { return true };
        let index = place as usize;
        loop {
            if core.peers.check(pe).is_err() {
                self.drop_pooled(core, wr_id);
                return true;
            }
            let Pooled { ref whole, sent, tag, .. } = self.places[index];
            let request = whole.request();
            let Request { len, remote_addr, .. } = request;
            if sent == len {
                self.leave_pool(core, wr_id);
                core.transmit.give(wr_id);
                if op != OpId::NONE {
                    core.op_done(op.0);
                }
                let connection = core.peers.find_mut(pe);
                if connection.is_some_and(|connection| connection.replaced(direction, class)) {
                    core.release(pe);
                }
                return true;
            }
            let bytes =
                core.transmit.balance().next_len(len, len - sent, remote_addr + sent as u64);
            let Some(hop) = core.pick(pe, bytes, self.pooled, now) else { return false };
            match core.transmit.transfer(&request, sent, bytes, &hop) {
                Ok(transfer) => {
                    let cut = Stripe { counted: tag, of: len };
                    if !core.send_stripe(cut, pe, &hop, transfer, op, Some(class), now) {
                        return false;
                    }
                    self.places[index].sent += bytes;
                    self.pooled -= bytes as u64;
                }
                Err(failed) => core.fail_connection(pe, failed),
            }
        }
    }

    pub(crate) fn memory_of(&self, place: u32) -> (usize, usize) {
        let whole = &self.places[place as usize].whole;
        whole.memory().map_or((0, 0), |touched| touched.memory)
    }

    pub(crate) fn leave_pool<P: Port>(&mut self, core: &mut Core<P>, wr_id: WrId) {
        let segment = core.transmit.segment_mut(wr_id);
        let Work::Pooled { place: index, .. } = *segment.work() else { return };
        if segment.stage == Stage::Pooled {
            self.pool.retain(|other| *other != wr_id);
            let bulk = &self.places[index as usize];
            self.pooled -= bulk.left() as u64;
            core.transmit.waits_no_more();
        }
        self.places[index as usize].of = None;
        self.free.push(index);
        core.transmit.unreserve();
    }

    pub(crate) fn drop_pooled<P: Port>(&mut self, core: &mut Core<P>, wr_id: WrId) {
        self.leave_pool(core, wr_id);
        core.end_dropped(wr_id);
    }
}

impl Pool {
    /// Places, and bytes, beside the segments that wait. How many of them may be cut. See
    /// [`Lane::audit`](crate::lane::Lane::audit).
    #[cfg(any(test, feature = "audit"))]
    pub(crate) fn audit(&self, segments: &SegmentTable) -> Result<u32, Discrepancy> {
        let mut taken = vec![None; self.places.len()];
        let (mut count, mut bytes) = (0, 0);
        for (_, segment) in segments.all_in_use() {
            let Work::Pooled { place, .. } = *segment.work() else { continue };
            let place = place as usize;
            taken[place] = Some(segment.pe);
            if segment.stage == Stage::Pooled {
                count += 1;
                bytes += self.places[place].left() as u64;
            }
        }
        let of: Vec<Option<Pe>> = self.places.iter().map(|place| place.of).collect();
        let free = taken.iter().filter(|of| of.is_none()).count();
        same("the places of the pool", of, taken)?;
        same("free places of the pool", self.free.len(), free)?;
        same("operations in the pool", self.pool.len(), count)?;
        same("bytes in the pool", self.pooled, bytes)?;
        Ok(count as u32)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::posting::tests::{Bed, PLAIN, Setup, limits, request};
    use crate::rails::balance::{Balance, Spread};
    use crate::request::LocalSide;
    use crate::wire::handle::HANDLE_BYTES;

    const PEER: Pe = Pe(1);
    const ALIGN: u64 = 4096;

    fn striping(segment: usize) -> Bed {
        let mut bed = Bed::new(Setup { rails: 2, ..PLAIN });
        let spread = Spread { balanced_from: 64, striped_from: 64, segment };
        *bed.lane.core_mut().transmit.balance_mut() = Balance::new(spread, 2, 1 << 20, 0);
        bed
    }

    #[test]
    fn what_rails_want_at_once_never_waits() {
        for direction in [Direction::Write, Direction::Read] {
            let mut bed = striping(1 << 14);
            let heaps = Arc::clone(&bed.heaps);
            let whole = Request { len: 64, ..request(&heaps, direction, PEER.0) };
            bed.lane.start(&whole).unwrap();
            assert_eq!((bed.fabric.in_flight(), bed.lane.pool().places.len()), (1, 0));
        }
    }

    #[test]
    fn segments_end_where_the_pages_of_the_peer_do() {
        let lens = (800_000..804_000).step_by(1000);
        for (len, at) in lens.flat_map(|len| [(len, 0), (len, 100), (len, 1000), (len, 3000)]) {
            let mut bed = striping(1 << 14);
            let heaps = Arc::clone(&bed.heaps);
            let put = request(&heaps, Direction::Write, PEER.0);
            let remote_addr = put.remote_addr.next_multiple_of(ALIGN) + at;
            let put = Request { len, remote_addr, ..put };
            let (mut sent, mut counting) = (0, Counting { tag: Tag::FIRST, segments: 0 });
            bed.lane.submit_counted(&put, &mut sent, &mut counting).unwrap();
            assert_eq!((sent, bed.lane.pool().pool.len()), (put.len, 1));
            bed.lane.quiet(PEER).unwrap();
            let sent = bed.fabric.deliveries();
            let end = sent.iter().map(|part| part.remote + part.len as u64).max().unwrap();
            let start = end - put.len as u64;
            let ends = |part: &crate::fake::Delivery| {
                remote_addr + (part.remote - start) + part.len as u64
            };
            let long = sent.iter().filter(|part| part.len as u64 > 2 * ALIGN);
            assert!(long.clone().count() > 8);
            assert!(long.clone().all(|part| ends(part) % ALIGN == 0), "{at}: {sent:?}");
            assert_eq!(counting.segments as usize, sent.len(), "{at}");
        }
    }

    #[test]
    fn what_waits_leaves_as_rails_get_through_with_the_rest() {
        let mut bed = striping(4096);
        let heaps = Arc::clone(&bed.heaps);
        let put = Request { len: 250_000, ..request(&heaps, Direction::Write, PEER.0) };
        bed.lane.start(&put).unwrap();
        let wr_id = bed.wr_id(|segment| segment.stage == Stage::Pooled);
        let left = |bed: &Bed| bed.lane.pool().pooled as usize;
        let before = left(&bed);
        assert_eq!(bed.lane.core().transmit.segment(wr_id).len(), before);
        assert!((4096..put.len - 4096).contains(&before));
        bed.pass_time();
        [0, 1].into_iter().for_each(|rail| assert!(bed.lane.take_completions(RailId(rail))));
        for moves in [true, false] {
            let Bed { lane, .. } = &mut bed;
            let (pool, core) = lane.pool_and_core();
            assert_eq!(pool.hand_out(core), moves);
            assert!((1..before).contains(&left(&bed)), "some is left");
        }
        bed.lane.audit().unwrap();
    }

    fn pooled(pe: u32) -> Pooled {
        let whole = OwnedRequest::of(&Request {
            direction: Direction::Write,
            pe: Pe(pe),
            remote_handle: &[0; HANDLE_BYTES],
            remote_addr: 0,
            local: LocalSide::Memory(16),
            len: 64,
        });
        Pooled { whole, sent: 0, tag: None, of: Some(Pe(pe)) }
    }

    #[test]
    fn segments_are_set_aside_where_there_is_a_choice_of_rails() {
        assert_eq!(segments_for(&limits(&[16])), 0);
        assert_eq!(segments_for(&limits(&[16, 1])), 64 + 16 + 4);
        assert_eq!(segments_for(&limits(&[16, 16, 1000])), 64 + 16 + 16 + 128);
    }

    #[test]
    fn a_lane_with_one_rail_keeps_no_room_for_a_pool() {
        assert_eq!(Pool::new(&limits(&[16])).places.capacity(), 0);
        for rails in 2..=4 {
            assert!(Pool::new(&limits(&[16; 4][..rails])).places.capacity() >= POOL);
        }
    }

    #[test]
    fn a_peer_gets_half_of_the_places_and_the_next_one_half_of_the_rest() {
        let mut pool = Pool::new(&limits(&[16, 16]));
        let mut fill = |pe: u32| {
            let mut count = 0;
            while pool.has_room() && pool.is_within_quota(Pe(pe)) {
                pool.enter(pooled(pe));
                count += 1;
            }
            count
        };
        assert_eq!([fill(1), fill(2), fill(3), fill(1)], [32, 16, 8, 0]);
        for pe in 4..99 {
            fill(pe);
        }
        assert!(!pool.has_room());
        pool.places[5].of = None;
        pool.free.push(5);
        assert!(pool.has_room() && pool.enter(pooled(1)) == 5 && !pool.has_room());
    }

    #[test]
    fn the_pool_is_gone_through_when_loads_change_and_now_and_then() {
        let mut pool = Pool::new(&limits(&[16, 16]));
        assert!(!pool.is_due(true), "nothing waits");
        pool.pool.push_back(WrId(0));
        assert!(pool.is_due(true));
        for _ in 0..3 {
            assert_eq!((1..ITERATIONS).filter(|_| pool.is_due(false)).count(), 0);
            assert!(pool.is_due(false));
        }
    }
}
