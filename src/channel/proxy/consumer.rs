//! The consumer of the rings: takes descriptors, has the engine carry them out, publishes the end.
//!
//! # Batches
//! Up to [`BATCH`] descriptors of a ring are taken at a time, ring after ring, and make one of the
//! engine's batches. A ring's batches retire in their order: when the first is over, its last slot
//! is published as done. So `done` says that everything before it is delivered, and what other
//! rings have under way does not hold it up. A ring has a bounded number of batches open, for which
//! room was set aside; beyond it, nothing is taken from that ring.
//!
//! # Quiet with one PE
//! Who waits for one PE is told when nothing is outstanding with it, from whatever ring; or by
//! `done`, which comes first where others put to it without end.
//!
//! # Acknowledgements
//! Peers acknowledge messages when they are asked. They are asked when the first batch of a ring
//! has been open for [`PATIENCE`] iterations: by then, answers to what was sent have often brought
//! the acknowledgement along.

use std::collections::VecDeque;

use channel_sys as c;

use crate::channel::memory::shared::Fault;
use crate::channel::proxy::dispatch::{self, Refusal, about};
use crate::channel::proxy::region_table::Regions;
use crate::channel::ring::descriptor::{BadDescriptor, Descriptor};
use crate::channel::ring::{Ring, State};
use engine::ids::Pe;
use engine::lane::Lane;
use engine::lane::batches::Batch;
use engine::port::Port;

const BATCH: u32 = 32;

const OPEN: usize = 64;

const PATIENCE: u32 = 16;

#[derive(Clone, Copy, Debug)]
struct Open {
    batch: Batch,
    /// Value of `done` when the batch has ended.
    end: u64,
    lands: bool,
}

#[derive(Debug)]
struct Source {
    ring: Ring,
    open: VecDeque<Open>,
    /// Slots of those who wait for one PE, and which; oldest first.
    quiets: VecDeque<(u64, Pe)>,
    limit: u64,
}

/// What has ended a context: for producers, and in words.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) fault: Fault,
    pub(crate) why: String,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Consumer {
    sources: Vec<Source>,
    next: usize,
    pub(crate) regions: Regions,
    most: usize,
    patience: u32,
}

impl Consumer {
    pub(crate) fn new(rings: Vec<Ring>) -> Self {
        let source = |ring| {
            let (open, quiets) = (VecDeque::with_capacity(OPEN), VecDeque::new());
            Source { ring, open, quiets, limit: u64::MAX }
        };
        let sources = rings.into_iter().map(source).collect();
        Self { sources, next: 0, regions: Regions::new(), most: OPEN, patience: PATIENCE }
    }

    /// Takes a batch from the next ring that has something, round and round. Whether any had.
    ///
    /// One batch, and not one of each ring: what was posted before is monitored in between.
    ///
    /// # Errors
    /// What a producer asked for cannot be, or was not executed. Nothing may be taken after that.
    pub(crate) fn take<P: Port>(&mut self, lane: &mut Lane<P>) -> Result<bool, Failed> {
        for _ in 0..self.sources.len() {
            let ring = self.next;
            self.next = if ring + 1 == self.sources.len() { 0 } else { ring + 1 };
            if self.take_from(ring, lane)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn take_from<P: Port>(&mut self, ring: usize, lane: &mut Lane<P>) -> Result<bool, Failed> {
        let Self { sources, regions, most, .. } = self;
        let Some(source) = sources.get_mut(ring) else { return Ok(false) };
        let Source { ring: from, open, quiets, limit } = source;
        if open.len() >= *most || from.taken() >= *limit || !from.has_next() || !lane.has_room() {
            return Ok(false);
        }
        if is_stuck(from, lane) {
            return Ok(false);
        }
        let Some(batch) = lane.begin_batch() else {
            return Err(failed(
                ring,
                c::NLF_ERROR_FAILED,
                String::from("too many batches are open"),
            ));
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
        // Also when it has failed: what was submitted before is under way.
        open.push_back(Open { batch, end: from.taken(), lands });
        match outcome {
            Ok(()) => Ok(true),
            Err(failed) => Err(*failed),
        }
    }

    /// Publishes what is done, and says whether anything was, calling `landed` before that for what
    /// came to this PE's memory. Nothing more after a failure of the lane: it may only look over.
    ///
    /// # Errors
    /// The error of `landed`.
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
        for Source { ring, open, quiets, .. } in &mut self.sources {
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
        self.sources.iter().any(|source| !source.open.is_empty())
    }

    /// Takes nothing after so many slots of each ring.
    pub(crate) fn set_limits(&mut self, limits: impl IntoIterator<Item = u64>) {
        for (source, limit) in self.sources.iter_mut().zip(limits) {
            source.limit = limit;
        }
    }

    pub(crate) fn is_drained(&self) -> bool {
        self.sources
            .iter()
            .all(|source| source.ring.taken() >= source.limit && source.open.is_empty())
    }

    pub(crate) fn left(&self) -> u64 {
        let left = |Source { ring, limit, .. }: &Source| {
            let end = if *limit == u64::MAX { ring.taken() } else { *limit };
            end.saturating_sub(ring.done())
        };
        self.sources.iter().map(left).sum()
    }

    pub(crate) fn publish_state(&mut self, state: State) {
        for source in &mut self.sources {
            source.ring.publish_tail();
            source.ring.publish_state(state);
        }
    }
}

/// Whether the next descriptor is for a PE that takes nothing, and for which as much is parked as
/// may be: it stays in its ring, and other rings go on.
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
        Some(Err(bad)) => Err(no_descriptor(ring, &bad)),
    }
}

/// Tells those who wait for one PE, where nothing is outstanding with it. Who is still here when
/// `done` has come that far has been told by that. Whether any was told.
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
        // After a failure, what is over may be lost.
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
fn no_descriptor(ring: usize, bad: &BadDescriptor) -> Box<Failed> {
    let mut failed = failed(ring, c::NLF_ERROR_DESCRIPTOR, String::new());
    failed.why = format!("{}: {bad}", failed.fault);
    Box::new(failed)
}

#[cold]
fn refused(ring: usize, descriptor: &Descriptor, refusal: Refusal) -> Box<Failed> {
    let (op, pe, bytes) = about(descriptor);
    let about = c::nlf_error { op, pe, ring: ring as u32, bytes, ..c::nlf_error::default() };
    let fault = |code, addr| Fault(c::nlf_error { code, addr, ..about });
    let (fault, why) = match refusal {
        Refusal::Misplaced(misplaced) => (fault(misplaced.code, misplaced.addr), None),
        Refusal::NoPe | Refusal::Quiet(_) => (fault(c::NLF_ERROR_PE, 0), None),
        Refusal::Engine(error) => (fault(c::NLF_ERROR_FAILED, 0), Some(error.to_string())),
    };
    Box::new(Failed { fault, why: why.unwrap_or_else(|| fault.to_string()) })
}

#[cfg(test)]
mod tests;
