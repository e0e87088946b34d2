//! User threads: their lane, what they hand over to the proxy thread, and how the proxy's lane carries that out.

pub mod handoff;
pub mod host_lane;
mod outstanding;

use crate::engine::error::EngineError;
use crate::engine::lane::Lane;
use crate::engine::lane::user_threads::handoff::{Inbox, Taken};
use crate::engine::port::Port;
use crate::engine::port::copies::Reach;
use crate::engine::request::{LocalSide, Request, refused};
use crate::engine::state::operation::OpId;
use crate::engine::wire::handle::HandleView;

/// Peers whose operations are tried in vain in one turn.
const PEERS: usize = 8;

impl<P: Port> Lane<P> {
    /// Carries on with what user threads have handed over. Whether something moved.
    #[cold]
    pub(in crate::engine) fn serve_user_threads(&mut self) -> bool {
        let Some(mut inbox) = self.inbox.take() else { return false };
        let mut moved = false;
        for _ in 0..inbox.waiting.peers().min(PEERS) {
            let Some(mut queue) = inbox.waiting.next() else { break };
            while let Some(taken) = queue.pop_front() {
                if let Some(waits) = self.carry_on(&mut inbox, taken, &mut moved) {
                    queue.push_front(waits);
                    break;
                }
            }
            inbox.waiting.give_back(queue);
        }
        while let Some(taken) = inbox.next() {
            let waits = match inbox.waiting.has(taken.pe()) {
                true => Some(taken),
                false => self.carry_on(&mut inbox, taken, &mut moved),
            };
            if let Some(waits) = waits {
                inbox.waiting.push(waits);
            }
        }
        let mut at = 0;
        while let Some(current) = inbox.finishing.get(at) {
            let (pe, op, mut sent) = (current.request().pe, current.op, current.sent);
            match self.advance_op(&current.request(), &mut sent, op) {
                Ok(false) => {
                    self.core.want_ack(pe);
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
        if let Some(failed) = &self.core.failure {
            inbox.fail(failed);
        }
        self.inbox = Some(inbox);
        moved
    }

    /// Carries something on that was handed over, as far as there is room: it comes back if there was too little.
    fn carry_on(&mut self, inbox: &mut Inbox, taken: Taken, moved: &mut bool) -> Option<Taken> {
        let mut current = match taken {
            Taken::Transfer(current) => current,
            Taken::Fence(pe) => {
                // A PE outside the job has nothing to fence.
                let _ = self.fence(pe);
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
        let advanced = self.advance_op(&current.request(), &mut sent, op);
        *moved |= sent != current.sent;
        current.sent = sent;
        match advanced {
            Ok(false) if sent < current.request().len => {
                self.core.want_acks();
                return Some(Taken::Transfer(current));
            }
            Ok(false) => inbox.finishing.push(current),
            Ok(true) => inbox.end(current, Ok(())),
            Err(failed) => inbox.end(current, Err(failed)),
        }
        *moved = true;
        None
    }

    /// Whether a user thread has to hand the operation over: one on staged memory, or perhaps so, or to a PE with a
    /// detour.
    pub(in crate::engine) fn hands_over(
        &mut self,
        request: &Request<'_>,
        detour: bool,
    ) -> Result<bool, EngineError> {
        let remote = HandleView::check_of(request.pe, request.remote_handle)
            .map_err(|fault| refused(request, "remote", fault))?;
        if detour {
            // Who hands it over is to be told at once what is wrong with it.
            return self.core.check_request(request).map(|()| true);
        }
        self.core.regions.sync();
        Ok(remote.is_staged()
            || match request.local {
                LocalSide::Value(_) => false,
                // Of what is not registered, the proxy lane finds out.
                LocalSide::Memory { handle: None, .. } => self.core.has_devices(),
                LocalSide::Memory { addr, .. } => self.core.regions.reach(addr) == Reach::Staged,
            })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::engine::lane::user_threads::handoff::{Outbox, handover};
    use crate::engine::port::Direction;
    use crate::engine::posting::tests::{Bed, PLAIN, request};

    fn bed() -> (Bed, Outbox) {
        let (outbox, inbox) = handover(4, None, None);
        let mut bed = Bed::new(PLAIN);
        bed.lane.inbox = Some(Box::new(inbox));
        (bed, outbox)
    }

    /// What has been submitted waits for its end beside others to the same peer.
    #[test]
    fn all_that_was_handed_over_leaves_in_one_turn() {
        let (mut bed, outbox) = bed();
        let heaps = Arc::clone(&bed.heaps);
        let get = request(&heaps, Direction::Read, 1);
        (0..3).for_each(|_| outbox.transfer(&get, false).unwrap());
        assert!(bed.lane.turn());
        assert_eq!(bed.fabric.in_flight(), 3);
        bed.lane.audit().unwrap();
    }

    #[test]
    fn a_turn_is_busy_when_a_part_of_what_was_handed_over_leaves() {
        let (mut bed, outbox) = bed();
        bed.lane.core.rails[0].max_segment = 8;
        let heaps = Arc::clone(&bed.heaps);
        let get = Request { len: 4096, ..request(&heaps, Direction::Read, 1) };
        outbox.transfer(&get, false).unwrap();
        assert!(bed.lane.serve_user_threads(), "there was room for some of it");
        assert!(!bed.lane.serve_user_threads(), "and is no more");
        bed.lane.audit().unwrap();
    }
}
