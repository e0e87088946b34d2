//! Atomics that the fabric carries out at the target, and the lane's books about them.
//!
//! # One applier
//! A word is changed atomically only by one actor, and libfabric counts each domain of the target for
//! one. So all atomics on the memory of a PE, those of its own among them, go to one of its rails,
//! [`TARGET_RAIL`], whatever rail they leave by. Signals are atomics as well. No message changes a word
//! in a job with native atomics: a lane that gets one fails.
//!
//! # Order
//! An atomic is a write to the stream: a fence holds it, quiet waits for its completion, which means
//! that it was carried out and that the word before is here. The signal of a put leaves when its data is
//! delivered: what a provider promises about atomics behind writes is not relied on.
//!
//! # Why it cannot deadlock
//! Atomics are segments like transfers: they wait for room on their rail, which completions make. A
//! completion of one only moves segments between queues, as for transfers.

use crate::engine::atomic::{Atomic, AtomicOp, one};
use crate::engine::error::EngineError;
use crate::engine::ids::{RailId, Token};
use crate::engine::lane::{Lane, Left};
use crate::engine::port::fabric_atomic::{FabricAtomic, Number, Row, Verb};
use crate::engine::port::{Direction, PeerAddr, Port};
use crate::engine::request::{AtomicRequest, ResultPlace};
use crate::engine::state::operation::OpId;
use crate::engine::state::segment::{Kind, Stage};

/// The rail of every PE at which atomics on its memory arrive.
pub const TARGET_RAIL: RailId = RailId(0);

/// Most atomics of a lane under way, over all peers.
const ATOMICS: u32 = 2048;

/// How atomics for one PE go: by a local rail to the PE's [`TARGET_RAIL`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicPath {
    /// The local rail.
    pub rail: RailId,
    /// The address of the PE's rail, in the local rail's address table.
    pub to: PeerAddr,
}

/// What a lane with native atomics knows of them.
#[derive(Debug)]
pub(in crate::engine) struct Natives {
    /// By PE.
    paths: Box<[AtomicPath]>,
    slots: Box<[Native]>,
    free: Vec<u32>,
}

/// One atomic under way.
#[derive(Clone, Copy, Debug)]
struct Native {
    atomic: Atomic,
    posted: FabricAtomic,
    result: Option<ResultPlace>,
}

/// What comes after a completion.
enum Next {
    /// The operation has ended with this word before it.
    Ended(u64),
    /// Another operation of the fabric belongs to it.
    Again,
}

impl Natives {
    pub(in crate::engine) fn new(paths: Box<[AtomicPath]>) -> Self {
        let unused = Native {
            atomic: Atomic {
                op: AtomicOp::Fetch,
                width: crate::engine::atomic::Width::Eight,
                float: false,
                operand: 0,
                compare: 0,
            },
            posted: FabricAtomic { row: READ_HALF, operand: 0, compare: 0, remote: 0, key: 0 },
            result: None,
        };
        let slots = vec![unused; ATOMICS as usize].into_boxed_slice();
        Self { paths, slots, free: (0..ATOMICS).rev().collect() }
    }

    /// Slots in use.
    pub(in crate::engine) fn used(&self) -> u32 {
        ATOMICS - self.free.len() as u32
    }

    /// Whether there is a free slot.
    pub(in crate::engine) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    fn take(&mut self, native: Native) -> Option<u32> {
        let slot = self.free.pop()?;
        self.slots[slot as usize] = native;
        Some(slot)
    }

    /// Gives a slot back.
    pub(in crate::engine) fn give(&mut self, slot: u32) {
        self.free.push(slot);
    }

    /// Takes note of a completion, with the word that was fetched.
    ///
    /// A sum of IEEE halves, which no fabric has, is a read, and then compare and swaps until no
    /// other change came between.
    fn completed(&mut self, slot: u32, fetched: u64) -> Next {
        let native = &mut self.slots[slot as usize];
        let fetched = fetched & native.atomic.width.mask();
        let is_loop = Row::of(&native.atomic).is_none();
        let swapped = native.posted.row.verb == Verb::CompareSwap;
        if !is_loop || swapped && fetched == native.posted.compare {
            return Next::Ended(fetched);
        }
        native.posted.row = SWAP_HALF;
        native.posted.compare = fetched;
        native.posted.operand = native.atomic.apply(fetched);
        Next::Again
    }
}

const READ_HALF: Row = Row { verb: Verb::Read, number: Number::U16, fetches: true };
const SWAP_HALF: Row = Row { verb: Verb::CompareSwap, number: Number::U16, fetches: true };

/// The operand that the fabric is given: increments are additions there.
pub(in crate::engine) fn operand(atomic: &Atomic) -> u64 {
    match atomic.op {
        AtomicOp::Inc | AtomicOp::FetchInc => one(atomic.width, atomic.float),
        _ => atomic.operand,
    }
}

impl<P: Port> Lane<P> {
    /// The lane with its atomics carried out by the fabric. `paths` has one for each PE; all PEs of
    /// the job do so, or none.
    #[must_use]
    pub fn with_native_atomics(mut self, paths: Vec<AtomicPath>) -> Self {
        self.natives = Some(Box::new(Natives::new(paths.into())));
        // What these send is applied by the target's proxy thread.
        (self.counted, self.has_short) = (0, false);
        // Whether an atomic on a path that has failed was carried out cannot be known.
        self.health = None;
        self
    }

    /// Submits an atomic if there is room for it, chained to an operation if one is given. Never
    /// blocks.
    pub(in crate::engine) fn try_native(
        &mut self,
        request: &AtomicRequest<'_>,
        chained_to: OpId,
    ) -> Result<bool, EngineError> {
        self.stream_to(request.pe)?;
        let (remote, offset) = request.word()?;
        let Some(natives) = self.natives.as_deref_mut() else { return Ok(false) };
        let Some(path) = natives.paths.get(request.pe.index()).copied() else { return Ok(false) };
        let key = remote.key(TARGET_RAIL).map_err(|fault| request.refused(fault))?;
        let atomic = request.atomic;
        let posted = FabricAtomic {
            row: Row::of(&atomic).unwrap_or(READ_HALF),
            operand: operand(&atomic),
            compare: atomic.compare,
            remote: remote.remote_address(offset),
            key,
        };
        let Some(token) = self.segments.take() else { return Ok(false) };
        let result = request.result.filter(|_| atomic.op.fetches());
        let Some(slot) = natives.take(Native { atomic, posted, result }) else {
            self.segments.give_unused(token);
            return Ok(false);
        };
        let segment = &mut self.segments[token.0];
        segment.pe = request.pe;
        segment.born = self.watchdog.stamp();
        segment.message = slot;
        segment.direction = Direction::Write;
        segment.kind = Kind::Native;
        segment.rail = path.rail;
        segment.transfer.direction = Direction::Write;
        segment.transfer.len = atomic.width.bytes();
        if chained_to != OpId::NONE {
            segment.stage = Stage::Chained;
            if self.ops.chain(chained_to, token.0) {
                self.unchain(token);
            }
        } else {
            self.set_out(token);
        }
        self.check_stream(request.pe)?;
        Ok(true)
    }

    /// Hands an atomic to the fabric.
    #[cold]
    pub(in crate::engine) fn launch_native(&mut self, token: Token, rail: RailId) -> Left {
        let segment = &self.segments[token.0];
        let Some(natives) = self.natives.as_deref() else { return Left::NoRoom };
        if self.rails[rail.index()].is_full() {
            return Left::NoRoom;
        }
        let posted = &natives.slots[segment.message as usize].posted;
        let to = natives.paths[segment.pe.index()].to;
        let posted = self.port.post_atomic(rail, to, token, posted);
        self.launched(token, rail, Stage::Native, posted)
    }

    /// Takes the completion of an atomic, except for the rail's own count: stores the word before, then
    /// its flag. Says whether it was of an atomic in flight.
    #[cold]
    pub(in crate::engine) fn completed_native(&mut self, token: Token) -> bool {
        let Some(segment) = self.segments.away(token) else { return false };
        if segment.stage != Stage::Native {
            return false;
        }
        let (pe, rail, slot) = (segment.pe, segment.rail, segment.message);
        let Some(natives) = self.natives.as_deref_mut() else { return false };
        match natives.completed(slot, self.port.fetched(token)) {
            Next::Again => self.queue(token, rail),
            Next::Ended(before) => {
                let native = &natives.slots[slot as usize];
                let width = native.atomic.width.bytes();
                if let Some(place) = native.result {
                    self.store_result(pe, place, before, width);
                }
                self.drop_segment(token);
            }
        }
        true
    }
}
