//! Lists of a stager, as they are started and end.
//!
//! Words of a list are stored by the stream of the copies, others by a stream of their own. So
//! whoever reads or changes a word meanwhile waits until those on their way are there, and of two
//! lists that change the same word the second one starts when the first has ended: a kernel may
//! have changed the word in between. For the same reason a list that first changes the bytes of a
//! word otherwise, and then adds to it, is none: what is added to is read before the list.

use std::hint;
use std::ptr;
use std::sync::Arc;
use std::thread;

use super::{DeviceStager, OwnBounce, Place};
use crate::copy::request::{Direction, Step, Transfer};
use crate::driver::error::refused;
use crate::memory::pinned_memory::PinnedMemory;
use crate::memory::pointer::Kind;
use crate::staging::flight::Flight;
use crate::staging::same_host::SameHostPeers;
use crate::words::together::{Soon, Tie};
use engine::atomic::{Atomic, Width};
use engine::patience::Wait;
use engine::port::copies::{Copied, Copy, CopyDirection, OrderedStep};
use engine::port::{PortError, Posted};

impl DeviceStager {
    pub(super) fn flight(&mut self, direction: CopyDirection) -> &mut Flight {
        match direction {
            CopyDirection::Out => &mut self.outward,
            CopyDirection::In => &mut self.inward,
        }
    }

    /// Looks whether the oldest list of a direction has ended.
    fn advance(&mut self, direction: CopyDirection) -> bool {
        let Some(number) = self.flight(direction).under_way() else { return false };
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
                    self.flight(direction).fail(error.into());
                }
            }
        }
        self.flight(direction).end();
        true
    }

    pub(super) fn poll_direction(&mut self, direction: CopyDirection) -> Option<Copied> {
        loop {
            if let Some(copied) = self.flight(direction).next_told() {
                return Some(copied);
            }
            if !self.advance(direction) {
                return None;
            }
        }
    }

    /// Waits for words that are on their way in lists.
    pub(super) fn finish_in_order(&mut self) -> Result<(), PortError> {
        const SPINS: u32 = 256;
        let mut waited = Wait::new();
        let mut polls = 0;
        while self.inward.has_words() {
            if self.advance(CopyDirection::In) {
                continue;
            }
            polls += 1;
            if polls < SPINS {
                hint::spin_loop();
                continue;
            }
            if waited.left_of(self.staging.patience()).is_none() {
                return Err(refused(
                    "storing words",
                    String::from("the device does not finish copies that come before them"),
                ));
            }
            thread::yield_now();
        }
        Ok(())
    }

    /// Starts a list whose memory is in `places`, and whose words are in `soon`.
    pub(super) fn start_list(
        &mut self,
        direction: CopyDirection,
        steps: impl Iterator<Item = OrderedStep> + Clone,
        tags: impl Iterator<Item = u32>,
    ) -> Result<(), PortError> {
        let number = self.flight(direction).next();
        let Self { contexts, places, bounce, peers, soon, by_cpu, .. } = self;
        let way = match direction {
            CopyDirection::Out => Direction::FromDevice,
            CopyDirection::In => Direction::ToDevice,
        };
        let (mut some, mut failed) = (false, None);
        for (context, of) in contexts.iter_mut().enumerate() {
            let is_of =
                |place: &Option<Place>| place.as_ref().is_some_and(|p| p.context == context);
            if !places.iter().any(is_of) {
                continue;
            }
            let (bounce, peers, mut words) = (&*bounce, &*peers, soon.iter());
            let given = steps.clone().zip(places.iter()).filter_map(move |(step, place)| {
                let place = place.as_ref().filter(|place| place.context == context)?;
                let OrderedStep::Copy { copy, is_ordered } = step else {
                    return words.next()?.store();
                };
                let (memory, offset) = memory_of(bounce, peers, &copy).ok()?;
                // Page-locked before there was a context.
                let memory = memory?;
                let (range, addr) = (&**place.range.range(), place.addr);
                let len = copy.len;
                let transfer = Transfer { direction: way, range, addr, memory, offset, len };
                Some(Step::Copy { transfer, is_ordered })
            });
            let started = match &of.failed {
                Some(error) => Err(error.clone().into()),
                None => of.engine(direction).start_list(number, given),
            };
            match started {
                Ok(()) => some = true,
                Err(error) if !some => return Err(error.into()),
                // What was started before is under way.
                Err(error) => failed = Some(error.into()),
            }
        }
        for (step, _) in steps.zip(places.iter()).filter(|(_, place)| place.is_none()) {
            let OrderedStep::Copy { copy: Copy { memory, bounce: host, len, .. }, .. } = step
            else {
                continue;
            };
            *by_cpu += len as u64;
            let (from, to) = match direction {
                CopyDirection::Out => (memory, host),
                CopyDirection::In => (host, memory),
            };
            // SAFETY: the bounce buffer's bytes are in the bounce memory, as was checked, which is
            // ours; no copy that is under way uses them, as the engine promises of both sides. Or
            // they are in a peer's, which stays mapped, is only read, and has any bytes. The
            // memory is host memory that the caller of an operation vouches for until its end, and
            // no part of the bounce memory.
            unsafe { ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, len) };
        }
        let words: &[Soon] = soon;
        let flight = match direction {
            CopyDirection::Out => &mut self.outward,
            CopyDirection::In => &mut self.inward,
        };
        flight.push(tags, words.iter().map(|word| (word.addr, word.end())), failed);
        Ok(())
    }

    pub(super) fn start_steps(
        &mut self,
        steps: &[OrderedStep],
        tag: u32,
    ) -> Result<Option<Posted>, PortError> {
        let Some(context) = self.place_steps(steps)? else { return Ok(None) };
        if self.soon.iter().any(|word| self.inward.has_word_in(word.addr, word.end())) {
            return Ok(Some(Posted::Again));
        }
        self.contexts[context].copies.words.resolve(&mut self.soon)?;
        for (at, step) in steps.iter().enumerate() {
            if let Some(Place { memory, .. }) = self.places[at] {
                self.forget(memory, len_of(step));
            }
        }
        self.start_list(CopyDirection::In, steps.iter().copied(), std::iter::once(tag))?;
        Ok(Some(Posted::Yes))
    }

    /// Finds the memory of steps and lists their words. The context that all are of; none if they
    /// cannot be given to a device in their order.
    fn place_steps(&mut self, steps: &[OrderedStep]) -> Result<Option<usize>, PortError> {
        let mut of = None;
        for step in steps {
            let place = match *step {
                OrderedStep::Copy { copy: Copy { memory, len, .. }, .. } => {
                    self.find(memory, len)?
                }
                OrderedStep::Apply { addr, atomic, .. } => {
                    Some(self.staged(addr, atomic.width.bytes())?)
                }
            };
            let Some(place) = place else { return Ok(None) };
            let Place { context, ref range, addr, .. } = place;
            let engine = &self.contexts[context].copies.inward;
            let memory = range.range();
            let is_own = !memory.is_owned() || memory.context().is(engine.context());
            let one = *of.get_or_insert(context) == context;
            if memory.kind() != Kind::Device || !is_own || !one {
                return Ok(None);
            }
            if let OrderedStep::Apply { atomic, .. } = step {
                let is_word = atomic.width != Width::Two
                    && addr % atomic.width.bytes() == 0
                    && engine.word_stores().has(memory, atomic.width)
                    && !range.is_mapped();
                if !is_word || self.is_hidden(steps, &place, atomic) {
                    return Ok(None);
                }
                self.soon.push(Soon::changed_by(context, range, addr, atomic, Tie::Behind));
            }
            self.places.push(Some(place));
        }
        Ok(of)
    }

    /// Whether what a word is changed from is not yet in memory before the steps begin, nor known
    /// from a step on the same word: a step before, of those placed, changes bytes of it.
    fn is_hidden(&self, steps: &[OrderedStep], word: &Place, atomic: &Atomic) -> bool {
        let (addr, len) = (word.addr, atomic.width.bytes());
        let placed = &steps[..self.places.len()];
        let mut before = placed.iter().zip(&self.places).rev();
        let last = before.find_map(|(step, place)| {
            let place = place.as_ref()?;
            let end = place.addr + len_of(step);
            (place.addr < addr + len && addr < end).then_some((step, place.addr, end))
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

/// The page-locked bounce memory of a copy, and where there. A peer's is never written to.
#[inline]
pub(super) fn memory_of<'m>(
    own: &'m OwnBounce,
    peers: &'m SameHostPeers,
    copy: &Copy,
) -> Result<(Option<&'m Arc<PinnedMemory>>, usize), PortError> {
    let Copy { direction, bounce, len, .. } = *copy;
    let offset = bounce.checked_sub(own.addr);
    let fits = |at: &usize| *at <= own.len && len <= own.len - *at;
    if let Some(offset) = offset.filter(fits) {
        return Ok((own.pinned.as_ref(), offset));
    }
    let theirs = if direction == CopyDirection::In { peers.memory(bounce, len) } else { None };
    theirs.map(|(memory, offset)| (Some(memory), offset)).ok_or_else(|| {
        refused("copying", format!("{len} bytes at {bounce:#x} are in no bounce buffer"))
    })
}
