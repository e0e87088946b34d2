//! Queues of peers: served in turn, so that a stopped peer delays no other.

use crate::lane::Lane;
use crate::op::{Outcome, QueueEntry};
use crate::port::Port;

/// Maximum number of entries of a queue that are served in one turn of their peer.
const ENTRIES_PER_TURN: u32 = 32;

impl<P: Port> Lane<P> {
    /// Serves peers that waited: a few of those in the ring in turn, and all that are ready.
    #[cold]
    pub(crate) fn serve(&mut self) -> bool {
        let mut moved = self.serve_ring();
        let mut ready = std::mem::take(&mut self.core.ready);
        for at in ready.drain(..) {
            if !self.core.peers.get(at).in_ring
                && self.serve_peer(at, &mut moved) == Outcome::LaneFull
            {
                self.core.enter_ring(at);
            }
        }
        // Keeps the allocation, unless serving has made other peers ready.
        if self.core.ready.is_empty() {
            self.core.ready = ready;
        }
        moved
    }

    /// Serves peers in the ring until a few were refused. Refused peers keep their place if another
    /// peer was served; otherwise they go to the end, since the fabric may refuse only these.
    fn serve_ring(&mut self) -> bool {
        let (mut refused, mut served) = (Vec::new(), Vec::new());
        for _ in 0..self.core.ring.len() {
            let Some(at) = self.core.ring.pop_front() else { break };
            self.core.peers.get_mut(at).in_ring = false;
            let mut moved = false;
            let outcome = self.serve_peer(at, &mut moved);
            match (outcome, moved) {
                (Outcome::LaneFull, false) => refused.push(at),
                _ if moved => served.push(at),
                _ => {}
            }
            self.core.peers.get_mut(at).in_ring = outcome == Outcome::LaneFull;
            if refused.len() == crate::core::send::ATTEMPTS as usize {
                break;
            }
        }
        let any = !served.is_empty();
        let keep = any || self.core.ring.is_empty();
        served.retain(|at| self.core.peers.get(*at).in_ring);
        if keep {
            refused.into_iter().rev().for_each(|at| self.core.ring.push_front(at));
        } else {
            self.core.ring.extend(refused);
        }
        self.core.ring.extend(served);
        any
    }

    /// Submits what a peer has held back and queued, as far as possible. Errors fail the peer.
    pub(super) fn serve_peer(&mut self, at: u32, moved: &mut bool) -> Outcome {
        let before = self.core.peers.get(at).held.len();
        // Held signals were submitted before anything that is queued.
        let held = self.core.send_held(at);
        *moved |= self.core.peers.get(at).held.len() < before;
        let outcome = match held {
            Ok(Outcome::Done) => self.serve_queue(at, moved),
            Ok(outcome) => outcome,
            Err(_) => Outcome::Done,
        };
        self.core.peers.get_mut(at).update_fast_path();
        outcome
    }

    fn serve_queue(&mut self, at: u32, moved: &mut bool) -> Outcome {
        for _ in 0..ENTRIES_PER_TURN {
            let peer = self.core.peers.get_mut(at);
            let Some(queued) = peer.queue.pop_front() else { return Outcome::Done };
            let outcome = match queued {
                QueueEntry::Op(mut op, handle) => {
                    let before = op.sent;
                    let outcome = self.advance(at, &mut op, &handle);
                    *moved |= op.sent != before;
                    match outcome {
                        Ok(Outcome::Done) => {
                            self.core.queued -= 1;
                            self.core.end_in_group(op.completion);
                            Outcome::Done
                        }
                        Ok(outcome) => {
                            let peer = self.core.peers.get_mut(at);
                            peer.queue.push_front(QueueEntry::Op(op, handle));
                            outcome
                        }
                        Err(failed) => {
                            self.core.queued -= 1;
                            self.core.end_in_group(op.completion);
                            if self.core.peers.get(at).error.is_none() {
                                self.core.fail_peer(at, failed);
                            }
                            return Outcome::Done;
                        }
                    }
                }
                QueueEntry::Fence | QueueEntry::Quiet(_) => self.serve_barrier(at, queued),
            };
            if outcome != Outcome::Done {
                return outcome;
            }
            *moved = true;
        }
        // Other peers have their turn first.
        if self.core.peers.get(at).queue.is_empty() { Outcome::Done } else { Outcome::LaneFull }
    }

    fn serve_barrier(&mut self, at: u32, queued: QueueEntry) -> Outcome {
        let peer = self.core.peers.get_mut(at);
        // All order groups are in use: the barrier waits for the oldest, whose messages may lack an
        // acknowledgement.
        let Some(number) = peer.close() else {
            peer.queue.push_front(queued);
            self.core.request_ack(at);
            return Outcome::Held;
        };
        self.core.queued -= 1;
        match queued {
            QueueEntry::Quiet(group) => {
                peer.quiets.push((number, group));
                self.core.settle_later(at);
                self.core.request_ack(at);
            }
            _ => {
                peer.fence = number;
                peer.fences = peer.fences.wrapping_add(1);
            }
        }
        self.core.peers.get_mut(at).order.settle();
        Outcome::Done
    }
}
