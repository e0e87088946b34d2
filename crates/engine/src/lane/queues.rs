//! Queues of peers: served in turn, so that a stopped peer delays no other.

use crate::ids::Pe;
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
        for pe in ready.drain(..) {
            if !self.core.peers.get(pe).in_ring
                && self.serve_peer(pe, &mut moved) == Outcome::LaneFull
            {
                self.core.enter_ring(pe);
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
            let Some(pe) = self.core.ring.pop_front() else { break };
            self.core.peers.get_mut(pe).in_ring = false;
            let mut moved = false;
            let outcome = self.serve_peer(pe, &mut moved);
            match (outcome, moved) {
                (Outcome::LaneFull, false) => refused.push(pe),
                _ if moved => served.push(pe),
                _ => {}
            }
            self.core.peers.get_mut(pe).in_ring = outcome == Outcome::LaneFull;
            if refused.len() == crate::core::send::ATTEMPTS as usize {
                break;
            }
        }
        let any = !served.is_empty();
        let keep = any || self.core.ring.is_empty();
        served.retain(|pe| self.core.peers.get(*pe).in_ring);
        if keep {
            refused.into_iter().rev().for_each(|pe| self.core.ring.push_front(pe));
        } else {
            self.core.ring.extend(refused);
        }
        self.core.ring.extend(served);
        any
    }

    /// Submits what it can of a peer's waiting signals and queue. Errors fail the peer.
    pub(super) fn serve_peer(&mut self, pe: Pe, moved: &mut bool) -> Outcome {
        let before = self.core.peers.get(pe).waiting_signals.len();
        // Waiting signals were submitted before anything that is queued.
        let sent = self.core.send_waiting_signals(pe);
        *moved |= self.core.peers.get(pe).waiting_signals.len() < before;
        let outcome = match sent {
            Ok(Outcome::Done) => self.serve_queue(pe, moved),
            Ok(outcome) => outcome,
            Err(_) => Outcome::Done,
        };
        self.core.peers.get_mut(pe).update_fast_path();
        outcome
    }

    fn serve_queue(&mut self, pe: Pe, moved: &mut bool) -> Outcome {
        for _ in 0..ENTRIES_PER_TURN {
            let peer = self.core.peers.get_mut(pe);
            let Some(queued) = peer.queue.pop_front() else { return Outcome::Done };
            let outcome = match queued {
                QueueEntry::Op(mut op, handle) => {
                    let before = op.sent;
                    let outcome = self.advance(pe, &mut op, &handle);
                    *moved |= op.sent != before;
                    match outcome {
                        Ok(Outcome::Done) => {
                            self.core.queued -= 1;
                            self.core.end_in_group(op.completion);
                            Outcome::Done
                        }
                        Ok(outcome) => {
                            let peer = self.core.peers.get_mut(pe);
                            peer.queue.push_front(QueueEntry::Op(op, handle));
                            outcome
                        }
                        Err(failed) => {
                            self.core.queued -= 1;
                            self.core.end_in_group(op.completion);
                            if self.core.peers.get(pe).error.is_none() {
                                self.core.fail_peer(pe, failed);
                            }
                            return Outcome::Done;
                        }
                    }
                }
                QueueEntry::OwnWords => {
                    self.core.queued -= 1;
                    self.staging.flush_own(&mut self.core);
                    Outcome::Done
                }
                QueueEntry::Fence | QueueEntry::Quiet(_) => self.serve_barrier(pe, queued),
            };
            if outcome != Outcome::Done {
                return outcome;
            }
            *moved = true;
        }
        // Other peers have their turn first.
        if self.core.peers.get(pe).queue.is_empty() { Outcome::Done } else { Outcome::LaneFull }
    }

    fn serve_barrier(&mut self, pe: Pe, queued: QueueEntry) -> Outcome {
        let peer = self.core.peers.get_mut(pe);
        // All order groups are in use; messages of the oldest may lack an acknowledgement.
        let Some(fence) = peer.close() else {
            peer.queue.push_front(queued);
            self.core.request_ack(pe);
            return Outcome::Blocked;
        };
        self.core.queued -= 1;
        match queued {
            QueueEntry::Quiet(group) => {
                peer.quiets.push((fence, group));
                self.core.settle_later(pe);
                self.core.request_ack(pe);
            }
            _ => {
                peer.fence = fence;
                peer.fences = peer.fences.wrapping_add(1);
            }
        }
        self.core.peers.get_mut(pe).order.settle();
        Outcome::Done
    }
}
