//! The table of posted RMA segments.
//!
//! A segment has an entry from the moment it is posted until its completion, also if its peer has
//! failed meanwhile: until then the fabric may touch its memory. Work that has not been posted has
//! no entry; it waits as an operation in its peer's queue.

use crate::group::{Class, CompletionId, OrderGroup};
use crate::ids::{Pe, RailId, WrId};
use crate::port::Direction;
use crate::request::LocalSide;

// Values of `Segment::token`. Other values number a transfer of staging, with BY_LOAD set if its
// rail was chosen by load, and FOR_PEER if it reads the bytes of a peer's put.
/// Token of a segment whose rail was chosen by load.
pub(crate) const BALANCED: u32 = u32::MAX - 1;
/// Token of a segment whose completion only uncounts it.
pub(crate) const PLAIN: u32 = u32::MAX;
pub(crate) const BY_LOAD: u32 = 1 << 31;
pub(crate) const FOR_PEER: u32 = 1 << 30;

/// State of an entry; 0 is a free one's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum SegmentState {
    /// In flight; the completion only uncounts the segment.
    Plain = 1,
    /// In flight; the completion also does what the token says.
    Other = 2,
    /// In flight, but its peer has failed: no group counts it any more.
    Orphan = 3,
}

/// Peer, direction, rail, counting groups and state of a segment or message, packed into one word:
/// 40.. peer, 39 set for a read, 32..39 rail, 16..32 completion group, 8..16 order group, 0..8
/// state. Segments with equal accounts are ended by one subtraction per group.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Account(u64);

impl Account {
    pub(crate) const FREE: Self = Self(0);
    const READ: u64 = 1 << 39;

    /// Returns the account of a plain write that no group counts yet.
    pub(crate) fn new(pe: Pe, rail: RailId) -> Self {
        Self(u64::from(pe.0) << 40 | u64::from(rail.0) << 32 | SegmentState::Plain as u64)
    }

    #[inline(always)]
    pub(crate) fn in_groups(self, completion: CompletionId, group: OrderGroup) -> Self {
        // Of an account that no group counts these bits are zero.
        Self(self.0 | u64::from(completion.bits()) << 16 | u64::from(group.bits()) << 8)
    }

    /// Sets the direction of a plain write's account.
    #[inline(always)]
    pub(crate) fn towards(self, direction: Direction) -> Self {
        match direction {
            Direction::Write => self,
            Direction::Read => Self(self.0 | Self::READ),
        }
    }

    /// Sets the completion group, and the class within the order group. `self` is a plain write's.
    #[inline(always)]
    pub(crate) fn of_class(self, class: Class, completion: CompletionId) -> Self {
        // The class of a write is 0, and it has no completion group.
        Self(self.0 | u64::from(completion.bits()) << 16 | (class as u64) << 8)
    }

    #[inline(always)]
    pub(crate) fn pe(self) -> Pe {
        Pe((self.0 >> 40) as u32)
    }

    #[inline(always)]
    pub(crate) fn rail(self) -> RailId {
        RailId((self.0 >> 32) as u8 & 0x7f)
    }

    #[inline(always)]
    pub(crate) fn completion(self) -> CompletionId {
        CompletionId::from_bits((self.0 >> 16) as u16)
    }

    #[inline(always)]
    pub(crate) fn group(self) -> OrderGroup {
        OrderGroup::from_bits((self.0 >> 8) as u8)
    }

    #[inline(always)]
    pub(crate) fn direction(self) -> Direction {
        if self.0 & Self::READ == 0 { Direction::Write } else { Direction::Read }
    }

    #[inline(always)]
    pub(crate) fn is_plain(self) -> bool {
        self.0 as u8 == SegmentState::Plain as u8
    }

    pub(crate) fn is_orphan(self) -> bool {
        self.0 as u8 == SegmentState::Orphan as u8
    }

    pub(crate) fn unordered(self) -> Self {
        Self(self.0 & !0xff00 | u64::from(OrderGroup::NONE.bits()) << 8)
    }

    pub(crate) fn with(self, state: SegmentState) -> Self {
        Self(self.0 & !0xff | state as u64)
    }
}

/// An entry of the table. Aligned, so that its address is found by a shift of its index.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(crate) struct Segment {
    /// Address of its local memory; 0 if it carries a value.
    addr: usize,
    pub(crate) len: usize,
    pub(crate) account: Account,
    /// Time of posting in the watchdog's units.
    pub(crate) born: u32,
    /// [`BALANCED`], [`PLAIN`] or staging's transfer. Undefined in [`SegmentState::Plain`].
    pub(crate) token: u32,
    next_free: u32,
}

impl Segment {
    #[inline(always)]
    pub(crate) fn set_memory(&mut self, local: LocalSide, len: usize) {
        self.len = len;
        self.addr = match local {
            LocalSide::Memory(addr) => addr,
            LocalSide::Value(_) => 0,
        };
    }

    /// Returns address and length of the local memory that the segment touches.
    pub(crate) fn memory(&self) -> Option<(usize, usize)> {
        (self.addr != 0).then_some((self.addr, self.len))
    }

    pub(crate) fn what(&self) -> &'static str {
        name(self.account.direction(), self.token())
    }

    pub(crate) fn token(&self) -> u32 {
        // The fast path leaves it undefined.
        if self.account.is_plain() { PLAIN } else { self.token }
    }
}

pub(crate) fn is_for_peer(token: u32) -> bool {
    token < BALANCED && token & FOR_PEER != 0
}

/// Returns the name of a segment's operation for messages to users.
pub(crate) fn name(direction: Direction, token: u32) -> &'static str {
    match direction {
        Direction::Write => "put",
        Direction::Read if is_for_peer(token) => "peer's put",
        Direction::Read => "get",
    }
}

/// Segments of a lane: one entry for each that all rails together may have in flight.
#[derive(Debug)]
pub(crate) struct Segments {
    entries: Box<[Segment]>,
    /// The length ends the list.
    first_free: u32,
    last_taken: u32,
}

impl Segments {
    pub(crate) fn new(count: u32) -> Self {
        let entry = |index: u32| Segment {
            addr: 0,
            len: 0,
            account: Account::FREE,
            born: 0,
            token: PLAIN,
            next_free: index + 1,
        };
        Self { entries: (0..count).map(entry).collect(), first_free: 0, last_taken: 0 }
    }

    /// Takes a free entry, which the caller fills in.
    #[inline(always)]
    pub(crate) fn take(&mut self) -> Option<(WrId, &mut Segment)> {
        // Last in, first out: the entry is likely still in the cache.
        let index = self.first_free;
        let entry = self.entries.get_mut(index as usize)?;
        self.first_free = entry.next_free;
        self.last_taken = index;
        Some((WrId(index), entry))
    }

    pub(crate) fn last_taken(&self) -> WrId {
        WrId(self.last_taken)
    }

    /// Returns the account of a posted segment; the fabric may report other indices.
    #[inline(always)]
    pub(crate) fn account(&self, index: usize) -> Option<Account> {
        self.entries.get(index).map(|entry| entry.account).filter(|it| *it != Account::FREE)
    }

    pub(crate) fn posted_mut(&mut self, index: usize) -> Option<&mut Segment> {
        self.entries.get_mut(index).filter(|entry| entry.account != Account::FREE)
    }

    /// Frees segments in sequence while their account is `account`. Returns how many were freed.
    #[inline(always)]
    pub(crate) fn free_alike(
        &mut self,
        account: Account,
        indices: impl Iterator<Item = usize>,
    ) -> usize {
        let (mut count, mut first) = (0, self.first_free);
        for index in indices {
            match self.entries.get_mut(index) {
                Some(entry) if entry.account == account => {
                    entry.account = Account::FREE;
                    entry.next_free = first;
                    first = index as u32;
                }
                // Another account counts in other groups; its completion starts the next run.
                _ => break,
            }
            count += 1;
        }
        self.first_free = first;
        count
    }

    pub(crate) fn free(&mut self, index: usize) {
        if let Some(account) = self.account(index) {
            self.free_alike(account, std::iter::once(index));
        }
    }

    /// Iterates over posted segments with their indices.
    pub(crate) fn posted(&self) -> impl Iterator<Item = (u32, &Segment)> {
        let posted = |(_, entry): &(u32, &Segment)| entry.account != Account::FREE;
        (0..).zip(&self.entries).filter(posted)
    }

    /// Iterates over the posted segments of a peer that has not failed.
    pub(crate) fn of_peer(&self, pe: Pe) -> impl Iterator<Item = (u32, &Segment)> {
        self.posted()
            .filter(move |(_, segment)| segment.account.pe() == pe && !segment.account.is_orphan())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unordered_owner_keeps_the_rest() {
        let in_group =
            |group| Account::new(Pe(5), RailId(6)).in_groups(CompletionId::from_bits(7), group);
        let owner = in_group(OrderGroup::from_bits(9));
        assert_eq!(owner.unordered(), in_group(OrderGroup::NONE));
    }
}
