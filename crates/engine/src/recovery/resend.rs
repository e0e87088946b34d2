//! Resending: messages that were on a path which has failed, sent to the peer once more.
//!
//! They are kept until they are acknowledged, and the receiver knows those it has had. So they are sent
//! again at once, but not before all writes to the same peer that were in doubt are delivered: one may be
//! the data that a message tells of. For the same reason the connection is fenced: nothing new leaves before what
//! was lost.

use crate::ids::{Pe, RailId};
use crate::port::{Port, Posted};
use crate::posting::Core;
use crate::posting::failure::CONTROL;
use crate::posting::messages::send_packet;
use crate::recovery::Recovery;

impl Recovery {
    /// Messages to a peer have to be sent again, those over the rails that `so` says.
    pub(crate) fn lose_messages<P: Port>(
        &mut self,
        core: &mut Core<P>,
        pe: Pe,
        so: impl FnMut(RailId) -> bool,
    ) {
        let Some(connection) = core.connections.find_mut(pe) else { return };
        let lost =
            connection.channel.as_deref_mut().map_or(0, |channel| core.messages.lose(channel, so));
        if lost != 0 {
            connection.fence();
            self.note_loss(pe);
            core.watchdog.hurry();
        }
    }

    /// Sends again what may be.
    pub(crate) fn resend_all<P: Port>(&mut self, core: &mut Core<P>) {
        let mut lossy = std::mem::take(&mut self.lossy);
        lossy.retain(|pe| self.resends(core, *pe));
        for pe in lossy {
            self.note_loss(pe);
        }
    }

    /// Sends messages to a peer again; whether some still have to be.
    fn resends<P: Port>(&mut self, core: &mut Core<P>, pe: Pe) -> bool {
        if core.check_connection(pe).is_err() {
            return false;
        }
        if core.connections.find(pe).is_some_and(|connection| connection.lost_writes != 0) {
            return true;
        }
        loop {
            let Core { connections, messages, port, rails, paths, watchdog, seal, .. } = &mut *core;
            let Some(connection) = connections.find_mut(pe) else { return false };
            let Some(channel) = connection.channel.as_deref_mut() else { return false };
            let ack = channel.ack();
            let Some((index, seq, rail)) = messages.first_lost(channel) else { break };
            let mut path = paths.get(pe, rail);
            if paths.is_out(pe, rail) {
                path = connection.next;
                connection.rotate(paths);
            }
            let rail = path.rail;
            if rails[rail.index()].is_paused() {
                return true;
            }
            let (packet, tail) = messages.parts_mut(index);
            packet.number(seq, ack);
            match send_packet(port, seal, rail, (pe, path.to), CONTROL, packet, tail) {
                Ok(Posted::Yes) => {
                    rails[rail.index()].counters.resent += 1;
                    messages.found(index, rail);
                    self.peer(pe).sent_again(watchdog.stamp());
                }
                Ok(Posted::Again) => return true,
                Err(error) => {
                    if !self.suspect(core, pe, rail, &error.to_string(), true) {
                        return true;
                    }
                }
            }
        }
        core.open_window(pe);
        core.want_ack(pe);
        false
    }
}
