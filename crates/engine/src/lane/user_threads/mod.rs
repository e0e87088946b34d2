//! User threads: their lane, what they hand over to the proxy thread, and how the proxy's lane
//! carries that out.
//!
//! What they hand over is in the order of their own lane, and in none with what the proxy thread
//! submits. So what finds no room waits for its peer in a line of its own, beside that of pending
//! operations ([`crate::lane::pending_queue`]). Where there are both, they take turns: the one
//! whose turn it is has what room there is, the other what is left of it, and the turn passes when
//! the first has got something. So neither waits for as long as somebody goes on with the other.

mod gates;
pub mod handoff;
pub mod host_lane;
mod outstanding;

use std::mem;

use crate::error::EngineError;
use crate::ids::Pe;
use crate::lane::Lane;
use crate::lane::pending_queue::PendingQueue;
use crate::lane::user_threads::handoff::{Inbox, Taken};
use crate::port::Port;
use crate::port::copies::Reach;
use crate::request::{LocalSide, Request, refused};
use crate::state::operation::OpId;
use crate::wire::handle::HandleView;

/// Of the two lines of a peer, those of which something was submitted.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Served {
    pub(crate) pending: bool,
    pub(crate) handed_over: bool,
}

impl Served {
    pub(crate) fn any(self) -> bool {
        self.pending || self.handed_over
    }
}

impl<P: Port> Lane<P> {
    /// Carries on with what user threads have handed over. Whether something moved.
    #[cold]
    pub(crate) fn serve_user_threads(&mut self) -> bool {
        let Some(mut inbox) = self.inbox.take() else { return false };
        let mut moved = false;
        let mut pending_queue = mem::take(&mut self.pending_queue);
        let mut walk = inbox.waiting.walk();
        while let Some(pe) = inbox.waiting.next(&mut walk) {
            let served = self.serve_both(&mut pending_queue, Some(&mut inbox), pe);
            inbox.waiting.tried(&mut walk, pe, served.handed_over);
            if served.pending {
                pending_queue.turn_over(pe);
            }
            moved |= served.any();
        }
        self.pending_queue = pending_queue;
        while let Some(taken) = inbox.next() {
            let pe = taken.pe();
            let waits = match inbox.waiting.has(pe) || self.has_pending(pe) {
                true => Some(taken),
                false => self.carry_on(&mut inbox, taken, &mut moved),
            };
            if let Some(waits) = waits {
                inbox.waiting.push(pe, waits);
            }
        }
        let mut at = 0;
        while let Some(current) = inbox.finishing.get(at) {
            let (pe, op, mut sent) = (current.request().pe, current.op, current.sent);
            match self.advance_op(&current.request(), &mut sent, op) {
                Ok(false) => {
                    self.core.peers.want_ack_in_turn(pe);
                    at += 1;
                    continue;
                }
                outcome => {
                    let current = inbox.finishing.swap_remove(at);
                    inbox.end(current, outcome.map(|_| ()));
                }
            }
            moved = true;
        }
        if let Some(failed) = self.core.failures.first() {
            inbox.fail(failed);
        }
        self.inbox = Some(inbox);
        moved
    }

    pub(crate) fn serve_both(
        &mut self,
        pending_queue: &mut PendingQueue,
        mut inbox: Option<&mut Inbox>,
        pe: Pe,
    ) -> Served {
        let mut served = Served::default();
        let users_first = pending_queue.users_first(pe);
        for users in [users_first, !users_first] {
            let got = match (users, inbox.as_deref_mut()) {
                (true, Some(inbox)) => self.serve_handed_over(inbox, pe),
                (true, None) => false,
                (false, _) => self.serve_pending(pending_queue, pe),
            };
            *(if users { &mut served.handed_over } else { &mut served.pending }) = got;
            if got && users == users_first {
                pending_queue.pass_turn(pe);
            }
        }
        served
    }

    fn serve_handed_over(&mut self, inbox: &mut Inbox, pe: Pe) -> bool {
        let mut moved = false;
        while let Some(first) = inbox.waiting.front_mut(pe) {
            // It keeps its place.
            let taken = mem::replace(first, Taken::Fence(pe));
            match (self.carry_on(inbox, taken, &mut moved), inbox.waiting.front_mut(pe)) {
                (Some(waits), Some(first)) => {
                    *first = waits;
                    break;
                }
                _ => drop(inbox.waiting.pop(pe)),
            }
        }
        moved
    }

    fn carry_on(&mut self, inbox: &mut Inbox, taken: Taken, moved: &mut bool) -> Option<Taken> {
        let mut current = match taken {
            Taken::Transfer(current) => current,
            Taken::Fence(pe) => {
                self.end_burst();
                // Not behind what is pending: what is in its order has all been submitted.
                if let Some(connection) = self.core.peers.find_mut(pe) {
                    connection.fence();
                }
                inbox.fenced();
                *moved = true;
                return None;
            }
        };
        let pe = current.request().pe;
        if let Some(recovery) = self.recovery.as_deref_mut() {
            recovery.greet(&mut self.core, pe);
        }
        if current.op == OpId::NONE {
            current.op = self.begin_op();
        }
        let (mut sent, op) = (current.sent, current.op);
        let advanced = self.advance(&current.request(), &mut sent, op, false);
        *moved |= sent != current.sent;
        current.sent = sent;
        match advanced {
            Ok(false) if sent < current.request().len => {
                self.core.peers.want_acks();
                return Some(Taken::Transfer(current));
            }
            Ok(false) => inbox.finishing.push(current),
            Ok(true) => inbox.end(current, Ok(())),
            Err(failed) => inbox.end(current, Err(failed)),
        }
        *moved = true;
        None
    }

    /// Whether a user thread has to hand the operation over: one on staged memory, or perhaps so,
    /// or to a PE with a fallback route.
    pub(crate) fn hands_over(
        &mut self,
        request: &Request<'_>,
        fallback_route: bool,
    ) -> Result<bool, EngineError> {
        let remote = HandleView::check_of(request.pe, request.remote_handle)
            .map_err(|fault| refused(request, "remote", fault))?;
        if fallback_route {
            // Who hands it over is to be told at once what is wrong with it.
            return self.core.check_request(request).map(|()| true);
        }
        self.core.transmit.regions_mut().sync();
        Ok(remote.is_staged()
            || match request.local {
                LocalSide::Value(_) => false,
                LocalSide::Memory(addr) if self.core.transmit.has_devices() => {
                    let regions = self.core.transmit.regions();
                    // Of what is not registered, the proxy lane finds out.
                    regions.reach(addr, request.len) == Reach::Staged
                        || !regions.is_registered(addr, request.len)
                }
                LocalSide::Memory(addr) => self.core.transmit.is_bare(addr, request.len),
            })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::lane::user_threads::handoff::{Outbox, handover};
    use crate::port::Direction;
    use crate::posting::tests::{Bed, PLAIN, RAIL, Setup, request};

    fn bed() -> (Bed, Outbox) {
        let (outbox, inbox) = handover(4, None, None);
        let mut bed = Bed::new(PLAIN);
        bed.lane.inbox = Some(Box::new(inbox));
        (bed, outbox)
    }

    #[test]
    fn all_that_was_handed_over_leaves_in_one_turn() {
        let (mut bed, outbox) = bed();
        let heaps = Arc::clone(&bed.heaps);
        let get = request(&heaps, Direction::Read, 1);
        (0..3).for_each(|_| outbox.transfer(&get, false).unwrap());
        assert!(bed.lane.iterate());
        assert_eq!(bed.fabric.in_flight(), 3);
        bed.lane.audit().unwrap();
    }

    #[test]
    fn an_iteration_is_busy_when_a_part_of_what_was_handed_over_leaves() {
        let (mut bed, outbox) = bed();
        bed.lane.core.transmit.rail_mut(RAIL).max_segment = 8;
        let heaps = Arc::clone(&bed.heaps);
        let get = Request { len: 4096, ..request(&heaps, Direction::Read, 1) };
        outbox.transfer(&get, false).unwrap();
        assert!(bed.lane.serve_user_threads(), "there was room for some of it");
        assert!(!bed.lane.serve_user_threads(), "and is no more");
        outbox.transfer(&request(&heaps, Direction::Read, 2), false).unwrap();
        assert!(bed.lane.serve_user_threads(), "but for other peers, at once");
        bed.lane.audit().unwrap();
    }

    #[test]
    fn what_is_pending_and_what_was_handed_over_take_turns() {
        const EACH: u32 = 40;
        let (outbox, inbox) = handover(4, None, None);
        let mut bed = Bed::new(Setup { depth: 1, ..PLAIN });
        bed.lane.inbox = Some(Box::new(inbox));
        let heaps = Arc::clone(&bed.heaps);
        // Nothing ends while they are submitted.
        bed.fabric.stall(Pe(1));
        (0..EACH).for_each(|_| bed.put(1));
        let get = request(&heaps, Direction::Read, 1);
        (0..EACH).for_each(|_| outbox.transfer(&get, false).unwrap());
        bed.fabric.resume(Pe(1));
        let begun = |bed: &Bed| {
            let counters = bed.lane.core.peers.find(Pe(1)).unwrap().counters();
            [counters.writes, counters.reads - u32::from(bed.lane.has_pending(Pe(1)))]
        };
        let first = begun(&bed);
        for _ in 0..100_000 {
            let [writes, reads] = begun(&bed);
            if writes < EACH && reads < EACH {
                assert!((writes - first[0]).abs_diff(reads) <= 2, "{writes} {reads}");
            } else if writes == EACH && reads == EACH {
                return bed.lane.audit().unwrap();
            }
            bed.fabric.pass_time(100);
            bed.lane.iterate();
        }
        panic!("{:?} are not submitted", begun(&bed));
    }
}
