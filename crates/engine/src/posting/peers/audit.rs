//! The audit of peers: connections, messages and what is owed, beside the segments. See
//! [`Lane::audit`](crate::lane::Lane::audit).

use crate::port::Port;
use crate::posting::peers::Peers;
use crate::posting::transmit::Transmit;
use crate::state::audit::{Found, OfPeer};
use crate::state::connection::Connection;
use crate::state::discrepancy::{Discrepancy, same};

impl Peers {
    pub(crate) fn audit<P: Port>(
        &self,
        transmit: &Transmit<P>,
        found: &Found,
    ) -> Result<(), Discrepancy> {
        let nothing = OfPeer { ahead: vec![0; transmit.rails().len()], ..OfPeer::default() };
        for connection in self.iter() {
            let of_peer = found.peers.get(&connection.pe).unwrap_or(&nothing);
            self.audit_stream(transmit, connection, of_peer)
                .map_err(|differs| differs.of(connection.pe))?;
        }
        let channels: Vec<_> = self.iter().filter_map(|s| s.channel.as_deref()).collect();
        let unsent = found.peers.values().map(|of_peer| of_peer.unsent).sum();
        self.messages.audit(&channels, |pe| self.channel(pe), &found.all, unsent)?;
        let listed = channels.iter().filter(|channel| channel.in_control).count();
        same("peers to whom control messages are due", self.control.len(), listed)
    }

    fn audit_stream<P: Port>(
        &self,
        transmit: &Transmit<P>,
        connection: &Connection,
        found: &OfPeer,
    ) -> Result<(), Discrepancy> {
        connection.audit(transmit.table(), found)?;
        let owed = connection.channel.as_deref().map_or(0, |channel| channel.owed as usize);
        let listed = self.unnumbered.iter().filter(|due| due.pe == connection.pe).count();
        same("messages without numbers", owed, listed)?;
        let blocked = transmit.rails().iter().map(|rail| rail.blocked.len_of(connection.pe));
        same("blocked segments", connection.blocked() as usize, blocked.sum())
    }
}
