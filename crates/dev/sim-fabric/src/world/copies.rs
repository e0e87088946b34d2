//! Copies of the fake fabric: begun, executed, or failed.

use crate::prelude::*;

#[derive(Debug)]
pub(crate) struct Moving {
    pub(crate) pe: Pe,
    pub(crate) copy: Copy,
    /// The word that is changed in place of a copy.
    pub(crate) word: Option<(usize, Atomic)>,
    pub(crate) tag: u32,
    /// The call that started it, with others.
    pub(crate) call: u64,
    pub(crate) due: u64,
    /// What went wrong with another copy of its tag.
    pub(crate) failed: Option<PortError>,
}

/// In place of a copy, of a step that changes a word.
const NO_COPY: Copy = Copy { direction: CopyDirection::In, memory: 0, bounce: 0, len: 0 };

impl World {
    pub(crate) fn share(&self, one: Pe, other: Pe) -> bool {
        one != other && [one, other].iter().all(|pe| self.sharing.contains(pe))
    }

    pub(crate) fn peer_bounce(&self, me: Pe, pe: Pe) -> Option<PeerBounce> {
        let shares = self.share(me, pe) && !self.blind.contains(&me);
        let mut bounces = self.memory.bounces.iter().filter(|_| shares);
        let &(_, addr, len) = bounces.find(|(of, ..)| *of == pe)?;
        Some(PeerBounce { addr, len })
    }

    pub(crate) fn sees(&self, me: Pe, addr: usize, len: usize) -> bool {
        let shared = self.peer_bounce(me, Memory::owner(addr));
        shared.is_some_and(|shared| addr >= shared.addr && addr - shared.addr + len <= shared.len)
    }

    /// Copies begin that were started together. They end after those in the same direction before
    /// them, the last one first.
    pub(crate) fn start_copies(&mut self, pe: Pe, copies: &[TaggedCopy]) {
        let Some(first) = copies.first() else { return };
        let before = self.under_way(pe, first.copy.direction).map(|other| other.due + 1).max();
        let due = (self.now + self.delay(RailId(u8::MAX))).max(before.unwrap_or(0));
        self.copy_calls += 1;
        let call = self.copy_calls;
        self.copies.extend(copies.iter().rev().map(|TaggedCopy { copy, tag }| Moving {
            pe,
            copy: *copy,
            word: None,
            tag: *tag,
            call,
            due,
            failed: None,
        }));
    }

    /// A list begins. Of its unordered steps the last one is done first.
    pub(crate) fn start_steps(&mut self, pe: Pe, steps: &[OrderedStep], tag: u32) {
        self.start_copies(pe, &[TaggedCopy { copy: NO_COPY, tag }]);
        let Some(Moving { call, mut due, .. }) = self.copies.pop() else { return };
        let mut moving = Vec::new();
        for (at, step) in steps.iter().enumerate() {
            let is_ordered = !matches!(step, OrderedStep::Copy { is_ordered: false, .. });
            due += u64::from(is_ordered && at > 0);
            let (copy, word) = match *step {
                OrderedStep::Copy { copy, .. } => (copy, None),
                OrderedStep::Apply { addr, atomic } => (NO_COPY, Some((addr, atomic))),
            };
            moving.push(Moving { pe, copy, word, tag, call, due, failed: None });
        }
        self.copies.extend(moving.into_iter().rev());
    }

    pub(crate) fn finish_lists(&mut self, pe: Pe) {
        while self.copies.iter().any(|other| other.pe == pe && other.word.is_some()) {
            let inward = (0..self.copies.len()).filter(|at| {
                let other = &self.copies[*at];
                other.pe == pe && other.copy.direction == CopyDirection::In
            });
            let Some(at) = inward.min_by_key(|at| self.copies[*at].due) else { return };
            self.move_copy(at);
        }
    }

    fn under_way(&self, pe: Pe, direction: CopyDirection) -> impl Iterator<Item = &Moving> {
        let of = move |other: &&Moving| other.pe == pe && other.copy.direction == direction;
        self.copies.iter().filter(of)
    }

    pub(crate) fn calls_under_way(&self, pe: Pe, direction: CopyDirection) -> usize {
        let calls: HashSet<u64> = self.under_way(pe, direction).map(|copy| copy.call).collect();
        calls.len()
    }

    pub(crate) fn move_copy(&mut self, at: usize) {
        let Moving { pe, copy, word, tag, call, failed, .. } = self.copies.remove(at);
        let Copy { direction, memory, bounce, len } = copy;
        let result = match (failed, &mut self.fail_copies) {
            // Nothing behind it is done either.
            (Some(before), _) => Err(before),
            (None, (0, 0)) => Ok(()),
            (None, (0, left)) => {
                *left -= 1;
                Err(fault("copy", 700, "failed by the script"))
            }
            (None, (before, _)) => {
                *before -= 1;
                Ok(())
            }
        };
        if let (Ok(()), Some((addr, atomic))) = (&result, word) {
            change(self.memory.any_bytes_mut(pe, addr, atomic.width.bytes()), &atomic);
            self.events.push(Event::Applied { pe, addr });
        } else if result.is_ok() {
            let (from, to) = match direction {
                CopyDirection::Out => (memory, bounce),
                CopyDirection::In => (bounce, memory),
            };
            // Bounce memory may be a peer's.
            let owner = |addr| if addr == bounce { Memory::owner(addr) } else { pe };
            let bytes = self.memory.any_bytes_mut(owner(from), from, len).to_vec();
            self.memory.any_bytes_mut(owner(to), to, len).copy_from_slice(&bytes);
            match direction {
                CopyDirection::Out => self.copies_out += 1,
                CopyDirection::In => self.events.push(Event::Copied { pe, addr: memory, len }),
            }
        }
        // It is told of when the last one of its tag has ended.
        let same = |other: &&mut Moving| (other.pe, other.call, other.tag) == (pe, call, tag);
        let mut others = self.copies.iter_mut().filter(same).peekable();
        if others.peek().is_none() {
            self.copied.entry(pe).or_default().push_back(Copied { tag, result });
        } else if let Err(error) = result {
            others.for_each(|other| other.failed = Some(error.clone()));
        }
    }
}
