//! The table of unacknowledged messages, over all peers.
//!
//! A message has a slot from the moment it leaves until it is executed at its target; a fetch until
//! its reply is here as well. Messages are encoded in their slot, so that bytes are written once.
//! When a message has left, its bytes are not read again: the sender never repeats it.

use std::ops::Range;

use crate::channel::NO_SLOT;
use crate::ids::WrId;
use crate::port::Tail;
use crate::request::FetchTarget;
use crate::segments::{Account, PLAIN};
use crate::wire::message::{Frame, Seq, Tag, WINDOW};

/// Number of messages of a proxy lane that may be unacknowledged.
pub(crate) const SLOTS: u32 = 2048;

/// Effect that the end of a message has beside uncounting it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Purpose {
    /// Nothing.
    Plain,
    /// Frees the tag of a counted put.
    CountedSignal(Tag),
    /// Nothing: a fetch ends with its reply.
    Fetch { result: FetchTarget, width: usize, reply_slot: u8 },
    /// Ends a transfer of staging; none if the token is [`PLAIN`].
    Staged { token: u32, what: &'static str },
}

impl Purpose {
    pub(crate) fn staged(token: Option<u32>, what: &'static str) -> Self {
        Self::Staged { token: token.unwrap_or(PLAIN), what }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageSlot {
    /// The sealed message, without its tail.
    pub(crate) frame: Frame,
    /// Payload outside the frame, which the port copied when the message left.
    pub(crate) tail: Tail,
    pub(crate) seq: Seq,
    /// [`Account::FREE`] in a free slot; plain if the message's end only uncounts it.
    pub(crate) account: Account,
    /// Time of sending in the watchdog's units.
    pub(crate) born: u32,
    pub(crate) purpose: Purpose,
    next_free: u16,
}

impl MessageSlot {
    fn is_in_use(&self) -> bool {
        self.account != Account::FREE
    }

    /// Returns the local memory that the reply will change, if one comes.
    pub(crate) fn memory(&self) -> Option<(usize, usize)> {
        match self.purpose {
            Purpose::Fetch { result, width, .. } => Some(result.memory(width)),
            _ => None,
        }
    }

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

/// A free slot for a message to be sent. Its purpose and tail are those of a plain message.
#[derive(Debug)]
pub(crate) struct Reserved<'a> {
    pub(crate) slot: &'a mut MessageSlot,
    first_free: &'a mut u16,
    free: &'a mut u32,
}

impl Reserved<'_> {
    #[inline(always)]
    pub(crate) fn index(&self) -> u16 {
        *self.first_free
    }

    /// Takes the slot, since the message has left. Returns its index.
    #[inline(always)]
    pub(crate) fn take(self, account: Account) -> u16 {
        self.slot.account = account;
        *self.free -= 1;
        std::mem::replace(self.first_free, self.slot.next_free)
    }
}

#[derive(Debug)]
pub(crate) struct MessageSlots {
    slots: Box<[MessageSlot]>,
    first_free: u16,
    free: u32,
}

/// Work-request id of control messages, which have no slot.
pub(crate) const CONTROL: WrId = WrId(u32::MAX);

const SLOT_BITS: u32 = SLOTS.ilog2();

impl MessageSlots {
    pub(crate) fn new(count: u32) -> Self {
        let slot = |index: u32| MessageSlot {
            frame: Frame::EMPTY,
            tail: Tail::NONE,
            seq: Seq::NONE,
            account: Account::FREE,
            born: 0,
            purpose: Purpose::Plain,
            next_free: (index + 1) as u16,
        };
        Self { slots: (0..count).map(slot).collect(), first_free: 0, free: count }
    }

    #[inline(always)]
    pub(crate) fn free(&self) -> u32 {
        self.free
    }

    /// Returns the next free slot. It stays free until it is taken.
    #[inline(always)]
    pub(crate) fn reserve(&mut self) -> Option<Reserved<'_>> {
        let Self { slots, first_free, free } = self;
        let slot = slots.get_mut(usize::from(*first_free))?;
        Some(Reserved { slot, first_free, free })
    }

    #[inline(always)]
    pub(crate) fn get_mut(&mut self, index: u16) -> Option<&mut MessageSlot> {
        self.slots.get_mut(usize::from(index)).filter(|slot| slot.is_in_use())
    }

    pub(crate) fn release(&mut self, index: u16) {
        if let Some(slot) = self.slots.get_mut(usize::from(index)) {
            // The fast path fills in a reserved slot without setting these.
            (slot.purpose, slot.tail) = (Purpose::Plain, Tail::NONE);
            slot.account = Account::FREE;
            slot.next_free = self.first_free;
            self.first_free = index;
            self.free += 1;
        }
    }

    /// Ends the messages with these numbers, whose entries are in `sent`, from the first on while
    /// they are plain and have one account. Returns the account and their count.
    #[inline(always)]
    pub(crate) fn release_alike(
        &mut self,
        sent: &mut [u16; WINDOW as usize],
        numbers: Range<u64>,
    ) -> Option<(Account, u32)> {
        // A message that ended before, by the bitmap or a reply, has no slot.
        let first = sent[(numbers.start % WINDOW) as usize];
        let account = self.slots.get(usize::from(first))?.account;
        if !account.is_plain() {
            return None;
        }
        let (mut first_free, mut number) = (self.first_free, numbers.start);
        while number < numbers.end {
            let entry = &mut sent[(number % WINDOW) as usize];
            match self.slots.get_mut(usize::from(*entry)) {
                Some(slot) if slot.account == account => {
                    slot.account = Account::FREE;
                    slot.next_free = first_free;
                }
                _ => break,
            }
            first_free = std::mem::replace(entry, NO_SLOT);
            number += 1;
        }
        let count = (number - numbers.start) as u32;
        self.first_free = first_free;
        self.free += count;
        Some((account, count))
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.free as usize == self.slots.len()
    }

    pub(crate) fn sent(&self) -> impl Iterator<Item = (u16, &MessageSlot)> {
        (0..).zip(&self.slots).filter(|(_, slot)| slot.is_in_use())
    }

    /// Returns the work-request id of a message. It contains the message's number, so that a late
    /// failure is not attributed to the slot's next message.
    #[inline(always)]
    pub(crate) fn wr_id(index: u16, seq: Seq) -> WrId {
        // Bit 30 is zero, so this is never CONTROL.
        WrId(1 << 31 | (seq.low() & 0x7_ffff) << SLOT_BITS | u32::from(index))
    }

    /// Returns the slot of the message with this work-request id, if it has not ended.
    pub(crate) fn named(&self, wr_id: WrId) -> Option<(u16, &MessageSlot)> {
        let index = (wr_id.0 & (SLOTS - 1)) as u16;
        let slot = self.slots.get(usize::from(index)).filter(|slot| slot.is_in_use())?;
        (Self::wr_id(index, slot.seq) == wr_id).then_some((index, slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Pe, RailId};

    #[test]
    fn work_request_ids_name_messages() {
        let mut slots = MessageSlots::new(SLOTS);
        let seq = |at: u16| Seq(Seq::FIRST.0 + u64::from(at));
        for at in 0..SLOTS as u16 {
            let reserved = slots.reserve().expect("one is free");
            reserved.slot.seq = seq(at);
            assert_eq!(reserved.take(Account::new(Pe(1), RailId(0))), at);
        }
        assert!(slots.reserve().is_none());
        for at in 0..SLOTS as u16 {
            let id = MessageSlots::wr_id(at, seq(at));
            assert!(id.0 >> 31 == 1 && id != CONTROL, "{at}");
            assert_ne!(MessageSlots::wr_id(at, Seq(0x8_0000)), CONTROL, "{at}");
            assert_eq!(slots.named(id).map(|(named, _)| named), Some(at));
            assert!(slots.named(MessageSlots::wr_id(at, seq(at + 1))).is_none(), "{at}");
        }
    }
}
