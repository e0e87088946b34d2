//! Messages that were on a path which has failed, sent to the peer once more.
//!
//! They are kept until they are acknowledged, and the receiver knows those it has had. So they are sent
//! again at once, but not before all writes in limbo to the same peer are delivered: one may be the data
//! that a message tells of. For the same reason the stream is fenced: nothing new leaves before what was
//! lost.

use crate::engine::ids::{Pe, RailId};
use crate::engine::lane::Lane;
use crate::engine::messages::outgoing::CONTROL;
use crate::engine::port::{Port, Posted};

impl<P: Port> Lane<P> {
    /// Messages to a peer have to be sent again, those over the rails that `so` says.
    pub(in crate::engine) fn lose_messages(&mut self, pe: Pe, so: impl FnMut(RailId) -> bool) {
        let Self { health, streams, messages, .. } = self;
        let (Some(health), Some(stream)) = (health.as_deref_mut(), streams.find_mut(pe)) else {
            return;
        };
        let lost = stream.link.as_deref_mut().map_or(0, |link| messages.lose(link, so));
        if lost != 0 {
            stream.fence();
            health.note_loss(pe);
            self.watchdog.hurry();
        }
    }

    /// Sends again what may be.
    pub(in crate::engine) fn resend_all(&mut self) {
        let Some(health) = self.health.as_deref_mut() else { return };
        let mut lossy = std::mem::take(&mut health.lossy);
        lossy.retain(|pe| self.resends(*pe));
        if let Some(health) = self.health.as_deref_mut() {
            for pe in lossy {
                health.note_loss(pe);
            }
        }
    }

    /// Sends messages to a peer again; whether some still have to be.
    fn resends(&mut self, pe: Pe) -> bool {
        if self.check_stream(pe).is_err() {
            return false;
        }
        let Some(health) = self.health.as_deref_mut() else { return false };
        if health.peer(pe).limbo_writes != 0 {
            return true;
        }
        loop {
            let Self { health, streams, messages, port, rails, paths, .. } = self;
            let Some(health) = health.as_deref_mut() else { return false };
            let Some(stream) = streams.find_mut(pe) else { return false };
            let Some(link) = stream.link.as_deref_mut() else { return false };
            let ack = link.ack();
            let Some((index, seq, rail, packet)) = messages.first_lost(link) else { break };
            let mut path = paths.get(pe, rail);
            if health.is_out(pe, rail) {
                path = stream.next;
                stream.rotate(paths);
            }
            let rail = path.rail;
            if rails[rail.index()].is_paused() {
                return true;
            }
            packet.number(seq, ack);
            match port.send(rail, path.to, CONTROL, packet.bytes()) {
                Ok(Posted::Yes) => {
                    rails[rail.index()].counters.resent += 1;
                    messages.found(index, rail);
                    health.peer(pe).sent_again(self.watchdog.stamp());
                }
                Ok(Posted::Again) => return true,
                Err(error) => {
                    if !self.suspect(pe, rail, &error.to_string(), true) {
                        return true;
                    }
                }
            }
        }
        self.open_window(pe);
        self.want_ack(pe);
        false
    }
}
