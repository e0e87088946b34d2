//! Numbered messages between PE 0 and its peers, there and back.
//!
//! A message is a stamped slot, and a signal that is set to the message's number. Who waits sees
//! the signal first and then checks the stamps: a signal that overtakes its data is found. On the
//! raw side it is the slot alone.

use std::ops::Range;

use nvshmem_abi::c;
use nvshmem_sim::{Local, Piece, PlannedAmo, SymAddr};
use serde::{Deserialize, Serialize};

use super::party::Party;
use super::patience::Patience;
use super::slots::Slot;
use crate::times::case::Side;

/// Largest message.
pub(crate) const LARGEST: u64 = 64 << 10;

/// Bytes of a word with room around it: no two share what a processor fetches at once.
pub(crate) const WORD: u64 = 128;

/// Where messages are: the same places on every PE.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Mailboxes {
    /// Where every message sent is stamped.
    pub(crate) outgoing: SymAddr,
    /// Slots of [`LARGEST`] bytes into which messages are put: at PE 0 one for each peer, at the
    /// peers the first.
    pub(crate) incoming: SymAddr,
    /// A word for each slot: the signal that follows it.
    pub(crate) signals: SymAddr,
    /// Receive buffers of the raw side, one of [`LARGEST`] bytes for each peer.
    pub(crate) raw: SymAddr,
}

impl Mailboxes {
    fn slot_from(self, pe: u32) -> SymAddr {
        self.incoming.plus(u64::from(pe.saturating_sub(1)) * LARGEST)
    }

    fn signal_from(self, pe: u32) -> SymAddr {
        self.signals.plus(u64::from(pe.saturating_sub(1)) * WORD)
    }
}

/// Messages of one size with one peer, made ready.
struct Exchange<'a> {
    /// Number of the peer among the peers.
    index: usize,
    piece: Piece,
    signal: PlannedAmo,
    arriving: Slot<'a>,
    arrived: Local<'a>,
    /// The receive buffer of the raw side that has the same number as the peer: not necessarily
    /// the one in which its messages arrive.
    mail: Slot<'a>,
}

/// Messages of one size with every peer.
pub(crate) struct Exchanges<'a> {
    boxes: Mailboxes,
    bytes: u64,
    outgoing: Slot<'a>,
    each: Vec<Exchange<'a>>,
}

impl<'a> Exchanges<'a> {
    pub(crate) fn new(party: &Party<'a>, boxes: Mailboxes, bytes: u64) -> Result<Self, String> {
        let (me, ops) = (party.ops.pe(), party.ops);
        let exchange = |(index, &pe): (usize, &u32)| {
            let signal = boxes.signal_from(me);
            Ok(Exchange {
                index,
                piece: party.piece(pe, boxes.slot_from(me), boxes.outgoing, bytes)?,
                signal: party.signal(pe, c::NVT_AMO_SIGNAL_SET, signal)?,
                arriving: Slot::new(ops, boxes.slot_from(pe), bytes)?,
                arrived: ops.local(boxes.signal_from(pe), 8).map_err(|e| e.to_string())?,
                mail: Slot::new(ops, boxes.raw.plus(index as u64 * LARGEST), bytes)?,
            })
        };
        let each = party.peers.iter().enumerate().map(exchange).collect::<Result<_, String>>()?;
        Ok(Self { boxes, bytes, outgoing: Slot::new(ops, boxes.outgoing, bytes)?, each })
    }

    /// Sends the message of that number to every peer.
    #[inline]
    pub(crate) fn send(
        &self,
        party: &mut Party<'_>,
        side: Side,
        number: u64,
    ) -> Result<(), String> {
        self.outgoing.stamp(number)?;
        for Exchange { index, piece, signal, .. } in &self.each {
            if side != Side::Raw {
                party.put_signal(side, piece, &signal.with_value(number))?;
                continue;
            }
            let messages = party.messages()?;
            // SAFETY: the slot is inside the heap, which is what is registered. It is stamped anew
            // only when the peer has answered.
            unsafe { messages.send(*index, self.boxes.outgoing.0, self.bytes as usize) }
                .map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    /// Waits for the message of that number from every peer.
    #[inline]
    pub(crate) fn await_all(
        &self,
        party: &mut Party<'_>,
        side: Side,
        number: u64,
    ) -> Result<(), String> {
        if side == Side::Raw {
            return self.await_raw(party, number);
        }
        for exchange in &self.each {
            let mut wait = Patience::new("a signal");
            while exchange.arrived.load_acquire().map_err(|e| e.to_string())? != number {
                party.ops.progress().map_err(|e| e.to_string())?;
                wait.turn()?;
            }
            let pe = party.peers[exchange.index];
            let checked = exchange.arriving.check(number);
            checked.map_err(|e| format!("signal of PE {pe} before its data: {e}"))?;
        }
        Ok(())
    }

    fn await_raw(&self, party: &mut Party<'_>, number: u64) -> Result<(), String> {
        let messages = party.messages()?;
        let mut missing = self.each.len();
        let mut wait = Patience::new("a raw message");
        while missing > 0 {
            messages.turn().map_err(|e| e.to_string())?;
            while let Some(slot) = messages.take() {
                self.each.get(slot).ok_or("no such receive buffer")?.mail.check(number)?;
                messages.give_back(slot).map_err(|e| e.to_string())?;
                missing = missing.checked_sub(1).ok_or("more raw messages than were sent")?;
            }
            wait.turn()?;
        }
        Ok(())
    }
}

/// A peer's part: waits for the messages of these numbers and answers each.
pub(crate) fn answer(
    party: &mut Party<'_>,
    side: Side,
    boxes: Mailboxes,
    bytes: u64,
    numbers: Range<u64>,
) -> Result<(), String> {
    let exchanges = Exchanges::new(party, boxes, bytes)?;
    for number in numbers {
        exchanges.await_all(party, side, number)?;
        exchanges.send(party, side, number)?;
    }
    Ok(())
}
