//! Peers on the same host that share their bounce memory. The target's copy engine
//! reads the sender's buffer, so neither CPU nor fabric moves the bytes.

use crate::core::Core;
use crate::ids::Pe;
use crate::port::Port;
use crate::staging::Staging;
use crate::staging::send::SendState;
use crate::wire::message::Seq;

impl Staging {
    pub(super) fn is_mapped_by(&self, pe: Pe) -> bool {
        self.stager.as_ref().is_some_and(|stager| stager.copies.is_mapped_by(pe))
    }

    /// Returns the address of bytes in a peer's bounce memory.
    ///
    /// # Errors
    /// The peer shares none, or the bytes are not all inside.
    pub(super) fn shared_addr(&self, pe: Pe, offset: u64, len: usize) -> Result<usize, String> {
        let shared = self.stager.as_ref().and_then(|b| b.copies.peer_bounce(pe));
        let Some(shared) = shared else {
            return Err(String::from("it names bounce memory that is not shared with it"));
        };
        shared.at(offset, len).ok_or_else(|| {
            let all = shared.len;
            format!("{len} bytes at offset {offset} of bounce memory of {all} bytes")
        })
    }

    /// Releases quarantined buffers of peers of this host whose processes have ended.
    pub(crate) fn release_ended<P: Port>(&mut self, core: &mut Core<P>) {
        let Some(stager) = self.stager.as_ref().filter(|_| self.quarantined > 0) else { return };
        let ended = core.peers.iter().filter(|peer| stager.copies.has_ended(peer.pe));
        let ended: Vec<Pe> = ended.map(|peer| peer.pe).collect();
        ended.into_iter().for_each(|pe| self.release_quarantined(core, pe, Seq(u64::MAX)));
    }

    /// Releases quarantined buffers of a failed peer that has executed, or dropped, all messages
    /// below `before`, and so no longer reads them.
    pub(super) fn release_quarantined<P: Port>(&mut self, core: &mut Core<P>, pe: Pe, before: Seq) {
        let is = |state: SendState| matches!(state, SendState::Quarantined(seq) if seq < before);
        for index in self.sends.find(|send| send.pe == pe && is(send.state)) {
            self.end_send(core, index);
        }
    }
}
