//! Start and end of a stager's batches.
//!
//! The stream of the copies stores the words of a batch, a stream of its own all other words. So
//! access to a word waits until batches in flight have stored theirs. Of two batches that change
//! the same word, the second starts when the first has ended, since a kernel may change the word in
//! between. A batch that adds to a word is refused if its own copies change that word before: the
//! old value is read before the batch starts.
//!
//! The CPU executes short steps on mapped memory, unless they would overtake a batch in flight.

use std::iter;
use std::ptr;
use std::sync::Arc;

use super::{ContextState, DeviceStager, Location, OwnBounce};
use crate::copy::request::{CopyError, Direction, StreamOp, Transfer};
use crate::driver::error::refused;
use crate::driver::stream::wait_for;
use crate::memory::pinned_memory::PinnedMemory;
use crate::memory::pointer::Kind;
use crate::memory::range::fits;
use crate::staging::in_flight::InFlight;
use crate::staging::same_host::SameHostPeers;
use crate::words::deferred::{DeferredWrite, MAX_BYTES, WriteOrder};
use engine::atomic::Atomic;
use engine::port::copies::{Copied, Copy, CopyDirection, OrderedStep};
use engine::port::{PortError, Posted};

/// Maximum steps that the CPU executes, of at most [`MAX_BYTES`] each. A guess, to be measured: at
/// 0.3 µs for a store through a window, they take less than the 7 µs of a copy by the device.
const MAX_STORES: usize = 16;

impl DeviceStager {
    pub(super) fn in_flight(&mut self, direction: CopyDirection) -> &mut InFlight {
        match direction {
            CopyDirection::Out => &mut self.outward,
            CopyDirection::In => &mut self.inward,
        }
    }

    /// Ends the oldest batch of a direction if it is done. Returns whether it did.
    fn advance(&mut self, direction: CopyDirection) -> bool {
        let Some(number) = self.in_flight(direction).oldest_number() else { return false };
        for context in 0..self.contexts.len() {
            let of = &mut self.contexts[context];
            let engine = of.engine(direction);
            if engine.oldest() != Some(number) {
                continue;
            }
            match engine.poll() {
                None => return false,
                Some(Ok(())) => {}
                Some(Err(error)) => {
                    of.failed.get_or_insert_with(|| error.clone());
                    self.in_flight(direction).fail(error.into());
                }
            }
        }
        self.in_flight(direction).end();
        true
    }

    pub(super) fn poll_direction(&mut self, direction: CopyDirection) -> Option<Copied> {
        loop {
            if let Some(copied) = self.in_flight(direction).next_ended() {
                return Some(copied);
            }
            if !self.advance(direction) {
                return None;
            }
        }
    }

    pub(super) fn wait_for_words(&mut self) -> Result<(), PortError> {
        let are_stored = wait_for(self.staging.patience(), || {
            while self.inward.has_words() && self.advance(CopyDirection::In) {}
            !self.inward.has_words()
        });
        are_stored.then_some(()).ok_or_else(|| {
            let why = "the device does not finish copies that come before them";
            refused("storing words", String::from(why))
        })
    }

    /// Executes steps by the CPU, in order, as a batch that has ended when it is polled. Returns
    /// false, with nothing done, if the device has to execute them.
    pub(super) fn store_steps(
        &mut self,
        steps: impl Iterator<Item = OrderedStep> + Clone,
        tags: impl Iterator<Item = u32>,
    ) -> Result<bool, PortError> {
        self.sync();
        self.locations.clear();
        for (number, step) in steps.clone().enumerate() {
            let location = self.mapped(&step).filter(|_| number < MAX_STORES);
            let Some(location) = location else { return Ok(false) };
            self.locations.push(Some(location));
        }
        while self.advance(CopyDirection::In) {}
        let has_failed = self.contexts.iter().any(|of| of.failed.is_some());
        if has_failed || self.inward.oldest_number().is_some() {
            return Ok(false);
        }
        for (at, step) in steps.enumerate() {
            let Some(location) = self.locations[at].take() else { continue };
            match step {
                OrderedStep::Apply { ref atomic, .. } => _ = self.apply_at(&location, atomic)?,
                OrderedStep::Copy { copy: Copy { memory, bounce, len, .. }, .. } => {
                    let mut bytes = [0; MAX_BYTES];
                    // SAFETY: bytes of bounce memory, as was checked, and by `mapped` MAX_BYTES at
                    // most. No copy in flight changes ours; a peer's stays mapped and may change.
                    unsafe {
                        ptr::copy_nonoverlapping(bounce as *const u8, bytes.as_mut_ptr(), len);
                    }
                    self.invalidate(memory, len);
                    self.store_at(&location, &bytes[..len])?;
                    self.by_cpu += len as u64;
                }
            }
        }
        self.inward.push(tags, iter::empty(), None);
        Ok(true)
    }

    /// Returns the location of a step's memory if the CPU can execute it.
    fn mapped(&self, step: &OrderedStep) -> Option<Location> {
        let (memory, len) = match *step {
            OrderedStep::Copy { copy, .. } => (copy.memory, copy.len),
            OrderedStep::Apply { addr, .. } => (addr, len_of(step)),
        };
        let at = if len <= MAX_BYTES { self.registered(memory, len)? } else { return None };
        let is_whole = matches!(step, OrderedStep::Copy { .. }) || at.addr % len == 0;
        (at.range.is_mapped() && is_whole).then_some(at)
    }

    /// Starts a batch, whose memory is in `locations` and whose words are in `deferred`, unless it
    /// has to wait for those that a resident kernel has.
    pub(super) fn start_batch(
        &mut self,
        direction: CopyDirection,
        steps: impl Iterator<Item = OrderedStep> + Clone,
        tags: impl Iterator<Item = u32>,
    ) -> Result<Posted, PortError> {
        // A part that has to wait for a resident kernel must not follow one that is in flight.
        let waits = |of: &mut ContextState| of.engine(direction).is_at_resident();
        if self.contexts.len() > 1 && self.contexts.iter_mut().any(waits) {
            return Ok(Posted::Again);
        }
        let Self { contexts, locations, bounce, peers, deferred, by_cpu, .. } = self;
        let (copy_direction, in_flight) = match direction {
            CopyDirection::Out => (Direction::FromDevice, &mut self.outward),
            CopyDirection::In => (Direction::ToDevice, &mut self.inward),
        };
        let number = in_flight.next();
        let (mut any, mut failed) = (false, None);
        for (context, of) in contexts.iter_mut().enumerate() {
            let is_of = |location: &Option<Location>| {
                location.as_ref().is_some_and(|p| p.context == context)
            };
            if !locations.iter().any(is_of) {
                continue;
            }
            let (bounce, peers, mut words) = (&*bounce, &*peers, deferred.iter());
            let ops = steps.clone().zip(locations.iter()).filter_map(move |(step, location)| {
                let location = location.as_ref().filter(|location| location.context == context)?;
                let OrderedStep::Copy { copy, is_ordered } = step else {
                    return words.next()?.store();
                };
                let (memory, offset) = memory_of(bounce, peers, &copy).ok()?;
                // Always page-locked: that happens before the stager gets its first context.
                let memory = memory?;
                let (range, addr) = (&**location.range.range(), location.addr);
                let len = copy.len;
                let transfer =
                    Transfer { direction: copy_direction, range, addr, memory, offset, len };
                Some(StreamOp::Copy { transfer, is_ordered })
            });
            let started = match &of.failed {
                Some(error) => Err(error.clone().into()),
                None => of.engine(direction).start_batch(number, ops),
            };
            match started {
                Ok(()) => any = true,
                Err(CopyError::Full) if !any => return Ok(Posted::Again),
                Err(error) if !any => return Err(error.into()),
                // Parts on other contexts are in flight.
                Err(error) => failed = Some(error.into()),
            }
        }
        for (step, _) in steps.zip(locations.iter()).filter(|(_, location)| location.is_none()) {
            let OrderedStep::Copy { copy: Copy { memory, bounce: host, len, .. }, .. } = step
            else {
                continue;
            };
            *by_cpu += len as u64;
            let (from, to) = match direction {
                CopyDirection::Out => (memory, host),
                CopyDirection::In => (host, memory),
            };
            // SAFETY: the bounce buffer is inside our bounce memory, as was checked, and by the
            // engine's promise no copy in flight uses either side. Or it is in a peer's, which
            // stays mapped, is only read, and may have any bytes. The memory is host memory that
            // the caller of the operation keeps valid until its end, and no part of the bounce
            // memory.
            unsafe { ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, len) };
        }
        in_flight.push(tags, deferred.iter().map(|word| (word.addr, word.end())), failed);
        Ok(Posted::Yes)
    }

    pub(super) fn start_ordered(
        &mut self,
        steps: &[OrderedStep],
        tag: u32,
    ) -> Result<Option<Posted>, PortError> {
        if self.store_steps(steps.iter().copied(), iter::once(tag))? {
            return Ok(Some(Posted::Yes));
        }
        self.locations.clear();
        let Some(context) = self.locate_steps(steps)? else { return Ok(None) };
        if self.deferred.iter().any(|word| self.inward.has_word_in(word.addr, word.end())) {
            return Ok(Some(Posted::Again));
        }
        self.contexts[context].copies.words.resolve(&mut self.deferred)?;
        for (at, step) in steps.iter().enumerate() {
            if let Some(Location { memory, .. }) = self.locations[at] {
                self.invalidate(memory, len_of(step));
            }
        }
        self.start_batch(CopyDirection::In, steps.iter().copied(), iter::once(tag)).map(Some)
    }

    /// Fills `locations` with the memory of steps, and `deferred` with their words. Returns their
    /// common context; None if the device cannot execute them in order.
    fn locate_steps(&mut self, steps: &[OrderedStep]) -> Result<Option<usize>, PortError> {
        let mut of = None;
        for step in steps {
            let location = match *step {
                OrderedStep::Copy { copy: Copy { memory, len, .. }, .. } => {
                    self.find(memory, len)?
                }
                OrderedStep::Apply { addr, atomic, .. } => {
                    Some(self.staged(addr, atomic.width.bytes())?)
                }
            };
            let Some(location) = location else { return Ok(None) };
            let Location { context, ref range, addr, .. } = location;
            let engine = &self.contexts[context].copies.inward;
            let memory = range.range();
            let is_own = !memory.is_owned() || memory.context().is(engine.context());
            let one = *of.get_or_insert(context) == context;
            if memory.kind() != Kind::Device || !is_own || !one {
                return Ok(None);
            }
            if let OrderedStep::Apply { atomic, .. } = step {
                let is_word = addr % atomic.width.bytes() == 0
                    && engine.word_stores().has(memory, atomic.width)
                    && !range.is_mapped();
                if !is_word || self.follows_copy(steps, &location, atomic) {
                    return Ok(None);
                }
                let after = WriteOrder::After;
                self.deferred.push(DeferredWrite::atomic(context, range, addr, atomic, after));
            }
            self.locations.push(Some(location));
        }
        Ok(of)
    }

    /// Returns true if the old value of a word is unknown when the batch starts: the last located
    /// step that changes bytes of the word is no operation on that word.
    fn follows_copy(&self, steps: &[OrderedStep], word: &Location, atomic: &Atomic) -> bool {
        let (addr, len) = (word.addr, atomic.width.bytes());
        let located = &steps[..self.locations.len()];
        let mut before = located.iter().zip(&self.locations).rev();
        let last = before.find_map(|(step, location)| {
            let location = location.as_ref()?;
            let end = location.addr + len_of(step);
            (location.addr < addr + len && addr < end).then_some((step, location.addr, end))
        });
        let is_same = |(step, first, end): (&OrderedStep, usize, usize)| {
            matches!(step, OrderedStep::Apply { .. }) && (first, end) == (addr, addr + len)
        };
        !atomic.op.sets() && !last.is_none_or(is_same)
    }
}

fn len_of(step: &OrderedStep) -> usize {
    match step {
        OrderedStep::Copy { copy, .. } => copy.len,
        OrderedStep::Apply { atomic, .. } => atomic.width.bytes(),
    }
}

/// Returns the page-locked bounce memory of a copy, and the offset in it. Copies out, which write
/// to bounce memory, never find a peer's.
#[inline]
pub(super) fn memory_of<'m>(
    own: &'m OwnBounce,
    peers: &'m SameHostPeers,
    copy: &Copy,
) -> Result<(Option<&'m Arc<PinnedMemory>>, usize), PortError> {
    let Copy { direction, bounce, len, .. } = *copy;
    let offset = bounce.checked_sub(own.addr);
    if let Some(offset) = offset.filter(|offset| fits(*offset, len, own.len)) {
        return Ok((own.pinned.as_ref(), offset));
    }
    let theirs = if direction == CopyDirection::In { peers.memory(bounce, len) } else { None };
    theirs.map(|(memory, offset)| (Some(memory), offset)).ok_or_else(|| {
        refused("copying", format!("{len} bytes at {bounce:#x} are in no bounce buffer"))
    })
}
