//! Puts and signals of peers that the device is given in their order, and the words that it stores
//! so: they change later than the call that starts them.
//!
//! These words are stored by the stream of the copies, others by a stream of their own. So whoever
//! reads or changes a word meanwhile waits until those on their way are there, and of two calls
//! that change the same word the second one starts when the first has ended: a kernel may have
//! changed the word in between. For the same reason a call that first changes the bytes of a word
//! otherwise, and then adds to it, is none: what is added to is read before the call.

use std::collections::VecDeque;
use std::hint;
use std::sync::Arc;
use std::thread;

use super::starting::memory_of;
use super::{Any, DeviceStager, Place};
use crate::copy::engine::InOrder;
use crate::copy::request::{self, PinnedTransfer, StartError};
use crate::driver::error::refused;
use crate::memory::pointer::Kind;
use crate::staging::flight::{By, Call, MOST_CALLS};
use crate::words::together::{Soon, Tie};
use engine::atomic::{Atomic, Width};
use engine::patience::Wait;
use engine::port::copies::{Copied, Copy, CopyDirection, MOST_WORDS, Step};
use engine::port::{PortError, Posted};

/// What is on its way in its order.
#[derive(Debug)]
pub(super) struct OrderedCalls {
    tags: VecDeque<u32>,
    /// Address and end of words that they store, and of some that they have stored.
    words: Vec<(usize, usize)>,
    /// What was found to have ended while somebody waited for words.
    pub(super) told: VecDeque<Copied>,
}

impl OrderedCalls {
    pub(super) fn new(depth: usize) -> Self {
        Self {
            tags: VecDeque::with_capacity(MOST_CALLS),
            words: Vec::with_capacity(MOST_CALLS * MOST_WORDS),
            told: VecDeque::with_capacity(depth),
        }
    }

    pub(super) fn has_words(&self) -> bool {
        !self.words.is_empty()
    }

    fn takes(&self, words: &[Soon]) -> bool {
        let is_free = |word: &Soon| {
            self.words.iter().all(|(addr, end)| word.end() <= *addr || *end <= word.addr)
        };
        self.words.len() + words.len() <= MOST_CALLS * MOST_WORDS && words.iter().all(is_free)
    }

    pub(super) fn ended(&mut self, tag: u32) {
        if self.tags.front() == Some(&tag) {
            self.tags.pop_front();
        }
        if self.tags.is_empty() {
            self.words.clear();
        }
    }
}

impl DeviceStager {
    pub(super) fn finish_in_order(&mut self) -> Result<(), PortError> {
        const SPINS: u32 = 256;
        let mut waited = Wait::new();
        let mut polls = 0;
        while !self.in_order.tags.is_empty() {
            if let Some(copied) = self.poll_direction(CopyDirection::In) {
                self.in_order.told.push_back(copied);
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

    pub(super) fn start_steps(
        &mut self,
        steps: &[Step],
        tag: u32,
    ) -> Result<Option<Posted>, PortError> {
        let Some(context) = self.place_steps(steps)? else { return Ok(None) };
        if !self.in_order.takes(&self.soon) {
            return Ok(Some(Posted::Again));
        }
        self.contexts[context].copies.words.resolve(&mut self.soon)?;
        for (at, step) in steps.iter().enumerate() {
            let Some(place) = self.places[at].take() else { continue };
            self.forget(&place, len_of(step));
            self.places[at] = Some(place);
        }
        let Self { contexts, places, bounce, neighbours, soon, .. } = self;
        let of = &mut contexts[context];
        if let Some(error) = &of.failed {
            return Err(error.clone().into());
        }
        let words = |at: usize| {
            let before = steps[..at].iter().filter(|step| matches!(step, Step::Apply { .. }));
            &soon[before.count()]
        };
        let given =
            steps.iter().zip(places.iter()).enumerate().filter_map(|(at, (step, place))| {
                let Place { range, addr, .. } = place.as_ref()?;
                let (range, addr) = (&**range.range(), *addr);
                Some(match step {
                    Step::Copy { copy, behind } => {
                        let (memory, offset) = memory_of(bounce, neighbours, copy).ok()?;
                        let memory = memory?;
                        let (direction, len) = (request::Direction::ToDevice, copy.len);
                        let transfer =
                            PinnedTransfer { direction, range, addr, memory, offset, len };
                        InOrder::Copy(transfer, *behind)
                    }
                    Step::Apply { .. } => InOrder::Store(words(at).word(), words(at).value),
                })
            });
        match of.copies.inward.start_in_order(given) {
            Ok(_) => {}
            Err(StartError::Cuda(error)) => return Err(error.into()),
            Err(other) => return Err(refused("copying", other.to_string())),
        }
        self.in_order.words.extend(self.soon.iter().map(|word| (word.addr, word.end())));
        self.in_order.tags.push_back(tag);
        let flight = self.flight(CopyDirection::In);
        flight.push_tag(tag);
        flight.push(Call { by: By::Engine(context), tags: 1 });
        Ok(Some(Posted::Yes))
    }

    fn place_steps(&mut self, steps: &[Step]) -> Result<Option<usize>, PortError> {
        let mut of = None;
        for step in steps {
            let place = match *step {
                Step::Copy { copy: Copy { memory, len, .. }, .. } => self.any(memory, len)?,
                Step::Apply { addr, atomic, .. } => {
                    Any::Device(self.staged(addr, atomic.width.bytes())?)
                }
            };
            let Any::Device(place) = place else { return Ok(None) };
            let is_hidden = match step {
                Step::Apply { atomic, .. } => self.is_hidden(steps, &place, atomic),
                Step::Copy { .. } => false,
            };
            let engine = &self.contexts[place.context].copies.inward;
            let range = place.range.range();
            let own = !range.is_owned() || Arc::ptr_eq(range.context(), engine.context());
            let one = *of.get_or_insert(place.context) == place.context;
            if range.kind() != Kind::Device || !own || !one || is_hidden {
                return Ok(None);
            }
            if let Step::Apply { atomic, .. } = step {
                let is_word = atomic.width != Width::Two
                    && place.addr % atomic.width.bytes() == 0
                    && engine.stores_by_operation(range, atomic.width)
                    && self.stores_together(&place);
                if !is_word {
                    return Ok(None);
                }
                let Place { context, ref range, addr, .. } = place;
                let range = Arc::clone(range);
                let (len, tie) = (atomic.width.bytes() as u8, Tie::Behind);
                let change = (!atomic.op.sets()).then_some(*atomic);
                let value = atomic.operand & atomic.width.mask();
                self.soon.push(Soon { context, range, addr, len, value, change, tie, place: 0 });
            }
            self.places.push(Some(place));
        }
        Ok(of)
    }

    /// Whether what a word is changed from is not yet in memory before the steps begin, nor known
    /// from a step on the same word: a step before, of those placed, changes bytes of it.
    fn is_hidden(&self, steps: &[Step], word: &Place, atomic: &Atomic) -> bool {
        let (addr, len) = (word.addr, atomic.width.bytes());
        let placed = &steps[..self.places.len()];
        let mut before = placed.iter().zip(&self.places).rev();
        let last = before.find_map(|(step, place)| {
            let place = place.as_ref()?;
            let end = place.addr + len_of(step);
            (place.addr < addr + len && addr < end).then_some((step, place.addr, end))
        });
        let is_same = |(step, first, end): (&Step, usize, usize)| {
            matches!(step, Step::Apply { .. }) && (first, end) == (addr, addr + len)
        };
        !atomic.op.sets() && !last.is_none_or(is_same)
    }
}

fn len_of(step: &Step) -> usize {
    match step {
        Step::Copy { copy, .. } => copy.len,
        Step::Apply { atomic, .. } => atomic.width.bytes(),
    }
}
