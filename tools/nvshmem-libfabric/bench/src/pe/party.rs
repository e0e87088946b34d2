//! One PE of a job: the operations of the plugin, and what is measured beside it.

use std::time::Instant;

use nvshmem_sim::{Amo, Ops, Piece, PlannedAmo, SymAddr};

use super::patience::PATIENCE;
use super::window::{Direction, Window};
use crate::raw::{Messages, Raw};
use crate::times::case::Side;

/// Operations between two polls: what NVSHMEM's proxy takes from its channel at a time.
pub(crate) const BATCH: usize = 32;

/// What a PE has beside the plugin.
pub(crate) enum RawSide {
    Nothing,
    /// Writes and reads, to the first peer.
    Transfers(Raw),
    Messages(Messages),
}

/// One PE.
pub(crate) struct Party<'a> {
    pub(crate) ops: &'a Ops,
    pub(crate) raw: RawSide,
    /// The PEs it talks to: all others for PE 0, PE 0 for them.
    pub(crate) peers: Vec<u32>,
}

impl<'a> Party<'a> {
    pub(crate) fn new(ops: &'a Ops, raw: RawSide) -> Self {
        let peers = if ops.pe() == 0 { (1..ops.n_pes()).collect() } else { vec![0] };
        Self { ops, raw, peers }
    }

    /// Moves a side's data.
    #[inline]
    pub(crate) fn turn(&mut self, side: Side) -> Result<(), String> {
        match (side, &mut self.raw) {
            (Side::Raw, RawSide::Transfers(raw)) => raw.turn().map_err(text),
            (Side::Raw, RawSide::Messages(messages)) => messages.turn().map_err(text),
            (Side::Raw, RawSide::Nothing) => Err(String::from("there is no raw side")),
            _ => self.ops.progress().map_err(text),
        }
    }

    /// The messages of the raw side.
    pub(crate) fn messages(&mut self) -> Result<&mut Messages, String> {
        match &mut self.raw {
            RawSide::Messages(messages) => Ok(messages),
            _ => Err(String::from("there is no raw side for messages")),
        }
    }

    /// A word of this PE.
    pub(crate) fn word(&self, at: SymAddr) -> Result<u64, String> {
        self.ops.local(at, 8).and_then(|word| word.load_acquire()).map_err(text)
    }

    /// Waits until everything that the plugin was given is delivered, to every PE: as the reference
    /// does before each signal.
    #[inline]
    pub(crate) fn quiet_all(&self) -> Result<(), String> {
        (0..self.ops.n_pes()).try_for_each(|pe| self.ops.quiet_pe(pe)).map_err(text)
    }

    /// A transfer of one piece.
    pub(crate) fn piece(
        &self,
        pe: u32,
        remote: SymAddr,
        local: SymAddr,
        bytes: u64,
    ) -> Result<Piece, String> {
        match self.ops.plan(pe, remote, local, bytes).map_err(text)?[..] {
            [piece] => Ok(piece),
            ref pieces => Err(format!("{} pieces where one is meant", pieces.len())),
        }
    }

    /// A window with a peer, ready to be issued.
    pub(crate) fn plan(&self, pe: u32, window: &Window) -> Result<Vec<Piece>, String> {
        let (remote, local) = match window.direction {
            Direction::Put => (window.to, window.from),
            Direction::Get => (window.from, window.to),
        };
        let slots = 0..local.count;
        slots.map(|at| self.piece(pe, remote.slot(at), local.slot(at), local.bytes)).collect()
    }

    /// A signal that is set or added to a word of a peer.
    pub(crate) fn signal(&self, pe: u32, op: i32, word: SymAddr) -> Result<PlannedAmo, String> {
        self.ops.plan_amo(pe, word, &Amo::new(op, 8, 1)).map_err(text)
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
            self.ops.issue_put(piece).map_err(text)?;
            self.quiet_all()?;
            self.ops.issue_amo(signal).map_err(text)
        } else {
            self.ops.issue_put_signal(piece, signal).map_err(text)
        }
    }

    /// A window through the plugin, with the polls of a proxy thread, and the wait for all of it.
    #[inline]
    pub(crate) fn window(&self, direction: Direction, plan: &[Piece]) -> Result<(), String> {
        for batch in plan.chunks(BATCH) {
            for piece in batch {
                match direction {
                    Direction::Put => self.ops.issue_put(piece),
                    Direction::Get => self.ops.issue_get(piece),
                }
                .map_err(text)?;
            }
            if batch.len() == BATCH {
                self.ops.progress().map_err(text)?;
            }
        }
        self.ops.quiet_pe(1).map_err(text)
    }

    /// The same through the raw side.
    pub(crate) fn raw_window(&mut self, window: &Window) -> Result<(), String> {
        let RawSide::Transfers(raw) = &mut self.raw else {
            return Err(String::from("there is no raw side for transfers"));
        };
        let (local, remote) = match window.direction {
            Direction::Put => (window.from, window.to),
            Direction::Get => (window.to, window.from),
        };
        for slot in 0..local.count {
            let (here, there, len) =
                (local.slot(slot).0, remote.slot(slot).0, local.bytes as usize);
            // SAFETY: the slots are inside the heap registered, on both PEs alike. Nothing is in
            // flight when a window begins, and it uses each slot once.
            while !unsafe { raw.post(window.direction, slot as usize, here, there, len) }
                .map_err(text)?
            {
                raw.turn().map_err(text)?;
            }
            if (slot as usize + 1) % BATCH == 0 {
                raw.turn().map_err(text)?;
            }
        }
        let mut turns = 0u32;
        let mut start = None;
        while raw.in_flight() > 0 {
            raw.turn().map_err(text)?;
            turns = turns.wrapping_add(1);
            // The plugin has its own watchdog; this is raw's, as rarely.
            if turns % 65536 == 0 && start.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                return Err(format!("{} operations did not complete", raw.in_flight()));
            }
        }
        Ok(())
    }
}

fn text(error: impl ToString) -> String {
    error.to_string()
}
