//! The table of posted RMA segments.
//!
//! A segment has an entry from the moment it is posted until its completion, also if its peer has
//! failed meanwhile: until then the fabric may touch its memory. Work that has not been posted has
//! no entry; it waits as an operation in its peer's queue.

use crate::group::{Class, GroupId, GroupRef};
use crate::ids::{RailId, WrId};
use crate::port::{Context, Direction, Local, Transfer};

const NIL: u32 = u32::MAX;

/// Token of segments whose rail was chosen by load, and of plain ones. Those of staging's transfers
/// are below, with a bit if their rail was chosen by load.
pub(crate) const STRIPE: u32 = u32::MAX - 1;
pub(crate) const PLAIN: u32 = u32::MAX;
pub(crate) const BY_LOAD: u32 = 1 << 31;

/// State of an entry, and what its completion is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum State {
    Free = 0,
    /// With the fabric; its completion gives its counts back.
    Plain = 1,
    /// The same, and its token says what else its completion is for.
    Other = 2,
    /// With the fabric, of a peer that has failed: counted nowhere any more.
    Orphan = 3,
}

/// Whose a segment or message is and what counts it, in one word, so that the ends of alike ones
/// are counted together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Owner(u64);

impl Owner {
    pub(crate) const FREE: Self = Self(0);

    /// A plain segment of the peer with this number on a rail, which nothing counts yet.
    pub(crate) fn new(peer: u32, rail: RailId) -> Self {
        Self(u64::from(peer) << 40 | u64::from(rail.0) << 32 | State::Plain as u64)
    }

    /// The owner of a segment that these count; `self` is of one that nothing counts.
    #[inline(always)]
    pub(crate) fn counted(self, completion: GroupId, group: GroupRef) -> Self {
        Self(self.0 | u64::from(completion.bits()) << 16 | u64::from(group.bits()) << 8)
    }

    /// The owner of a segment of a class; `self` is of a write in the same order group that nothing
    /// else counts.
    #[inline(always)]
    pub(crate) fn of_class(self, class: Class, completion: GroupId) -> Self {
        Self(self.0 | u64::from(completion.bits()) << 16 | (class as u64) << 8)
    }

    #[inline(always)]
    pub(crate) fn peer(self) -> u32 {
        (self.0 >> 40) as u32
    }

    #[inline(always)]
    pub(crate) fn rail(self) -> RailId {
        RailId((self.0 >> 32) as u8)
    }

    #[inline(always)]
    pub(crate) fn completion(self) -> GroupId {
        GroupId::from_bits((self.0 >> 16) as u16)
    }

    #[inline(always)]
    pub(crate) fn group(self) -> GroupRef {
        GroupRef::from_bits((self.0 >> 8) as u8)
    }

    #[inline(always)]
    pub(crate) fn state(self) -> State {
        match self.0 as u8 {
            1 => State::Plain,
            2 => State::Other,
            3 => State::Orphan,
            _ => State::Free,
        }
    }

    /// Whether its completion only gives counts back.
    #[inline(always)]
    pub(crate) fn is_plain(self) -> bool {
        self.0 as u8 == State::Plain as u8
    }

    /// The owner, counted by no order group any more.
    pub(crate) fn unordered(self) -> Self {
        Self(self.0 & !0xff00 | u64::from(GroupRef::NONE.bits()) << 8)
    }

    /// The owner, in another state.
    pub(crate) fn with(self, state: State) -> Self {
        Self(self.0 & !0xff | state as u64)
    }
}

/// A posted segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) direction: Direction,
    /// Its local memory; 0 if it carries a value.
    addr: usize,
    pub(crate) len: usize,
    pub(crate) owner: Owner,
    /// The port's name for the entry.
    pub(crate) context: Context,
    /// Time of posting, in the watchdog's units.
    pub(crate) born: u32,
    /// Number of staging's transfer, [`STRIPE`] or [`PLAIN`]; of a segment in [`State::Plain`],
    /// any.
    pub(crate) token: u32,
    next_free: u32,
}

impl Segment {
    /// Notes what it transfers.
    #[inline(always)]
    pub(crate) fn set(&mut self, transfer: &Transfer) {
        self.direction = transfer.direction;
        self.len = transfer.len;
        self.addr = match transfer.local {
            Local::Memory { addr, .. } => addr,
            Local::Value(_) => 0,
        };
    }

    /// Local memory that the segment touches.
    pub(crate) fn memory(&self) -> Option<(usize, usize)> {
        (self.addr != 0).then_some((self.addr, self.len))
    }

    /// The operation's name in messages to users.
    pub(crate) fn what(&self) -> &'static str {
        match self.direction {
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
}

impl Segments {
    pub(crate) fn new(count: u32, context: impl Fn(WrId) -> Context) -> Self {
        let entry = |at: u32| Segment {
            direction: Direction::Write,
            addr: 0,
            len: 0,
            owner: Owner::FREE,
            context: context(WrId(at)),
            born: 0,
            token: PLAIN,
            next_free: if at + 1 < count { at + 1 } else { NIL },
        };
        Self { entries: (0..count).map(entry).collect(), first_free: 0 }
    }

    /// Takes a free entry, to be filled in.
    #[inline(always)]
    pub(crate) fn take(&mut self) -> Option<(WrId, &mut Segment)> {
        let at = self.first_free;
        let entry = self.entries.get_mut(at as usize)?;
        self.first_free = entry.next_free;
        Some((WrId(at), entry))
    }

    /// Owner of the segment with this work-request id, if it is with the fabric.
    #[inline(always)]
    pub(crate) fn owner(&self, at: usize) -> Option<Owner> {
        self.entries.get(at).map(|entry| entry.owner).filter(|owner| *owner != Owner::FREE)
    }

    /// The segment with this work-request id, if it is with the fabric.
    pub(crate) fn posted_mut(&mut self, at: usize) -> Option<&mut Segment> {
        self.entries.get_mut(at).filter(|entry| entry.owner != Owner::FREE)
    }

    /// Frees segments one after the other while they are `owner`'s. Returns how many.
    #[inline(always)]
    pub(crate) fn free_alike(
        &mut self,
        owner: Owner,
        indices: impl Iterator<Item = usize>,
    ) -> usize {
        let (mut count, mut first) = (0, self.first_free);
        for at in indices {
            match self.entries.get_mut(at) {
                Some(entry) if entry.owner == owner => {
                    entry.owner = Owner::FREE;
                    entry.next_free = first;
                    first = at as u32;
                }
                _ => break,
            }
            count += 1;
        }
        self.first_free = first;
        count
    }

    /// Frees a segment that is with the fabric.
    pub(crate) fn free(&mut self, at: usize) {
        if let Some(owner) = self.owner(at) {
            self.free_alike(owner, std::iter::once(at));
        }
    }

    /// All that are with the fabric, each with its index.
    pub(crate) fn posted(&self) -> impl Iterator<Item = (u32, &Segment)> {
        let posted = |(_, entry): &(u32, &Segment)| entry.owner != Owner::FREE;
        (0..).zip(&self.entries).filter(posted)
    }

    /// Those of a peer that has not failed.
    pub(crate) fn of_peer(&self, peer: u32) -> impl Iterator<Item = (u32, &Segment)> {
        self.posted().filter(move |(_, segment)| {
            segment.owner.peer() == peer && segment.owner.state() != State::Orphan
        })
    }
}
