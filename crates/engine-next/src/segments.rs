//! The table of posted RMA segments.
//!
//! A segment has an entry from the moment it is posted until its completion, also if its peer has
//! failed meanwhile: until then the fabric may touch its memory. Work that has not been posted has
//! no entry; it waits as an operation in its peer's queue.

use crate::group::{GroupId, GroupRef};
use crate::ids::{RailId, WrId};
use crate::port::{Context, Direction, Local, Transfer};

const NIL: u32 = u32::MAX;

/// State of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    Free,
    /// With the fabric, and counted.
    Posted,
    /// With the fabric, of a peer that has failed: counted nowhere any more.
    Orphan,
}

/// What a completion is for, beside its counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// Nothing else.
    Plain,
    /// Shows the rate of its rail.
    Stripe,
    /// Staging's transfer with this number.
    Staged(u32),
}

/// A posted segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    /// The segment as it was posted.
    pub(crate) transfer: Transfer,
    /// The port's name for the entry.
    pub(crate) context: Context,
    /// Index of the peer.
    pub(crate) peer: u32,
    /// Time of posting, in the watchdog's units.
    pub(crate) born: u32,
    pub(crate) purpose: Purpose,
    pub(crate) completion: GroupId,
    pub(crate) group: GroupRef,
    pub(crate) rail: RailId,
    pub(crate) state: State,
    next_free: u32,
}

impl Segment {
    /// Local memory that the segment touches.
    pub(crate) fn memory(&self) -> Option<(usize, usize)> {
        match self.transfer.local {
            Local::Memory { addr, .. } => Some((addr, self.transfer.len)),
            Local::Value(_) => None,
        }
    }

    /// The operation's name in messages to users.
    pub(crate) fn what(&self) -> &'static str {
        match self.transfer.direction {
            Direction::Write => "put",
            Direction::Read => "get",
        }
    }
}

/// Segments of a lane. As many as all rails together may have in flight.
#[derive(Debug)]
pub(crate) struct Segments {
    entries: Box<[Segment]>,
    first_free: u32,
    in_use: u32,
}

impl Segments {
    pub(crate) fn new(count: u32, context: impl Fn(WrId) -> Context) -> Self {
        let nothing = Transfer {
            direction: Direction::Write,
            local: Local::Value(0),
            len: 0,
            remote: 0,
            key: 0,
        };
        let entry = |at: u32| Segment {
            transfer: nothing,
            context: context(WrId(at)),
            peer: NIL,
            born: 0,
            purpose: Purpose::Plain,
            completion: GroupId::NONE,
            group: GroupRef::NONE,
            rail: RailId(0),
            state: State::Free,
            next_free: if at + 1 < count { at + 1 } else { NIL },
        };
        Self { entries: (0..count).map(entry).collect(), first_free: 0, in_use: 0 }
    }

    /// The entry that [`Segments::commit`] would take, to be filled in.
    #[inline(always)]
    pub(crate) fn reserve(&mut self) -> Option<(WrId, &mut Segment)> {
        let at = self.first_free;
        self.entries.get_mut(at as usize).map(|entry| (WrId(at), entry))
    }

    /// The reserved segment is with the fabric.
    #[inline(always)]
    pub(crate) fn commit(&mut self) {
        if let Some(entry) = self.entries.get_mut(self.first_free as usize) {
            entry.state = State::Posted;
            self.first_free = entry.next_free;
            self.in_use += 1;
        }
    }

    /// The segment with this work-request id, if it is with the fabric.
    #[inline(always)]
    pub(crate) fn posted_mut(&mut self, at: usize) -> Option<&mut Segment> {
        self.entries.get_mut(at).filter(|entry| entry.state != State::Free)
    }

    /// Ends a posted segment.
    #[inline(always)]
    pub(crate) fn free(&mut self, at: usize) {
        if let Some(entry) = self.entries.get_mut(at) {
            entry.state = State::Free;
            entry.next_free = self.first_free;
            self.first_free = at as u32;
            self.in_use -= 1;
        }
    }

    /// Whether no segment is with the fabric.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.in_use == 0
    }

    /// All that are with the fabric, each with its index.
    pub(crate) fn posted(&self) -> impl Iterator<Item = (u32, &Segment)> {
        let posted = |(_, entry): &(u32, &Segment)| entry.state != State::Free;
        (0..).zip(&self.entries).filter(posted)
    }
}
