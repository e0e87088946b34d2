//! Copies of fragments, as they are started: as many together as there are.
//!
//! Fragments that have all they need for their copy are *ready*, first in first out. The port says
//! how many it takes ([`CopyPort::room`](crate::port::copies::CopyPort::room)): none while the
//! device has enough to do. So what becomes ready meanwhile goes to it in one call.

use std::slice::ChunkBy;

use crate::ids::WrId;
use crate::port::copies::{CopyDirection, MOST_TOGETHER, Tagged};
use crate::port::{Port, Posted};
use crate::posting::Core;
use crate::staging::Staging;
use crate::staging::gathered::Unlisted;
use crate::wire::staged::MOST_LISTED;

const LONG: usize = 256 << 10;

const MOST_BYTES: usize = 2 << 20;

impl Staging {
    pub(crate) fn room(&mut self, direction: CopyDirection) -> usize {
        self.bouncing().map_or(0, |bouncing| bouncing.copies.room(direction))
    }

    pub(super) fn start_copies<P: Port>(
        &mut self,
        core: &mut Core<P>,
        direction: CopyDirection,
    ) -> bool {
        let mut moved = false;
        while !self.state().ready(direction).is_empty() {
            let room = self.room(direction);
            if room == 0 {
                break;
            }
            match self.start_listed_in_order(core, direction) {
                Some(true) => {
                    moved = true;
                    continue;
                }
                Some(false) => break,
                None => {}
            }
            let mut together = std::mem::take(&mut self.state().ready.together);
            let waits = self.gather(core, direction, room, &mut together);
            let started = self.start_together(core, direction, &together);
            together.clear();
            self.state().ready.together = together;
            moved |= started;
            if waits || !started {
                break;
            }
        }
        moved
    }

    /// Starts the first fragment that is ready, if it is several puts in their order that the
    /// device takes so. False if that has to be tried again.
    fn start_listed_in_order<P: Port>(
        &mut self,
        core: &mut Core<P>,
        direction: CopyDirection,
    ) -> Option<bool> {
        let wr_id = *self.state().ready(direction).front()?;
        if self.state().fragment(wr_id).next != Some(0) {
            return None;
        }
        self.state().ready(direction).pop_front();
        if self.ends_with_its_connection(core, wr_id) {
            return Some(true);
        }
        // None: it has failed.
        let Some(bounce) = self.bounce_addr(core, wr_id) else { return Some(true) };
        match self.start_in_order(core, wr_id, bounce) {
            Ok(Some(Posted::Yes)) => Some(true),
            Ok(Some(Posted::Again)) => {
                self.state().ready(direction).push_front(wr_id);
                Some(false)
            }
            Ok(None) => {
                self.state().ready(direction).push_front(wr_id);
                None
            }
            Err(error) => {
                self.fail_fragment(core, wr_id, error);
                Some(true)
            }
        }
    }

    fn gather<P: Port>(
        &mut self,
        core: &mut Core<P>,
        direction: CopyDirection,
        room: usize,
        together: &mut Vec<Tagged>,
    ) -> bool {
        // What is waiting for a bounce buffer would have to wait all the same.
        let backlog = direction == CopyDirection::In || !self.state().waiting(direction).is_empty();
        let mut bytes = 0;
        for _ in 0..room {
            let Some(next) = self.state().ready(direction).front().copied() else { break };
            if bytes != 0 && self.state().fragment(next).next == Some(0) {
                break;
            }
            let len = self.state().fragment(next).len;
            let waits = len >= LONG && (!backlog || bytes + len > MOST_BYTES);
            if bytes != 0 && (waits || bytes >= MOST_BYTES)
                || together.len() > MOST_TOGETHER - MOST_LISTED
            {
                break;
            }
            bytes += len;
            let Some(wr_id) = self.state().ready(direction).pop_front() else { break };
            if self.ends_with_its_connection(core, wr_id) {
                continue;
            }
            // None: it has failed.
            let Some(bounce) = self.bounce_addr(core, wr_id) else { continue };
            if self.add_copies(core, wr_id, bounce, together) == Err(Unlisted::Waits) {
                self.state().ready(direction).push_front(wr_id);
                return true;
            }
        }
        false
    }

    fn start_together<P: Port>(
        &mut self,
        core: &mut Core<P>,
        direction: CopyDirection,
        together: &[Tagged],
    ) -> bool {
        let Some(bouncing) = self.bouncing().filter(|_| !together.is_empty()) else { return true };
        match bouncing.copies.start_all(together) {
            Ok(Posted::Yes) => {
                for of_tag in by_tag(together) {
                    let memory = of_tag.iter().map(|Tagged { copy, .. }| (copy.memory, copy.len));
                    self.is_copied(core, WrId(of_tag[0].tag), memory);
                }
                true
            }
            Ok(Posted::Again) => {
                for of_tag in by_tag(together).rev() {
                    self.state().forget_read_list(WrId(of_tag[0].tag));
                    self.state().ready(direction).push_front(WrId(of_tag[0].tag));
                }
                false
            }
            Err(error) if together[0].tag == together[together.len() - 1].tag => {
                self.fail_fragment(core, WrId(together[0].tag), error);
                true
            }
            // One of them is at fault, and fails by itself.
            Err(_) => {
                let count = by_tag(together).count();
                for (number, of_tag) in by_tag(together).enumerate() {
                    if !self.start_together(core, direction, of_tag) {
                        let first = self.state().ready(direction).pop_front();
                        let later = by_tag(together).rev().take(count - number - 1);
                        for wr_id in later.map(|later| WrId(later[0].tag)).chain(first) {
                            self.state().forget_read_list(wr_id);
                            self.state().ready(direction).push_front(wr_id);
                        }
                        return false;
                    }
                }
                true
            }
        }
    }

    pub(super) fn is_copied<P: Port>(
        &mut self,
        core: &mut Core<P>,
        wr_id: WrId,
        memory: impl Iterator<Item = (usize, usize)>,
    ) {
        // What it touches until they have ended: all from the first byte to the last one.
        let (begin, end) = memory.fold((usize::MAX, 0), |(begin, end), (addr, len)| {
            (begin.min(addr), end.max(addr.saturating_add(len)))
        });
        let len = end.saturating_sub(begin);
        core.transmit.segment_mut(wr_id).touch(begin, len);
        self.state().copying += 1;
    }
}

fn by_tag(copies: &[Tagged]) -> ChunkBy<'_, Tagged, fn(&Tagged, &Tagged) -> bool> {
    copies.chunk_by(|one, next| one.tag == next.tag)
}
