//! The table of messages that are not acknowledged, over all peers.
//!
//! A message has a slot from the moment it leaves until it is executed at its target; a fetch until
//! its reply is here as well. The slot keeps the message's bytes, so that it can be sent again.

use crate::ids::WrId;
use crate::port::Tail;
use crate::request::FetchTarget;
use crate::segments::{Owner, PLAIN};
use crate::wire::message::{Frame, Seq, Tag};

/// Messages of a proxy lane that may be unacknowledged.
pub(crate) const SLOTS: u32 = 2048;

/// What ends with a message, beside its counts.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Purpose {
    /// Nothing.
    Plain,
    /// The tag of a counted put.
    CountedSignal(Tag),
    /// A fetch, which ends with its reply.
    Fetch {
        result: FetchTarget,
        /// Bytes of the word.
        width: usize,
        place: u8,
    },
    /// A message about staged memory.
    Staged {
        /// The transfer that ends with it.
        token: u32,
        /// The operation's name in messages to users.
        what: &'static str,
    },
}

impl Purpose {
    /// Of a message about staged memory, and the transfer that ends with it.
    pub(crate) fn staged(token: Option<u32>, what: &'static str) -> Self {
        Self::Staged { token: token.unwrap_or(PLAIN), what }
    }
}

/// A message that has left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageSlot {
    /// The sealed message, without its tail.
    pub(crate) frame: Frame,
    /// Payload that is sent from its own memory.
    pub(crate) tail: Tail,
    pub(crate) seq: Seq,
    /// [`Owner::FREE`] in a free slot; plain if nothing but its counts ends with the
    /// message.
    pub(crate) owner: Owner,
    /// Time of leaving, in the watchdog's units.
    pub(crate) born: u32,
    pub(crate) purpose: Purpose,
    next_free: u16,
}

impl MessageSlot {
    fn is_in_use(&self) -> bool {
        self.owner != Owner::FREE
    }

    /// Local memory that the message still touches.
    pub(crate) fn memory(&self) -> Option<(usize, usize)> {
        match self.purpose {
            Purpose::Fetch { result, width, .. } => Some(result.memory(width)),
            _ if self.tail.len > 0 => Some((self.tail.addr, self.tail.len)),
            _ => None,
        }
    }

    /// The operation's name in messages to users.
    pub(crate) fn what(&self) -> &'static str {
        match self.purpose {
            Purpose::Plain if self.frame.len == 32 => "atomic",
            Purpose::Plain => "put with signal",
            Purpose::CountedSignal(_) => "signal",
            Purpose::Fetch { .. } => "fetching atomic",
            Purpose::Staged { what, .. } => what,
        }
    }
}

/// A slot for a message that is about to leave. In free slots purpose and tail are those of plain
/// messages.
#[derive(Debug)]
pub(crate) struct Reserved<'a> {
    pub(crate) slot: &'a mut MessageSlot,
    first_free: &'a mut u16,
    free: &'a mut u32,
}

impl Reserved<'_> {
    /// Number of the slot.
    #[inline(always)]
    pub(crate) fn number(&self) -> u16 {
        *self.first_free
    }

    /// The message has left. Returns the number of its slot.
    #[inline(always)]
    pub(crate) fn take(self, owner: Owner) -> u16 {
        self.slot.owner = owner;
        *self.free -= 1;
        std::mem::replace(self.first_free, self.slot.next_free)
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct MessageSlots {
    slots: Box<[MessageSlot]>,
    first_free: u16,
    free: u32,
}

/// The work-request id of messages without a slot.
pub(crate) const UNNUMBERED: WrId = WrId(u32::MAX);

const SLOT_BITS: u32 = SLOTS.ilog2();

impl MessageSlots {
    pub(crate) fn new(count: u32) -> Self {
        let slot = |at: u32| MessageSlot {
            frame: Frame::EMPTY,
            tail: Tail::NONE,
            seq: Seq(0),
            owner: Owner::FREE,
            born: 0,
            purpose: Purpose::Plain,
            next_free: (at + 1) as u16,
        };
        Self { slots: (0..count).map(slot).collect(), first_free: 0, free: count }
    }

    /// Slots that are free.
    #[inline(always)]
    pub(crate) fn free(&self) -> u32 {
        self.free
    }

    /// The next free slot, to be filled in. It stays free until it is taken.
    #[inline(always)]
    pub(crate) fn reserve(&mut self) -> Option<Reserved<'_>> {
        let Self { slots, first_free, free } = self;
        let slot = slots.get_mut(usize::from(*first_free))?;
        Some(Reserved { slot, first_free, free })
    }

    #[inline(always)]
    pub(crate) fn get_mut(&mut self, at: u16) -> Option<&mut MessageSlot> {
        self.slots.get_mut(usize::from(at)).filter(|slot| slot.is_in_use())
    }

    /// Ends a message.
    pub(crate) fn release(&mut self, at: u16) {
        if let Some(slot) = self.slots.get_mut(usize::from(at)) {
            (slot.purpose, slot.tail) = (Purpose::Plain, Tail::NONE);
            slot.owner = Owner::FREE;
            slot.next_free = self.first_free;
            self.first_free = at;
            self.free += 1;
        }
    }

    /// Ends messages one after the other while they are plain and have one owner. Returns the owner
    /// and how many there were.
    #[inline(always)]
    pub(crate) fn release_alike(
        &mut self,
        mut numbers: impl Iterator<Item = u16> + Clone,
    ) -> Option<(Owner, u32)> {
        let first = usize::from(numbers.clone().next()?);
        let owner = self.slots.get(first)?.owner;
        let (mut first_free, mut count) = (self.first_free, 0);
        while let Some(at) = numbers.next().filter(|_| owner.is_plain()) {
            match self.slots.get_mut(usize::from(at)) {
                Some(slot) if slot.owner == owner => {
                    slot.owner = Owner::FREE;
                    slot.next_free = first_free;
                    first_free = at;
                }
                _ => break,
            }
            count += 1;
        }
        self.first_free = first_free;
        self.free += count;
        (count > 0).then_some((owner, count))
    }

    /// Whether no message is unacknowledged.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.free as usize == self.slots.len()
    }

    /// All messages that have left, each with its slot.
    pub(crate) fn sent(&self) -> impl Iterator<Item = (u16, &MessageSlot)> {
        (0..).zip(&self.slots).filter(|(_, slot)| slot.is_in_use())
    }

    /// The work-request id of a message: slot and number, so that a late failure is not taken for
    /// that of the slot's next message.
    #[inline(always)]
    pub(crate) fn wr_id(at: u16, seq: Seq) -> WrId {
        // The bit above the slot is zero, so this is never UNNUMBERED.
        WrId(1 << 31 | (seq.low() & 0x7_ffff) << (SLOT_BITS + 1) | u32::from(at))
    }

    /// The slot of the message with this work-request id, if it is still there.
    pub(crate) fn named(&self, wr_id: WrId) -> Option<(u16, &MessageSlot)> {
        let at = (wr_id.0 & (SLOTS - 1)) as u16;
        let slot = self.slots.get(usize::from(at)).filter(|slot| slot.is_in_use())?;
        (Self::wr_id(at, slot.seq) == wr_id).then_some((at, slot))
    }
}
