//! Loopback: reads, and writes, of this process' own memory through its rails.
//!
//! A device may see the writes of a NIC later than the flag that follows them. A read of the
//! device's memory through the same NIC does not pass the writes before it, so when it has come
//! back they are there. Peers write through all rails, so each one reads.
//!
//! A process does this for itself, towards itself. Nothing of it is ordered with anything else: it
//! takes no part in fences.

use crate::error::EngineError;
use crate::ids::RailId;
use crate::lane::Lane;
use crate::port::{Direction, Local, Port, Transfer};
use crate::state::operation::OpId;
use crate::state::segment::Stage;
use crate::state::segment::work::Work;
use crate::wire::handle::{HandleBytes, HandleError, HandleView};

const WORD: usize = 8;

/// What is read, and where it goes: a word for each rail of the lane on both sides.
#[derive(Clone, Debug)]
pub struct Anchor {
    /// This process' handle for the memory that is read. Nobody else uses that.
    pub handle: HandleBytes,
    /// Address of the first word.
    pub addr: usize,
    /// Address of the first word that the reads change, in registered memory.
    pub landing: usize,
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
        if self.core.transmit.ops().is_done(op) {
            self.core.transmit.ops_mut().end(op);
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
            for rail in self.core.transmit.rail_ids() {
                while !self.submit_loopback(anchor, direction, rail, op)? {
                    self.make_room(&mut idle)?;
                }
            }
            while !self.core.transmit.ops().is_done(op) {
                self.core.peers.check(self.core.peers.me())?;
                self.wait_iteration(&mut idle);
            }
            self.core.peers.check(self.core.peers.me())?;
        }
        Ok(())
    }

    fn submit_loopback(
        &mut self,
        anchor: &Anchor,
        direction: Direction,
        rail: RailId,
        op: OpId,
    ) -> Result<bool, EngineError> {
        let me = self.core.peers.me();
        match self.core.open_connection(me) {
            Some(connection) => connection.check()?,
            None => self.core.peers.check_pe(me)?,
        }
        let at = Anchor::bytes_for(rail.index());
        let view = HandleView::check(&anchor.handle)?;
        let offset = view.locate((anchor.addr + at) as u64, WORD as u64)?;
        let key = view.key(self.core.transmit.remote_rail(me, rail))?;
        let local = match direction {
            Direction::Write => Local::Value(0),
            Direction::Read => {
                let addr = anchor.landing + at;
                self.core.transmit.regions_mut().sync();
                let desc = self.core.transmit.regions().desc_at(addr, WORD, rail);
                let desc = match desc {
                    None if self.core.transmit.needs_desc() => {
                        return Err(HandleError::Unregistered.into());
                    }
                    desc => desc.unwrap_or_default(),
                };
                Local::Memory { addr, desc }
            }
        };
        if !self.core.has_transfer_room() {
            return Ok(false);
        }
        let len = WORD.min(self.core.transmit.rail(rail).max_segment);
        let Some(wr_id) = self.core.transmit.take() else { return Ok(false) };
        let transfer = Transfer { direction, local, len, remote: view.remote_address(offset), key };
        let hop = self.core.transmit.path(me, rail);
        self.core.fill(wr_id, me, &hop, op, Work::Transfer(transfer));
        let segment = self.core.transmit.segment_mut(wr_id);
        segment.stage = Stage::Ready;
        if let Some(connection) = self.core.peers.find_mut(me) {
            connection.begin_segment(segment);
        }
        self.core.dispatch(wr_id, rail);
        Ok(true)
    }
}
