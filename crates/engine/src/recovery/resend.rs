//! Resending: messages that were on a path which has failed, sent to the peer once more.
//!
//! They are kept until they are acknowledged, and the receiver knows those it has had. So they are
//! sent again at once, but not before all writes to the same peer that were in doubt are delivered:
//! one may be the data that a message tells of. For the same reason the connection is fenced:
//! nothing new leaves before what was lost.

use crate::ids::{Pe, RailId};
use crate::port::{Port, Posted};
use crate::posting::Core;
use crate::recovery::Recovery;

impl Recovery {
    pub(crate) fn lose_messages<P: Port>(
        &mut self,
        core: &mut Core<P>,
        pe: Pe,
        so: impl FnMut(RailId) -> bool,
    ) {
        if core.peers.lose_messages(pe, so) {
            self.note_loss(pe);
            core.failures.hurry();
        }
    }

    /// Sends again what may be, if it has its turn before what is due without a number. Where all
    /// share a short queue of the fabric, that alone would fill it.
    pub(crate) fn resend_in_turn<P: Port>(&mut self, core: &mut Core<P>) {
        if self.resends_first && !self.lossy.is_empty() {
            self.resend_all(core);
        }
    }

    pub(crate) fn resend_all<P: Port>(&mut self, core: &mut Core<P>) {
        let mut lossy = std::mem::take(&mut self.lossy);
        lossy.retain(|pe| self.resends(core, *pe));
        for pe in lossy {
            self.note_loss(pe);
        }
    }

    fn resends<P: Port>(&mut self, core: &mut Core<P>, pe: Pe) -> bool {
        if core.peers.check(pe).is_err() {
            return false;
        }
        if core.peers.find(pe).is_some_and(|connection| connection.lost_writes != 0) {
            return true;
        }
        while let Some(sent) = core.resend_first(pe) {
            match sent {
                Ok(Posted::Yes) => {
                    self.resends_first = false;
                    self.peer(pe).sent_again(core.failures.stamp());
                }
                Ok(Posted::Again) => return true,
                Err((rail, error)) => {
                    if !self.suspect(core, pe, rail, &error.to_string(), true) {
                        return true;
                    }
                }
            }
        }
        core.open_window(pe);
        core.peers.want_ack(pe);
        false
    }
}
