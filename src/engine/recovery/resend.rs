//! Messages that were on a path which has failed, and counted signals whose data is not counted any more: what is
//! sent to a peer once more.
//!
//! # Messages
//! They are kept until they are acknowledged, and the receiver knows those it has had. So they are sent
//! again at once, but not before all writes in limbo to the same peer are delivered: one may be the data
//! that a message tells of. For the same reason the stream is fenced: nothing new leaves before what was
//! lost.
//!
//! # Counted signals
//! The peer may have lost count: what tells it of segments that have landed can be lost with its rail. So
//! all counted puts that are under way are not counted any more: when all their data is delivered, the
//! signal is sent again with the word that all is there. The peer is not counted on again.

use crate::engine::ids::{Pe, RailId};
use crate::engine::lane::Lane;
use crate::engine::messages::outgoing::CONTROL;
use crate::engine::port::{Port, Posted};
use crate::engine::recovery::reissue::is_ordered;
use crate::engine::state::segment::{Kind, Segment, Stage};
use crate::engine::wire::message::Mark;

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

    /// The peer may have lost count of the counted puts to it.
    pub(in crate::engine) fn lose_count(&mut self, pe: Pe) {
        let Self { health, streams, segments, .. } = self;
        let (Some(health), Some(stream)) = (health.as_deref_mut(), streams.find_mut(pe)) else {
            return;
        };
        let tags = stream.link.as_deref_mut().and_then(|link| link.tags.as_deref_mut());
        let Some(tags) = tags.filter(|tags| tags.are_in_use() && !tags.is_retired()) else {
            return;
        };
        tags.retire();
        stream.fence();
        let of_it = |s: &Segment| s.kind == Kind::CountedSignal && s.pe == pe;
        let me = self.me;
        for token in segments.tokens(of_it) {
            let tag = crate::engine::wire::message::Tag(segments[token.0].data as u16);
            health.peer(pe).releasing.push((token, Mark { from: me, tag }.encode()));
        }
        health.note_loss(pe);
    }

    /// Whether some data of a counted put has not been delivered.
    pub(in crate::engine) fn has_counted(&self, pe: Pe, mark: u32) -> bool {
        let of_it = |s: &Segment| {
            let counts = match s.kind {
                Kind::Counted => true,
                Kind::Reissued => !is_ordered(s),
                _ => false,
            };
            counts && s.pe == pe && s.data == mark
        };
        self.segments.in_use().any(of_it) || self.has_bulk(pe, mark)
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
        let waits = self.release(pe);
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
        waits
    }

    /// Releases signals whose data is delivered; whether some wait.
    fn release(&mut self, pe: Pe) -> bool {
        let Some(health) = self.health.as_deref_mut() else { return false };
        let mut signals = std::mem::take(&mut health.peer(pe).releasing);
        signals.retain(|(token, mark)| {
            let segment = self.segments[token.0];
            let over = segment.stage == Stage::Free
                || segment.kind != Kind::CountedSignal
                || segment.pe != pe
                || Mark::decode(*mark).tag.0 != segment.data as u16;
            if over || self.has_counted(pe, *mark) {
                return !over;
            }
            self.messages.packet_mut(segment.message).release();
            if segment.stage == Stage::Sent {
                self.messages.lose_one(segment.message);
            }
            false
        });
        let Some(health) = self.health.as_deref_mut() else { return false };
        let waits = !signals.is_empty();
        health.peer(pe).releasing = signals;
        waits
    }
}
