//! The consumer of the rings: takes descriptors, submits them to the engine, publishes completion.
//!
//! # Batches
//! Up to [`BATCH`] descriptors of a ring are taken at a time, ring after ring, and make one of the
//! engine's batches. A ring's batches retire in their order, whatever other rings have under way:
//! `done` says that everything before it is delivered. A ring has a bounded number of batches open.
//!
//! # Quiet with one PE
//! A quiet with one PE completes when nothing of any ring is outstanding with it; or by `done`,
//! which comes first if others put to that PE without end.
//!
//! # Acknowledgements
//! Peers are asked for them when the first batch of a ring has been open for [`PATIENCE`]
//! iterations: by then, other messages have often brought them along.

use std::collections::VecDeque;

use channel_sys as c;

use crate::channel::memory::shared::Fault;
use crate::channel::proxy::dispatch::{self, Refusal, about};
use crate::channel::proxy::region_table::Regions;
use crate::channel::ring::descriptor::Descriptor;
use crate::channel::ring::{Ring, State};
use engine::ids::Pe;
use engine::lane::Lane;
use engine::lane::batches::Batch;
use engine::port::Port;

const BATCH: u32 = 32;

const OPEN: usize = 64;

const PATIENCE: u32 = 16;

#[derive(Clone, Copy, Debug)]
struct OpenBatch {
    batch: Batch,
    /// Value of `done` when the batch has ended.
    end: u64,
    lands: bool,
}

#[derive(Debug)]
struct RingState {
    ring: Ring,
    open: VecDeque<OpenBatch>,
    /// Slots and PEs of the quiets with one PE, oldest first.
    quiets: VecDeque<(u64, Pe)>,
    limit: u64,
}

#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) fault: Fault,
    pub(crate) why: String,
}

#[derive(Debug)]
pub(crate) struct Consumer {
    rings: Vec<RingState>,
    next: usize,
    pub(crate) regions: Regions,
    most: usize,
    patience: u32,
}

impl Consumer {
    pub(crate) fn new(rings: Vec<Ring>) -> Self {
        let each = |ring| {
            let (open, quiets) = (VecDeque::with_capacity(OPEN), VecDeque::new());
            RingState { ring, open, quiets, limit: u64::MAX }
        };
        let rings = rings.into_iter().map(each).collect();
        Self { rings, next: 0, regions: Regions::new(), most: OPEN, patience: PATIENCE }
    }

    /// Takes one batch from the next ring that has descriptors, round robin; returns false if none
    /// has any. Not one batch of each ring: the lane is progressed in between.
    ///
    /// # Errors
    /// An invalid descriptor, or an operation that has failed. Nothing may be taken after that.
    pub(crate) fn take<P: Port>(&mut self, lane: &mut Lane<P>) -> Result<bool, Failed> {
        for _ in 0..self.rings.len() {
            let ring = self.next;
            self.next = if ring + 1 == self.rings.len() { 0 } else { ring + 1 };
            if self.take_from(ring, lane)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn take_from<P: Port>(&mut self, ring: usize, lane: &mut Lane<P>) -> Result<bool, Failed> {
        let Self { rings, regions, most, .. } = self;
        let Some(each) = rings.get_mut(ring) else { return Ok(false) };
        let RingState { ring: from, open, quiets, limit } = each;
        if open.len() >= *most || from.taken() >= *limit || !from.has_next() || !lane.has_room() {
            return Ok(false);
        }
        if is_stuck(from, lane) {
            return Ok(false);
        }
        let Some(batch) = lane.begin_batch() else {
            let why = String::from("too many batches are open");
            return Err(failed(ring, c::NLF_ERROR_FAILED, why));
        };
        lane.enter_batch(batch);
        let mut lands = false;
        let mut outcome = Ok(());
        for _ in 0..BATCH {
            if let Some(put) = from.take_put() {
                if let Err(refusal) = dispatch::put(lane, regions, put) {
                    outcome = Err(refused(ring, &put.into(), refusal));
                }
            } else {
                match take_other(ring, (from, quiets), lane, regions, &mut lands) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(failed) => outcome = Err(failed),
                }
            }
            if outcome.is_err() || from.taken() >= *limit || is_stuck(from, lane) {
                break;
            }
        }
        lane.enter_batch(Batch::NONE);
        from.publish_tail();
        // Also after a failure: earlier descriptors of the batch are in flight.
        open.push_back(OpenBatch { batch, end: from.taken(), lands });
        match outcome {
            Ok(()) => Ok(true),
            Err(failed) => Err(*failed),
        }
    }

    /// Publishes completed batches, and returns true if there were any. Calls `landed` first for
    /// bytes written to this PE's memory. Nothing is published after a failure of the lane.
    pub(crate) fn retire<P: Port, E>(
        &mut self,
        lane: &mut Lane<P>,
        mut landed: impl FnMut() -> Result<(), E>,
    ) -> Result<bool, E> {
        if lane.failure().is_some() {
            return Ok(false);
        }
        let mut any = false;
        let mut waits = false;
        for RingState { ring, open, quiets, .. } in &mut self.rings {
            let (mut end, mut lands) = (0, false);
            while let Some(first) = open.front() {
                if !lane.is_batch_done(first.batch) {
                    waits = true;
                    break;
                }
                (end, lands) = (first.end, lands | first.lands);
                lane.end_batch(first.batch);
                open.pop_front();
            }
            if end != 0 {
                if lands {
                    landed()?;
                }
                ring.publish_done(end);
                any = true;
            }
            if !quiets.is_empty() {
                any |= answer(ring, quiets, lane, &mut landed)?;
            }
        }
        if waits {
            self.patience -= 1;
            if self.patience == 0 {
                self.patience = PATIENCE;
                lane.request_acks();
            }
        }
        Ok(any)
    }

    pub(crate) fn has_open(&self) -> bool {
        self.rings.iter().any(|each| !each.open.is_empty())
    }

    /// Sets the number of slots of each ring after which nothing is taken.
    pub(crate) fn set_limits(&mut self, limits: impl IntoIterator<Item = u64>) {
        self.rings.iter_mut().zip(limits).for_each(|(each, limit)| each.limit = limit);
    }

    pub(crate) fn is_drained(&self) -> bool {
        self.rings.iter().all(|each| each.ring.taken() >= each.limit && each.open.is_empty())
    }

    pub(crate) fn left(&self) -> u64 {
        let left = |RingState { ring, limit, .. }: &RingState| {
            let end = if *limit == u64::MAX { ring.taken() } else { *limit };
            end.saturating_sub(ring.done())
        };
        self.rings.iter().map(left).sum()
    }

    pub(crate) fn publish_state(&mut self, state: State) {
        for each in &mut self.rings {
            each.ring.publish_tail();
            each.ring.publish_state(state);
        }
    }
}

/// True if the next descriptor has to stay in its ring: the queue of its PE is full.
#[inline(always)]
fn is_stuck<P: Port>(from: &mut Ring, lane: &Lane<P>) -> bool {
    lane.has_saturated_peer() && from.next_pe().is_some_and(|pe| lane.is_saturated(pe))
}

#[inline(never)]
fn take_other<P: Port>(
    ring: usize,
    (from, quiets): (&mut Ring, &mut VecDeque<(u64, Pe)>),
    lane: &mut Lane<P>,
    regions: &Regions,
    lands: &mut bool,
) -> Result<bool, Box<Failed>> {
    match from.take() {
        None => Ok(false),
        Some(Ok(descriptor)) => {
            *lands |= matches!(
                descriptor,
                Descriptor::Get { .. } | Descriptor::Atomic { fetch: Some(_), .. }
            );
            match dispatch::dispatch(lane, regions, &descriptor) {
                Ok(()) => Ok(true),
                Err(Refusal::Quiet(pe)) => {
                    quiets.push_back((from.taken() - 1, pe));
                    Ok(true)
                }
                Err(refusal) => Err(refused(ring, &descriptor, refusal)),
            }
        }
        Some(Err(bad)) => {
            let mut failed = failed(ring, c::NLF_ERROR_DESCRIPTOR, String::new());
            failed.why = format!("{}: {bad}", failed.fault);
            Err(Box::new(failed))
        }
    }
}

/// Publishes finished quiets that `done` does not complete. Returns true if there were any.
#[cold]
fn answer<P: Port, E>(
    ring: &mut Ring,
    quiets: &mut VecDeque<(u64, Pe)>,
    lane: &mut Lane<P>,
    landed: &mut impl FnMut() -> Result<(), E>,
) -> Result<bool, E> {
    let before = quiets.len();
    let mut held = [false; c::NLF_QUIETS as usize];
    for _ in 0..before {
        let Some((slot, pe)) = quiets.pop_front() else { break };
        if slot < ring.done() {
            continue;
        }
        let held = &mut held[(slot % u64::from(c::NLF_QUIETS)) as usize];
        // After a failure, an operation that has ended may be lost.
        if !*held && lane.is_quiet(pe).unwrap_or(false) && lane.failure().is_none() {
            landed()?;
            ring.publish_quiet(slot);
            continue;
        }
        *held = true;
        quiets.push_back((slot, pe));
    }
    Ok(quiets.len() != before)
}

#[cold]
fn failed(ring: usize, code: u32, why: String) -> Failed {
    let fault = Fault(c::nlf_error { code, ring: ring as u32, ..c::nlf_error::default() });
    Failed { fault, why }
}

#[cold]
fn refused(ring: usize, descriptor: &Descriptor, refusal: Refusal) -> Box<Failed> {
    let (op, pe, bytes) = about(descriptor);
    let about = c::nlf_error { op, pe, ring: ring as u32, bytes, ..c::nlf_error::default() };
    let fault = |code, addr| Fault(c::nlf_error { code, addr, ..about });
    let (fault, why) = match refusal {
        Refusal::AddressFault(at) => (fault(at.code, at.addr), None),
        Refusal::NoPe | Refusal::Quiet(_) => (fault(c::NLF_ERROR_PE, 0), None),
        Refusal::Engine(error) => (fault(c::NLF_ERROR_FAILED, 0), Some(error.to_string())),
    };
    Box::new(Failed { fault, why: why.unwrap_or_else(|| fault.to_string()) })
}

#[cfg(test)]
mod tests;
