//! Reads, and writes, of this process' own memory through its rails.
//!
//! A device may see the writes of a NIC later than the flag that follows them. A read of the device's
//! memory through the same NIC does not pass the writes before it, so when it has come back they are
//! there. Peers write through all rails, so each one reads.
//!
//! A process does this for itself, towards itself. Nothing of it is ordered with anything else: it
//! takes no part in fences.

use super::error::EngineError;
use super::handle::{HandleBytes, HandleView};
use super::ids::RailId;
use super::lane::Lane;
use super::operation::OpId;
use super::port::{Desc, Direction, Local, Port, Transfer};
use super::regions::desc_of;
use super::segment::{Kind, NIL, Stage};

/// Bytes that each rail reads or writes; less where its segments are shorter, for any will do.
const WORD: usize = 8;

/// What is read, and where it goes: a word for each rail of the lane on both sides.
#[derive(Clone, Debug)]
pub struct Anchor {
    /// This process' handle for the memory that is read. Nobody else uses that.
    pub handle: HandleBytes,
    /// Address of the first word.
    pub addr: usize,
    /// Address of the first word that the reads change.
    pub landing: usize,
    /// This process' handle for that.
    pub landing_handle: HandleBytes,
}

impl Anchor {
    /// Bytes on either side for so many rails.
    pub const fn bytes_for(rails: usize) -> usize {
        rails * WORD
    }
}

/// What is done on every rail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loopback {
    /// A read.
    Read,
    /// A write, and when all of these are delivered, a read.
    WriteRead,
}

/// A loopback under way, between [`Lane::begin_loopback`] and the end of [`Lane::advance_loopback`].
#[derive(Debug)]
#[must_use]
pub struct LoopbackRun {
    op: OpId,
    direction: Direction,
    /// The rail that is next in this direction.
    next: u8,
}

impl<P: Port> Lane<P> {
    /// Reads through every rail, and returns when all have come back: what NICs of this process had
    /// written before is visible then.
    ///
    /// # Errors
    /// A failure towards this process itself, now or earlier.
    pub fn loopback(&mut self, anchor: &Anchor, how: Loopback) -> Result<(), EngineError> {
        let mut run = self.begin_loopback(how);
        let mut idle = 0;
        while !self.advance_loopback(anchor, &mut run)? {
            self.want_acks();
            self.wait_turn(&mut idle);
        }
        Ok(())
    }

    /// Begins a loopback, which is carried on until it has ended.
    pub fn begin_loopback(&mut self, how: Loopback) -> LoopbackRun {
        let direction = match how {
            Loopback::Read => Direction::Read,
            Loopback::WriteRead => Direction::Write,
        };
        LoopbackRun { op: self.begin_op(), direction, next: 0 }
    }

    /// Submits what there is room for, and says whether the loopback has ended. Never blocks, so that
    /// it can be carried on from inside a turn of the loop.
    ///
    /// # Errors
    /// As [`Lane::loopback`]; it has ended then.
    pub fn advance_loopback(
        &mut self,
        anchor: &Anchor,
        run: &mut LoopbackRun,
    ) -> Result<bool, EngineError> {
        let advanced = self.try_advance_loopback(anchor, run);
        // As with other operations: given up, where segments that are out may still point to it.
        if !matches!(advanced, Ok(false)) && self.ops.is_done(run.op) {
            self.ops.end(run.op);
        }
        advanced
    }

    fn try_advance_loopback(
        &mut self,
        anchor: &Anchor,
        run: &mut LoopbackRun,
    ) -> Result<bool, EngineError> {
        loop {
            while usize::from(run.next) < self.rails.len() {
                if !self.submit_loopback(anchor, run)? {
                    self.room_or_failure()?;
                    return Ok(false);
                }
                run.next += 1;
            }
            self.check_stream(self.me)?;
            if !self.ops.is_done(run.op) {
                return Ok(false);
            }
            if run.direction == Direction::Read {
                return Ok(true);
            }
            (run.direction, run.next) = (Direction::Read, 0);
        }
    }

    /// One rail's part. Whether there was room for it.
    fn submit_loopback(&mut self, anchor: &Anchor, run: &LoopbackRun) -> Result<bool, EngineError> {
        let (me, rail, direction) = (self.me, RailId(run.next), run.direction);
        match self.streams.open(me, &self.paths) {
            Some(stream) => stream.check()?,
            None => self.check_pe(me)?,
        }
        let at = Anchor::bytes_for(rail.index());
        let view = HandleView::check(&anchor.handle)?;
        let offset = view.locate((anchor.addr + at) as u64, WORD as u64)?;
        let key = view.key(self.paths.get(me, rail).remote.rail())?;
        let local = match direction {
            Direction::Write => Local::Inline(0),
            Direction::Read => {
                let addr = anchor.landing + at;
                let desc = if self.needs_desc {
                    desc_of(self.regions.descs(&anchor.landing_handle, addr, WORD)?, rail)
                } else {
                    Desc(0)
                };
                Local::Memory { addr, desc }
            }
        };
        if !self.has_transfer_room() {
            return Ok(false);
        }
        let len = WORD.min(self.rails[rail.index()].max_segment);
        let Some(token) = self.segments.take() else { return Ok(false) };
        let segment = &mut self.segments[token.0];
        let remote = view.remote_address(offset);
        segment.transfer = Transfer { direction, local, len, remote, key };
        segment.pe = me;
        segment.count_for(run.op.0);
        segment.born = self.watchdog.stamp();
        segment.direction = direction;
        segment.kind = Kind::Transfer;
        segment.message = NIL;
        segment.rail = rail;
        segment.stage = Stage::Ready;
        self.ops.add(run.op.0);
        if let Some(stream) = self.streams.find_mut(me) {
            stream.begin(direction);
        }
        self.dispatch(token, rail);
        Ok(true)
    }
}
