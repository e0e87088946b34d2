//! Loopback: reads and writes of this process' own memory through its rails.
//!
//! A device may see the writes of a NIC later than the flag that follows them. A read of the
//! device's memory through the same NIC does not pass earlier writes, so once it has completed they
//! are visible. Peers write through all rails, so each rail reads. Loopbacks are ordered with no
//! other operation.

use crate::core::post::{SegmentGroup, SegmentPost};
use crate::error::EngineError;
use crate::group::{GroupId, GroupRef};
use crate::ids::{Pe, RailId};
use crate::lane::Lane;
use crate::port::{Direction, Local, Port, Transfer};
use crate::rails::rail_ids;
use crate::segments::PLAIN;
use crate::wire::handle::{HandleBytes, HandleError, HandleView};

/// Bytes that each rail reads or writes; fewer where its segments are shorter.
const WORD: usize = 8;

/// Memory of a loopback: a word for each rail of the lane on both sides.
#[derive(Clone, Debug)]
pub struct Anchor {
    /// Handle of this process for the memory that is read.
    pub handle: HandleBytes,
    /// Address of the first word.
    pub addr: usize,
    /// Address of the first word that the reads change, in registered memory.
    pub landing: usize,
}

impl Anchor {
    /// Returns the bytes needed on either side for so many rails.
    pub const fn bytes_for(rails: usize) -> usize {
        rails * WORD
    }
}

/// Operations of a loopback on every rail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loopback {
    /// A read.
    Read,
    /// A write, and a read once all writes are delivered.
    WriteRead,
}

impl<P: Port> Lane<P> {
    /// Reads through every rail, and blocks until all reads have completed: writes of this process'
    /// NICs that came before are visible then.
    ///
    /// # Errors
    /// A failure towards this process itself, now or earlier.
    pub fn loopback(&mut self, anchor: &Anchor, how: Loopback) -> Result<(), EngineError> {
        let directions: &[Direction] = match how {
            Loopback::Read => &[Direction::Read],
            Loopback::WriteRead => &[Direction::Write, Direction::Read],
        };
        let pe = self.core.me;
        self.core.reach_peer(pe)?;
        let mut idle = 0;
        let group = loop {
            match self.core.groups.start() {
                Some(group) => break group,
                None => self.wait_for_room(&mut idle)?,
            }
        };
        let done = directions.iter().try_for_each(|direction| {
            for rail in rail_ids(&self.core.rails) {
                while !self.post_loopback(pe, anchor, *direction, rail, group)? {
                    self.wait_for_room(&mut idle)?;
                }
            }
            // No rail orders a read after its own writes; each is waited for.
            while !self.core.groups.is_done(group) {
                self.wait_iteration(&mut idle);
            }
            self.core.peers.get(pe).check()
        });
        // An early return leaves segments in flight: the group is then given up.
        if self.core.groups.is_done(group) {
            self.core.groups.finish(group);
        }
        done
    }

    fn wait_for_room(&mut self, idle: &mut u32) -> Result<(), EngineError> {
        // Groups in use may end only with acknowledgements.
        self.core.request_acks();
        self.wait_iteration(idle);
        self.room_or_failure()
    }

    /// Posts the operation of one rail. Returns false if the rail has no capacity.
    fn post_loopback(
        &mut self,
        pe: Pe,
        anchor: &Anchor,
        direction: Direction,
        rail: RailId,
        group: GroupId,
    ) -> Result<bool, EngineError> {
        self.core.peers.get(pe).check()?;
        let rail_offset = Anchor::bytes_for(rail.index());
        let view = HandleView::check(&anchor.handle)?;
        let offset = view.locate((anchor.addr + rail_offset) as u64, WORD as u64)?;
        let peer = self.core.peers.get(pe);
        // A rail without a path to this process wrote nothing here.
        let Some(path) = peer.paths.iter().find(|path| path.rail == rail).copied() else {
            return Ok(true);
        };
        let key = view.key(path.remote.rail())?;
        let local = match direction {
            Direction::Write => Local::Value(0),
            Direction::Read => {
                let addr = anchor.landing + rail_offset;
                self.core.regions.find(addr, WORD, self.core.needs_desc);
                match self.core.regions.recent_desc(addr, WORD, rail) {
                    None if self.core.needs_desc => return Err(HandleError::Unregistered.into()),
                    desc => Local::Memory { addr, desc: desc.unwrap_or_default() },
                }
            }
        };
        let len = WORD.min(self.core.rails[rail.index()].limits.max_segment);
        let transfer = Transfer { direction, local, len, remote: view.remote_address(offset), key };
        self.core.post(&SegmentPost {
            pe,
            path,
            transfer,
            immediate: None,
            token: PLAIN,
            completion: group,
            // A quiet towards this process need not wait for it.
            group: SegmentGroup::Given(GroupRef::NONE),
            is_long: false,
        })
    }
}
