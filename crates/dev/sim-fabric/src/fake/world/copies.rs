//! Copies of the fake fabric: begun, executed, or failed.

use super::error::fault;
use super::flights::Moving;
use super::state::World;
use crate::fake::script::Event;
use engine::ids::{Pe, RailId};
use engine::port::copies::{Copied, Copy, CopyDirection};

impl World {
    /// A copy begins. It ends after those in the same direction before it.
    pub(in crate::fake) fn start_copy(&mut self, pe: Pe, copy: Copy, tag: u32) {
        let before = self
            .copies
            .iter()
            .filter(|other| other.pe == pe && other.copy.direction == copy.direction)
            .map(|other| other.due + 1)
            .max();
        let due = (self.now + self.delay(RailId(u8::MAX))).max(before.unwrap_or(0));
        self.copies.push(Moving { pe, copy, tag, due });
    }

    pub(in crate::fake) fn next_copied(&mut self, pe: Pe) -> Option<Copied> {
        self.copied.get_mut(&pe)?.pop_front()
    }

    pub(in crate::fake) fn move_copy(&mut self, at: usize) {
        let Moving { pe, copy, tag, .. } = self.copies.swap_remove(at);
        let Copy { direction, memory, bounce, len } = copy;
        let result = match &mut self.fail_copies {
            (0, 0) => Ok(()),
            (0, left) => {
                *left -= 1;
                Err(fault("copy", 700, "failed by the script"))
            }
            (before, _) => {
                *before -= 1;
                Ok(())
            }
        };
        if result.is_ok() {
            let (from, to) = match direction {
                CopyDirection::Out => (memory, bounce),
                CopyDirection::In => (bounce, memory),
            };
            let bytes = self.memory.any_bytes_mut(pe, from, len).to_vec();
            self.memory.any_bytes_mut(pe, to, len).copy_from_slice(&bytes);
            if direction == CopyDirection::In {
                self.events.push(Event::Copied { pe, addr: memory, len });
            }
        }
        self.copied.entry(pe).or_default().push_back(Copied { tag, result });
    }
}
