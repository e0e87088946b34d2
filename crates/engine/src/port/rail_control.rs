//! Rails that are closed and opened again, and the control endpoints by which lanes speak of that.

use crate::ids::RailId;
use crate::port::{Packet, PeerAddr, PortError, Posted};

/// Control of a lane's rails, for recovery. A port without it loses a rail for good.
pub trait RailControl {
    /// Whether [`RailControl::reset_rail`] can be done.
    fn can_reset(&self, _rail: RailId) -> bool {
        false
    }

    /// Closes a rail's endpoint with its completion queue, and opens others in their place: nothing
    /// that was posted on the rail or sent to it before touches memory here from then on, and no
    /// work-request id of it comes back. What had come in and was not taken is lost. Registered
    /// memory, the addresses of peers and what local descriptors name stay as they are;
    /// [`DataPath::fast`](crate::port::DataPath::fast) is asked again. Gives the new address.
    ///
    /// # Errors
    /// There is no new endpoint. Nothing has changed then.
    fn reset_rail(&mut self, rail: RailId) -> Result<Vec<u8>, PortError> {
        let _ = rail;
        Err(PortError::not_offered("opening a rail again", "this fabric does not open rails again"))
    }

    /// What has gone wrong with a rail as a whole and is told by no completion, each time once.
    fn trouble(&mut self, _rail: RailId) -> Option<PortError> {
        None
    }

    /// The address of a rail as it was opened first, as peers insert it.
    fn first_address(&self, _rail: RailId) -> Vec<u8> {
        vec![]
    }

    /// Sends a message to the control endpoint of a peer's rail, from that of one of ours. These
    /// endpoints are never closed: what is sent there concerns the others. It may be lost.
    ///
    /// # Errors
    /// The fabric refused it.
    fn send_control(
        &mut self,
        rail: RailId,
        to: PeerAddr,
        bytes: &[u8],
    ) -> Result<Posted, PortError> {
        let _ = (rail, to, bytes);
        Ok(Posted::Again)
    }

    /// Takes one message that has come to the control endpoint of a rail. Whether there was one.
    fn receive_control(&mut self, _rail: RailId, _into: &mut Packet) -> bool {
        false
    }

    /// Makes the new address of a peer's rail known to one of ours.
    ///
    /// # Errors
    /// The fabric refused it.
    fn insert_address(&mut self, rail: RailId, address: &[u8]) -> Result<PeerAddr, PortError> {
        let _ = (rail, address);
        Err(PortError::not_offered("inserting an address", "this fabric takes no more addresses"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Without;
    impl RailControl for Without {}

    #[test]
    fn a_port_without_it_says_so_and_nothing_comes_to_it() {
        let (mut port, rail) = (Without, RailId(0));
        assert!(!port.can_reset(rail) && port.first_address(rail).is_empty());
        assert_eq!(port.trouble(rail), None);
        let mut packet = Packet::EMPTY;
        assert!(!port.receive_control(rail, &mut packet));
        let refused = port.reset_rail(rail).unwrap_err().to_string();
        assert!(refused.contains("does not open rails again"), "{refused}");
        let refused = port.insert_address(rail, &[1]).unwrap_err().to_string();
        assert!(refused.contains("takes no more addresses"), "{refused}");
        assert!(matches!(port.send_control(rail, PeerAddr(0), &[]), Ok(Posted::Again)));
    }
}
