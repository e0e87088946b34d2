//! The fast path of puts and gets: what meets no obstacle, in few instructions.
//!
//! At the first obstacle, before anything has happened, it gives up; the general way says what is
//! wrong, or finds room. The last obstacle is the fabric: by then the segment is in its place.

use crate::error::EngineError;
use crate::ids::RailId;
use crate::port::{Local, Operation, Port, Posted, Transfer};
use crate::posting::Core;
use crate::posting::transmit::Transmit;
use crate::rails::paths::PathTable;
use crate::request::{LocalSide, Request, Rest};
use crate::state::batch::Batch;
use crate::state::connection::Connection;
use crate::state::rail::Rail;
use crate::state::segment::table::SegmentTable;
use crate::state::segment::{Segment, Stage, WriteClass};
use crate::wire::handle::HandleView;
use crate::wire::message::Tag;

/// See [`Transmit::clear_way`].
pub(in crate::posting) struct Way<'a, P: Port> {
    pub(in crate::posting) port: &'a mut P,
    pub(in crate::posting) rail: &'a Rail<P::Fast>,
    pub(in crate::posting) segments: &'a mut SegmentTable,
    pub(in crate::posting) paths: &'a PathTable,
}

impl<P: Port> Transmit<P> {
    /// Posts a put or a get, to the peer that this connection is of, as one segment on the
    /// connection's next path.
    ///
    /// # Errors
    /// What is left to do: for what is [`Rest::NotTaken`],
    /// [`Core::dispatch_not_taken`].
    #[inline(always)]
    pub(crate) fn try_post<'a>(
        &mut self,
        connection: &mut Connection,
        request: Request<'a>,
        batch: Batch,
    ) -> Result<(), Rest<'a>> {
        self.try_post_as::<false>(connection, request, batch, Tag(0), 0)
    }

    /// The same, of a put that is `COUNTED` with a tag, and marked so, where signals come behind
    /// puts: then it is a word among words.
    #[inline(always)]
    pub(in crate::posting) fn try_post_as<'a, const COUNTED: bool>(
        &mut self,
        connection: &mut Connection,
        request: Request<'a>,
        batch: Batch,
        tag: Tag,
        mark: u64,
    ) -> Result<(), Rest<'a>> {
        let Request { direction, pe, remote_handle, remote_addr, local, len } = request;
        let at = connection.next.at as usize;
        let Some(rail) = self.rails.get_mut(at) else {
            return Err(Rest::Untried(request));
        };
        let Some(handle) = HandleView::keyed(remote_handle, connection.handles()) else {
            return Err(Rest::Untried(request));
        };
        let Some(remote) = handle.target(remote_addr, len as u64) else {
            return Err(Rest::Untried(request));
        };
        // The limit is 0 behind a fence, and while something is pending or blocked: see
        // `Connection::set_shut`.
        if len.wrapping_sub(1) >= connection.fast_limit || !rail.is_open() {
            return Err(Rest::Untried(request));
        }
        if let LocalSide::Memory(addr) = local {
            if !self.regions.is_recent(addr, len) {
                return Err(Rest::Untried(request));
            }
        }
        let Some((wr_id, segment)) = self.segments.take_slot() else {
            return Err(Rest::Untried(request));
        };
        // All is in its place before the fabric is asked. So if it declines, the segment is one
        // that waits, and what it takes to say so need not be kept through the call. What could be
        // read before is read here, since it would take registers until then.
        segment.make_plain(pe, direction, connection.put_class(), batch);
        let rail_id = connection.next.rail;
        segment.rail = rail_id;
        if COUNTED {
            connection.begin_word();
        } else {
            connection.begin(direction);
        }
        rail.taken(len);
        let local = match local {
            LocalSide::Value(value) => Local::Value(value),
            LocalSide::Memory(addr) => {
                Local::Memory { addr, desc: self.regions.recent_desc(rail_id) }
            }
        };
        let key = handle.key_at(connection.next.remote_key);
        let transfer = Transfer { direction, local, len, remote, key };
        if COUNTED {
            segment.carry_counted(transfer, tag, WriteClass::Word);
        } else {
            segment.carry(transfer);
        }
        let (context, to) = (segment.context, connection.next.to);
        connection.rotate(&self.paths);
        self.segments.batches.begin(batch);
        let is_posted = if COUNTED {
            let operation = Operation::WriteWithImmediate(&transfer, mark);
            matches!(self.port.post(rail_id, to, wr_id, operation), Ok(Posted::Yes))
        } else {
            self.port.try_post(rail.fast, rail_id, to, wr_id, context, &transfer)
        };
        if is_posted {
            Ok(())
        } else {
            // Here rather than in what is returned, for which the fast path would keep a register.
            self.not_taken = Some(wr_id);
            Err(Rest::NotTaken)
        }
    }

    /// What sends a message over a rail right away. None where something waits before it there, or
    /// in a burst, which the general way ends.
    #[inline(always)]
    pub(in crate::posting) fn clear_way(&mut self, rail: RailId) -> Option<Way<'_, P>> {
        let Self { port, rails, segments, paths, burst, .. } = self;
        let rail = rails.get(rail.index())?;
        let is_clear = !burst.has_withheld() && rail.is_clear();
        is_clear.then_some(Way { port, rail, segments, paths })
    }

    pub(crate) fn finds_registered(&mut self, addr: usize, len: usize) -> bool {
        !self.regions.is_recent(addr, len) && self.regions.find(addr, len, self.needs_desc).0
    }

    #[inline(always)]
    pub(crate) fn is_loadable(&self, addr: usize, len: usize) -> bool {
        self.regions.is_loadable(addr, len)
    }

    pub(crate) fn finds_loadable(&mut self, addr: usize, len: usize) -> bool {
        !self.is_loadable(addr, len) && self.regions.find(addr, len, self.needs_desc).1
    }
}

impl<P: Port> Core<P> {
    /// Tries the segment again that [`Transmit::try_post`] has just found not taken, with reasons.
    /// It waits in its rail's queue if there is no room.
    ///
    /// # Errors
    /// The failure of its connection.
    pub(crate) fn dispatch_not_taken(&mut self) -> Result<(), EngineError> {
        let Some(wr_id) = self.transmit.not_taken.take() else { return Ok(()) };
        // It was counted as taken.
        let segment = &mut self.transmit.segments[wr_id.0];
        let Segment { pe, rail, .. } = *segment;
        segment.stage = Stage::Ready;
        segment.born = self.failures.stamp();
        self.transmit.rails[rail.index()].not_taken(segment.len());
        self.dispatch(wr_id, rail);
        self.peers.check(pe)
    }
}
