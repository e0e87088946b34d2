//! What PE 0 and its peers both do in a ping-pong: send a numbered message, and wait for one.
//!
//! A message is a stamped slot, and a signal that is set to the message's number. Who waits sees the
//! signal first and then checks the stamps: a signal that overtakes its data is found.

use nvshmem_abi::c;
use nvshmem_sim::{Amo, Local, Ops, Piece, PlannedAmo, SymAddr};

use super::case::{LARGEST, Side};
use super::places::Places;
use crate::area::Slot;
use crate::raw::Messages;
use crate::serve::Patience;

/// One PE.
pub(crate) struct Party<'a> {
    pub(crate) ops: &'a Ops,
    /// The raw side, in jobs that have one.
    messages: Option<Messages>,
    pub(crate) places: Places,
    /// The PEs it talks to: all others for PE 0, PE 0 for them.
    pub(crate) peers: Vec<u32>,
}

/// Messages of one size to one peer and from it, made ready.
pub(crate) struct Exchange<'a> {
    /// Number of the peer among the peers.
    index: usize,
    piece: Piece,
    signal: PlannedAmo,
    from: SymAddr,
    bytes: u64,
    arriving: Slot<'a>,
    arrived: Local<'a>,
    /// The receive buffer of the raw side that has the same number as the peer: not necessarily
    /// the one in which its messages arrive.
    mail: Slot<'a>,
}

impl<'a> Party<'a> {
    pub(crate) fn new(ops: &'a Ops, messages: Option<Messages>, places: Places) -> Self {
        let peers = if ops.pe() == 0 { (1..ops.n_pes()).collect() } else { vec![0] };
        Self { ops, messages, places, peers }
    }

    /// Moves a side's data.
    #[inline]
    pub(crate) fn turn(&mut self, side: Side) -> Result<(), String> {
        match (side, &mut self.messages) {
            (Side::Raw, Some(messages)) => messages.turn().map_err(|e| e.to_string()),
            (Side::Raw, None) => Err(String::from("there is no raw side")),
            _ => self.ops.progress().map_err(|e| e.to_string()),
        }
    }

    /// Waits until everything that the plugin was given is delivered, to every PE: as the reference
    /// does before each signal.
    #[inline]
    pub(crate) fn quiet_all(&self) -> Result<(), String> {
        (0..self.ops.n_pes()).try_for_each(|pe| self.ops.quiet_pe(pe)).map_err(|e| e.to_string())
    }

    /// A put of one piece.
    pub(crate) fn piece(
        &self,
        pe: u32,
        to: SymAddr,
        from: SymAddr,
        bytes: u64,
    ) -> Result<Piece, String> {
        match self.ops.plan(pe, to, from, bytes).map_err(|e| e.to_string())?[..] {
            [piece] => Ok(piece),
            ref pieces => Err(format!("{} pieces where one is meant", pieces.len())),
        }
    }

    /// A signal that is set or added to a word of a peer.
    pub(crate) fn signal(&self, pe: u32, op: i32, word: SymAddr) -> Result<PlannedAmo, String> {
        self.ops.plan_amo(pe, word, &Amo::new(op, 8, 1)).map_err(|e| e.to_string())
    }

    /// A put with signal.
    #[inline]
    pub(crate) fn put_signal(
        &self,
        side: Side,
        piece: &Piece,
        signal: &PlannedAmo,
    ) -> Result<(), String> {
        if side == Side::Reference {
            self.ops.issue_put(piece).map_err(|e| e.to_string())?;
            self.quiet_all()?;
            self.ops.issue_amo(signal).map_err(|e| e.to_string())
        } else {
            self.ops.issue_put_signal(piece, signal).map_err(|e| e.to_string())
        }
    }

    /// Where every message sent is stamped.
    pub(crate) fn outgoing(&self, bytes: u64) -> Result<Slot<'a>, String> {
        Slot::new(self.ops, self.places.areas.from, bytes)
    }

    /// Messages of so many bytes with every peer.
    pub(crate) fn exchanges(&self, bytes: u64) -> Result<Vec<Exchange<'a>>, String> {
        let (me, places) = (self.ops.pe(), self.places);
        let exchange = |(index, &pe): (usize, &u32)| {
            let (from, to) = (places.areas.from, places.slot_from(me));
            Ok(Exchange {
                index,
                piece: self.piece(pe, to, from, bytes)?,
                signal: self.signal(pe, c::NVT_AMO_SIGNAL_SET, places.signal_from(me))?,
                from,
                bytes,
                arriving: Slot::new(self.ops, places.slot_from(pe), bytes)?,
                arrived: self.ops.local(places.signal_from(pe), 8).map_err(|e| e.to_string())?,
                mail: Slot::new(self.ops, places.mail.plus(index as u64 * LARGEST), bytes)?,
            })
        };
        self.peers.iter().enumerate().map(exchange).collect()
    }

    /// Sends the message of that number.
    #[inline]
    pub(crate) fn send(
        &mut self,
        side: Side,
        exchange: &Exchange<'_>,
        number: u64,
    ) -> Result<(), String> {
        if side != Side::Raw {
            return self.put_signal(side, &exchange.piece, &exchange.signal.with_value(number));
        }
        let Exchange { index, from, bytes, .. } = *exchange;
        let messages = self.messages.as_mut().ok_or("there is no raw side")?;
        // SAFETY: the slot is inside the heap, which is what is registered. It is stamped anew only
        // when the peer has answered.
        unsafe { messages.send(index, from.0, bytes as usize) }.map_err(|e| e.to_string())
    }

    /// Waits for the message of that number from every peer.
    #[inline]
    pub(crate) fn await_all(
        &mut self,
        side: Side,
        exchanges: &[Exchange<'_>],
        number: u64,
    ) -> Result<(), String> {
        if side == Side::Raw {
            return self.await_mail(exchanges, number);
        }
        for exchange in exchanges {
            let mut wait = Patience::new("a signal");
            while exchange.arrived.load_acquire().map_err(|e| e.to_string())? != number {
                self.ops.progress().map_err(|e| e.to_string())?;
                wait.turn()?;
            }
            let pe = self.peers[exchange.index];
            let checked = exchange.arriving.check(number);
            checked.map_err(|e| format!("signal of PE {pe} before its data: {e}"))?;
        }
        Ok(())
    }

    /// As [`Self::await_all`], for the raw side.
    fn await_mail(&mut self, exchanges: &[Exchange<'_>], number: u64) -> Result<(), String> {
        let messages = self.messages.as_mut().ok_or("there is no raw side")?;
        let mut missing = exchanges.len();
        let mut wait = Patience::new("a raw message");
        while missing > 0 {
            messages.turn().map_err(|e| e.to_string())?;
            while let Some(slot) = messages.take() {
                exchanges.get(slot).ok_or("no such receive buffer")?.mail.check(number)?;
                messages.give_back(slot).map_err(|e| e.to_string())?;
                missing = missing.checked_sub(1).ok_or("more raw messages than were sent")?;
            }
            wait.turn()?;
        }
        Ok(())
    }
}

/// Bytes of a receive buffer of the raw side.
pub(crate) const MAIL_BYTES: usize = LARGEST as usize;
