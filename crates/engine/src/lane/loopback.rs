//! Loopback: reads, and writes, of this process' own memory through its rails.
//!
//! A device may see the writes of a NIC later than the flag that follows them. A read of the device's
//! memory through the same NIC does not pass the writes before it, so when it has come back they are
//! there. Peers write through all rails, so each one reads.
//!
//! A process does this for itself, towards itself. Nothing of it is ordered with anything else: it
//! takes no part in fences.

use crate::error::EngineError;
use crate::ids::RailId;
use crate::lane::Lane;
use crate::port::{Desc, Direction, Local, Port, Transfer};
use crate::state::operation::OpId;
use crate::state::regions::desc_of;
use crate::state::segment::{Kind, Stage};
use crate::wire::handle::{HandleBytes, HandleView};

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

impl<P: Port> Lane<P> {
    /// Reads through every rail, and returns when all have come back: what NICs of this process had
    /// written before is visible then.
    ///
    /// # Errors
    /// A failure towards this process itself, now or earlier.
    pub fn loopback(&mut self, anchor: &Anchor, how: Loopback) -> Result<(), EngineError> {
        let op = self.begin_op();
        let ended = self.try_loopback(anchor, how, op);
        // As with other operations: given up, where segments that are out may still point to it.
        if self.core.ops.is_done(op) {
            self.core.ops.end(op);
        }
        ended
    }

    fn try_loopback(
        &mut self,
        anchor: &Anchor,
        how: Loopback,
        op: OpId,
    ) -> Result<(), EngineError> {
        let directions: &[Direction] = match how {
            Loopback::Read => &[Direction::Read],
            Loopback::WriteRead => &[Direction::Write, Direction::Read],
        };
        let mut idle = 0;
        for &direction in directions {
            for rail in (0..self.core.rails.len()).map(|rail| RailId(rail as u8)) {
                while !self.submit_loopback(anchor, direction, rail, op)? {
                    self.make_room(&mut idle)?;
                }
            }
            while !self.core.ops.is_done(op) {
                self.core.check_connection(self.core.me)?;
                self.wait_iteration(&mut idle);
            }
            self.core.check_connection(self.core.me)?;
        }
        Ok(())
    }

    /// One rail's part. Whether there was room for it.
    fn submit_loopback(
        &mut self,
        anchor: &Anchor,
        direction: Direction,
        rail: RailId,
        op: OpId,
    ) -> Result<bool, EngineError> {
        let me = self.core.me;
        match self.core.connections.open(me, &mut self.core.paths) {
            Some(connection) => connection.check()?,
            None => self.core.check_pe(me)?,
        }
        let at = Anchor::bytes_for(rail.index());
        let view = HandleView::check(&anchor.handle)?;
        let offset = view.locate((anchor.addr + at) as u64, WORD as u64)?;
        let key = view.key(self.core.paths.get(me, rail).remote.rail())?;
        let local = match direction {
            Direction::Write => Local::Inline(0),
            Direction::Read => {
                let addr = anchor.landing + at;
                let desc = if self.core.needs_desc {
                    desc_of(self.core.regions.descs(&anchor.landing_handle, addr, WORD)?, rail)
                } else {
                    Desc(0)
                };
                Local::Memory { addr, desc }
            }
        };
        if !self.core.has_transfer_room() {
            return Ok(false);
        }
        let len = WORD.min(self.core.rails[rail.index()].max_segment);
        let Some(wr_id) = self.core.segments.take() else { return Ok(false) };
        let segment = &mut self.core.segments[wr_id.0];
        let remote = view.remote_address(offset);
        segment.transfer = Transfer { direction, local, len, remote, key };
        segment.pe = me;
        segment.count_for(op.0);
        segment.born = self.core.watchdog.stamp();
        segment.direction = direction;
        segment.kind = Kind::Transfer;
        segment.no_message();
        segment.rail = rail;
        segment.stage = Stage::Ready;
        self.core.ops.add(op.0);
        if let Some(connection) = self.core.connections.find_mut(me) {
            connection.begin_segment(&mut self.core.segments[wr_id.0]);
        }
        self.core.dispatch(wr_id, rail);
        Ok(true)
    }
}
