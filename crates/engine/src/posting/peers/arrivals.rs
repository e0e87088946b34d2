//! What has arrived from peers, before it is executed: whether it is of this job, and whether it is
//! new.

use crate::ids::Pe;
use crate::port::Port;
use crate::posting::Core;
use crate::posting::peers::Peers;
use crate::state::messages::reliable_channel::FIRST;
use crate::state::messages::unnumbered::Owed;
use crate::wire::message::{Body, Message};
use crate::wire::window::{Arrival, Received, Seq};

impl Peers {
    pub(crate) fn foreign(&self, message: &Message<'_>, recovers: bool) -> Option<&'static str> {
        let Message { from, seq, ack, ref body, .. } = *message;
        if from.0 >= self.n_pes() {
            return Some("its sender is no PE of the job");
        }
        let channel = self.channel(from);
        let sent = channel.map_or(FIRST, |channel| channel.next);
        if sent.is_before(ack) || matches!(body, Body::Ack) && sent.is_before(seq) {
            return Some("it acknowledges what was not sent");
        }
        let is_beyond = channel
            .map_or_else(|| Received::new(FIRST).is_beyond(seq), |channel| channel.is_beyond(seq));
        let is_answer = matches!(body, Body::Staged(staged) if !staged.is_request());
        let has_number = body.is_request() || is_answer && recovers;
        (has_number && is_beyond).then_some("its number is out of the window")
    }

    #[cold]
    pub(crate) fn arrives(&mut self, pe: Pe, seq: Seq) -> bool {
        let Some(connection) = self.connections.find_mut(pe) else { return false };
        let channel = connection.channel();
        let arrival = channel.received.arrive(seq);
        // Its sender does not know that it is here.
        channel.ack_due |= arrival == Arrival::Duplicate;
        channel.check_wanted();
        // Requests may have waited for all before them to arrive.
        self.note_due(pe);
        self.queue_control(pe);
        arrival == Arrival::New
    }
}

impl<P: Port> Core<P> {
    #[cold]
    pub(crate) fn arrived_again(&mut self, pe: Pe, body: &Body<'_>) {
        let Some(connection) = self.peers.connections.find_mut(pe) else { return };
        let channel = connection.channel();
        channel.ack_due = true;
        if let Body::Fetch { request_id, place, .. } = *body {
            let replies = channel.replies.as_deref();
            let reply = replies.and_then(|replies| *replies.get(usize::from(place))?);
            if let Some((_, value)) = reply.filter(|(of, _)| *of == request_id) {
                self.queue_unnumbered(pe, Owed::Word { request_id, value });
            }
        }
    }
}
