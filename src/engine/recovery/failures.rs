//! What a lane does when something fails: which operations end, which peers are given up, and who is
//! told.
//!
//! A failed segment or message ends the stream to its peer: nothing more is sent there, since what
//! follows might be a flag for data that never left. Other peers go on. The lane's first failure is
//! told to the proxy's loop for ever after; a stream's first one to every later call about the peer.

use log::error;

use crate::engine::error::EngineError;
use crate::engine::ids::{Pe, RailId, Token};
use crate::engine::lane::Lane;
use crate::engine::messages::outgoing::CONTROL;
use crate::engine::port::{Failure, Port, PortError};
use crate::engine::state::segment::{Queue, Stage};

impl<P: Port> Lane<P> {
    /// A completion with an error.
    #[cold]
    pub(in crate::engine) fn failed(&mut self, rail: RailId, failure: Failure) {
        if self.health.is_some() && failure.is_message {
            return self.failed_message(rail, &failure);
        }
        // A reply or an acknowledgement that is lost belongs to no segment of ours, but to one of the
        // peer's, which would wait for ever.
        let Some(token) = failure.token.filter(|token| *token != CONTROL) else {
            return self.fail_rail(rail, failure.error);
        };
        match self.segments.away(token) {
            Some(segment) if matches!(segment.stage, Stage::Posted | Stage::Native) => {
                self.rails[segment.rail.index()].completed(1);
            }
            Some(segment) if segment.stage == Stage::Limbo => {
                let rail = segment.rail;
                if !self.came_back(token) {
                    return unknown_token(token);
                }
                self.rails[rail.index()].completed(1);
                self.segments[token.0].stage = Stage::Limbo;
                self.watchdog.hurry();
                return self.token_is_back(token);
            }
            Some(_) => {}
            None => return unknown_token(token),
        }
        self.fail_segment(token, failure.error);
    }

    /// A rail has failed as a whole: so has every stream with something on it, which may never end.
    #[cold]
    fn fail_rail(&mut self, rail: RailId, error: PortError) {
        if self.health.is_some() && self.port.can_reset(rail) {
            return self.close_rail(rail, self.me);
        }
        let rail_name = self.port.rail_name(rail).to_owned();
        let failed = EngineError::Rail { rail, rail_name, error };
        let on_it = self.segments.in_use().filter(|segment| segment.rail == rail);
        let mut peers: Vec<Pe> = on_it.map(|segment| segment.pe).collect();
        peers.sort_unstable();
        peers.dedup();
        for pe in peers {
            self.give_up(pe, &failed);
        }
        self.fail_lane(failed);
    }

    /// Ends a segment that the fabric refused or failed, and its stream with it.
    #[cold]
    pub(in crate::engine) fn fail_segment(&mut self, token: Token, error: PortError) {
        if self.rescue(token, &error) {
            return;
        }
        let segment = &self.segments[token.0];
        let pe = segment.pe;
        let failed = EngineError::Segment {
            what: segment.what(),
            pe,
            len: segment.transfer.len,
            rail: segment.rail,
            rail_name: self.port.rail_name(segment.rail).to_owned(),
            error,
        };
        // First, so that the end of the segment releases nothing that waits for it.
        self.fail_stream(pe, failed);
        self.drop_segment(token);
    }

    /// Gives up a peer, and tells of it.
    #[cold]
    pub(in crate::engine) fn fail_stream(&mut self, pe: Pe, failed: EngineError) {
        self.give_up(pe, &failed);
        self.fail_lane(failed);
    }

    /// Marks a stream failed and drops what it holds back.
    fn give_up(&mut self, pe: Pe, failed: &EngineError) {
        if let Some(stream) = self.streams.find_mut(pe) {
            stream.close();
            stream.error.get_or_insert_with(|| Box::new(failed.clone()));
            let mut held = std::mem::replace(&mut stream.held, Queue::EMPTY);
            while let Some(index) = held.pop(&self.segments) {
                self.drop_segment(Token(index));
            }
        }
    }

    #[cold]
    pub(in crate::engine) fn fail_lane(&mut self, failed: EngineError) {
        error!(target: "TRANSPORT", "{failed}");
        if let Some(inbox) = &self.inbox {
            inbox.fail(&failed);
        }
        if self.failure.is_none() {
            self.failure = Some(Box::new(failed));
        }
    }

    /// Looks for segments that do not end.
    #[cold]
    pub(in crate::engine) fn inspect(&mut self) {
        let now = self.port.now();
        let due = self.watchdog.starts(now);
        if self.health.is_some() {
            self.heal(due);
        }
        if !due {
            return;
        }
        // What nobody waits for, nobody asks about; unasked, it would seem to be stuck.
        self.want_acks();
        let Self { streams, segments, watchdog, port, rails, staging, .. } = self;
        let staged = staging.as_deref().map_or(0, |staging| staging.moved);
        for (pe, failed) in watchdog.look(streams, segments, port, rails, staged) {
            self.fail_stream(pe, failed);
        }
        self.inspect_counts();
    }
}

#[cold]
pub(in crate::engine) fn unknown_token(token: Token) {
    // A provider that completes an operation twice, or one that was never posted. Acting on it
    // would corrupt another operation's state; ignoring it is safe.
    error!(target: "TRANSPORT", "libfabric completed an operation that is not in flight ({token:?})");
}
