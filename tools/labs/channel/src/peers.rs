//! Stands in for proxy, fabric and peers: takes operations from all rings and carries them out on
//! the heaps.
//!
//! It delivers in an order of chance, as late as it may, and keeps to nothing but what the device
//! API promises: a fence's order, and that a signal comes after its data. So a kernel that relies
//! on more finds out.

use std::collections::VecDeque;

use engine::atomic::{Atomic, AtomicOp, Width};
use engine::ids::Pe;
use nvshmem_transport_libfabric::channel::ring::descriptor::{Descriptor, Place};

use crate::bed::Bed;
use crate::image::{AREA, PES};
use crate::machines::machine::MachineError;

/// Taken from a ring at once.
const BATCH: usize = 16;

const PENDING: usize = 256;

/// A word of a PE that an operation has changed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Word {
    pub(crate) pe: u32,
    pub(crate) region: usize,
    pub(crate) index: u64,
}

/// What is done when a word has been changed: the peer's part of a kernel.
pub(crate) type Answer =
    fn(peers: &Peers, bed: &Bed<'_>, word: Word, value: u64) -> Result<(), MachineError>;

#[derive(Debug)]
pub(crate) struct Peers {
    /// In the order of taking.
    pending: VecDeque<Pending>,
    first: u64,
    /// Of each ring: numbers of its operations, and what `done` becomes with each.
    ends: Vec<VecDeque<(u64, u64)>>,
    random: u64,
    answer: Option<Answer>,
    pub(crate) taken: u64,
}

#[derive(Debug)]
struct Pending {
    descriptor: Descriptor,
    ring: usize,
    slot: u64,
    delivered: bool,
}

impl Peers {
    pub(crate) fn new(n_rings: usize, seed: u64, answer: Option<Answer>) -> Self {
        let ends = vec![VecDeque::new(); n_rings];
        Self { pending: VecDeque::new(), first: 0, ends, random: seed | 1, answer, taken: 0 }
    }

    pub(crate) fn step(&mut self, bed: &mut Bed<'_>) -> Result<(), MachineError> {
        for index in 0..bed.rings.len() {
            for _ in 0..BATCH {
                if self.pending.len() >= PENDING {
                    break;
                }
                let Some(taken) = bed.rings[index].take() else { break };
                let descriptor = taken.map_err(|error| MachineError(error.to_string()))?;
                let number = self.first + self.pending.len() as u64;
                self.ends[index].push_back((number, bed.rings[index].taken()));
                let slot = bed.rings[index].taken() - 1;
                self.pending.push_back(Pending { descriptor, ring: index, slot, delivered: false });
                self.taken += 1;
            }
            bed.rings[index].publish_tail();
        }
        // The oldest can always be delivered, so each step gets on.
        self.deliver(bed, 0)?;
        for _ in 0..self.pending.len() / 2 {
            let index = self.below(self.pending.len());
            self.deliver(bed, index)?;
        }
        while self.pending.front().is_some_and(|one| one.delivered) {
            self.pending.pop_front();
            self.first += 1;
        }
        for (ring, ends) in bed.rings.iter_mut().zip(&mut self.ends) {
            let mut done = ring.done();
            while let Some((number, end)) = ends.front().copied() {
                let delivered =
                    number < self.first || self.pending[(number - self.first) as usize].delivered;
                if !delivered {
                    break;
                }
                done = end;
                ends.pop_front();
            }
            ring.publish_done(done);
        }
        Ok(())
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    fn deliver(&mut self, bed: &mut Bed<'_>, index: usize) -> Result<(), MachineError> {
        let Some(one) = self.pending.get(index) else { return Ok(()) };
        if one.delivered {
            return Ok(());
        }
        let (descriptor, ring, slot) = (one.descriptor, one.ring, one.slot);
        let waits = self.pending.range(..index).any(|before| {
            !before.delivered
                && match (before.descriptor, descriptor) {
                    // Who waits for a PE is told when what is before in the ring is delivered.
                    (Descriptor::Quiet { .. }, Descriptor::Quiet { .. }) => before.ring == ring,
                    (other, Descriptor::Quiet { pe }) => {
                        before.ring == ring && meets(Some(pe), target(&other))
                    }
                    (Descriptor::Quiet { .. }, _) => false,
                    // A fence is over when what is before it is delivered, and lets nothing by.
                    (Descriptor::Fence { pe }, _) => meets(pe, target(&descriptor)),
                    (other, Descriptor::Fence { pe }) => meets(pe, target(&other)),
                    _ => false,
                }
        });
        if waits {
            return Ok(());
        }
        self.execute(bed, &descriptor)?;
        if matches!(descriptor, Descriptor::Quiet { .. }) {
            bed.rings[ring].publish_quiet(slot);
        }
        self.pending[index].delivered = true;
        Ok(())
    }

    fn execute(&self, bed: &Bed<'_>, descriptor: &Descriptor) -> Result<(), MachineError> {
        match *descriptor {
            Descriptor::Put { pe, dst, src, bytes } => {
                copy(bed, (src, Pe(0)), (dst, pe), bytes)?;
            }
            Descriptor::Get { pe, dst, src, bytes } => {
                copy(bed, (dst, pe), (src, Pe(0)), bytes)?;
            }
            Descriptor::PutValue { pe, dst, bytes, value } => {
                let to = at(bed, dst, bytes, pe)?;
                let no_word = || MachineError(format!("a value of {bytes} bytes"));
                let width = Width::from_bytes(bytes as i32).ok_or_else(no_word)?;
                // SAFETY: just checked; aligned, as the kernels have it.
                unsafe { bed.reach.store(to, width, value) }?;
            }
            Descriptor::PutSignal { pe, dst, src, bytes, signal, op, value } => {
                copy(bed, (src, Pe(0)), (dst, pe), bytes)?;
                self.atomic(bed, pe, signal, Width::Eight, (op, value, 0))?;
            }
            Descriptor::Atomic { pe, dst, width, op, value, compare, fetch } => {
                let old = self.atomic(bed, pe, dst, width, (op, value, compare))?;
                if let Some(fetch) = fetch {
                    let to = at(bed, fetch, width.bytes() as u32, Pe(0))?;
                    // SAFETY: just checked; aligned, as the device API has checked.
                    unsafe { bed.reach.store(to, width, old) }?;
                }
            }
            Descriptor::Fence { .. } | Descriptor::Quiet { .. } => {}
        }
        Ok(())
    }

    fn atomic(
        &self,
        bed: &Bed<'_>,
        pe: Pe,
        word: Place,
        width: Width,
        (op, operand, compare): (AtomicOp, u64, u64),
    ) -> Result<u64, MachineError> {
        let atomic = Atomic { op, width, float: false, operand, compare };
        let addr = at(bed, word, width.bytes() as u32, pe)?;
        // SAFETY: just checked; aligned, as the device API has checked.
        let old = unsafe { bed.reach.load(addr, width) }?;
        // SAFETY: the same.
        unsafe { bed.reach.store(addr, width, atomic.apply(old)) }?;
        if let Some(answer) = self.answer {
            let (region, index) = (word.region().index(), word.offset() / 8);
            answer(self, bed, Word { pe: pe.0, region, index }, operand)?;
        }
        Ok(old)
    }

    /// Sets a word of PE 0's heap, of an area, as a peer would: what was set before is seen with
    /// it.
    pub(crate) fn set(
        &self,
        bed: &Bed<'_>,
        area: usize,
        index: u64,
        value: u64,
    ) -> Result<(), MachineError> {
        assert!(index < AREA);
        let at = bed.heap(0) + 8 * (area * AREA as usize + index as usize);
        // SAFETY: a word of the heap.
        unsafe { bed.reach.store(at, Width::Eight, value) }
    }

    fn below(&mut self, bound: usize) -> usize {
        // Xorshift: good enough to mix.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % bound.max(1) as u64) as usize
    }
}

fn target(descriptor: &Descriptor) -> Option<Pe> {
    match *descriptor {
        Descriptor::Put { pe, .. }
        | Descriptor::PutValue { pe, .. }
        | Descriptor::Get { pe, .. }
        | Descriptor::PutSignal { pe, .. }
        | Descriptor::Atomic { pe, .. }
        | Descriptor::Quiet { pe } => Some(pe),
        Descriptor::Fence { pe } => pe,
    }
}

fn meets(one: Option<Pe>, other: Option<Pe>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => one == other,
        _ => true,
    }
}

fn at(bed: &Bed<'_>, place: Place, bytes: u32, pe: Pe) -> Result<usize, MachineError> {
    let region = if pe.0 < PES { bed.region(place.region().index(), pe.0) } else { None };
    match region {
        Some((base, len)) if place.offset() + u64::from(bytes) <= len => {
            Ok(base + place.offset() as usize)
        }
        _ => Err(MachineError(format!("{bytes} bytes at {place:?} of {pe} are in no memory"))),
    }
}

fn copy(bed: &Bed<'_>, from: (Place, Pe), to: (Place, Pe), bytes: u32) -> Result<(), MachineError> {
    let (from, to) = (at(bed, from.0, bytes, from.1)?, at(bed, to.0, bytes, to.1)?);
    // SAFETY: both were just checked.
    unsafe { bed.reach.copy(from, to, bytes) }
}
