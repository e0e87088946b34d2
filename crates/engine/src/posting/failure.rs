//! Failures: which operations end, which peers are given up, and who is told.
//!
//! A failed segment or message ends the stream to its peer: nothing more is sent there, since what
//! follows might be a flag for data that never left. Other peers go on, and have the room that its operations
//! took: those end, but for what the fabric or the peer may still touch. The lane's first failure is
//! told to the proxy's loop for ever after; a stream's first one to every later call about the peer.
//!
//! Where rails are looked after, a segment that the fabric refuses is set aside first, and recovery decides.

use log::error;

use crate::error::EngineError;
use crate::ids::{Pe, RailId, Token};
use crate::port::{Local, Port, PortError};
use crate::posting::{Core, Event};
use crate::rate_limit::Unsaid;
use crate::state::segment::queue::Queue;
use crate::state::segment::waits::REISSUES;
use crate::state::segment::{Segment, Stage};
use crate::state::strays::Stray;

/// The token of messages that belong to no segment.
pub(crate) const CONTROL: Token = Token(u32::MAX);

impl<P: Port> Core<P> {
    /// A rail has failed as a whole: so has every stream with something on it, which may never end.
    #[cold]
    pub(crate) fn fail_rail(&mut self, rail: RailId, error: PortError) {
        let rail_name = self.port.rail_name(rail).to_owned();
        let failed = EngineError::Rail { rail, rail_name, error };
        let on_it = self.segments.in_use().filter(|segment| segment.rail == rail);
        let mut peers: Vec<Pe> = on_it.map(|segment| segment.pe).collect();
        peers.sort_unstable();
        peers.dedup();
        for pe in peers {
            self.give_up(pe, &failed);
        }
        self.ask_again(rail);
        self.fail_lane(failed);
    }

    /// Asks all peers once more for the acknowledgements that they were asked for: the question may have been on the rail
    /// that has failed, and nobody is told of that.
    fn ask_again(&mut self, failed: RailId) {
        let Self { streams, paths, control, .. } = self;
        streams.for_each(|stream| {
            let asks = stream.link.as_deref_mut().filter(|_| stream.error.is_none());
            let Some(link) = asks else { return };
            link.ask_again();
            if link.enters_control() {
                control.push_back(stream.pe);
            }
            if stream.next.rail == failed {
                stream.rotate(paths);
            }
        });
    }

    /// A segment that the fabric refused or failed: it goes another way if that may be, or ends, and its
    /// stream with it. It is none of the rail's segments in flight any more.
    #[cold]
    pub(crate) fn fail_segment(&mut self, token: Token, error: PortError) {
        if self.recovers && !error.blames_operation() && self.set_aside(token) {
            return self.raise(Event::Refused(token, error));
        }
        self.end_failed(token, error);
    }

    /// Sets a segment aside until recovery has decided about it. Whether it may.
    fn set_aside(&mut self, token: Token) -> bool {
        let segment = &self.segments[token.0];
        let (stage, kind) = (segment.stage, segment.kind);
        if self.check_stream(segment.pe).is_err() {
            return false;
        }
        if !kind.is_rma() && segment.message().is_some() {
            return true;
        }
        if segment.reissues() >= REISSUES {
            return false;
        }
        if stage != Stage::Lost {
            self.lose(token, stage == Stage::Posted);
        }
        self.token_is_back(token);
        true
    }

    /// Ends a segment that the fabric refused or failed, and its stream with it.
    #[cold]
    pub(crate) fn end_failed(&mut self, token: Token, error: PortError) {
        let segment = &self.segments[token.0];
        let pe = segment.pe;
        let failed = self.segment_error(token, segment.rail, error);
        // First, so that the end of the segment releases nothing that waits for it.
        self.fail_stream(pe, failed);
        self.drop_segment(token);
    }

    /// What has failed, in words.
    pub(crate) fn segment_error(
        &self,
        token: Token,
        rail: RailId,
        error: PortError,
    ) -> EngineError {
        let segment = &self.segments[token.0];
        EngineError::Segment {
            what: segment.what(),
            pe: segment.pe,
            len: segment.transfer.len,
            rail,
            rail_name: self.port.rail_name(rail).to_owned(),
            error,
        }
    }

    /// Gives up a peer, and tells of it.
    #[cold]
    pub(crate) fn fail_stream(&mut self, pe: Pe, failed: EngineError) {
        self.give_up(pe, &failed);
        self.fail_lane(failed);
    }

    /// Marks a stream failed and drops what it holds back.
    fn give_up(&mut self, pe: Pe, failed: &EngineError) {
        if let Some(stream) = self.streams.find_mut(pe) {
            stream.close();
            let is_first = stream.error.is_none();
            stream.error.get_or_insert_with(|| Box::new(failed.clone()));
            let held = std::mem::replace(&mut stream.held, Queue::EMPTY);
            let held_back = stream.take_held_back();
            for mut waiting in [held, held_back] {
                while let Some(index) = waiting.pop(&self.segments) {
                    self.drop_segment(Token(index));
                }
            }
            if is_first {
                self.note_strays(pe);
                self.given_up.push(pe);
                self.watchdog.hurry();
            }
        }
    }

    /// The messages to a peer that was given up end, those that have left and those that wait for its window: no
    /// acknowledgement or reply of it is waited for any more, and they take room of others.
    #[cold]
    pub(crate) fn end_messages(&mut self, pe: Pe) {
        let link = self.streams.find_mut(pe).and_then(|stream| stream.link.as_deref_mut());
        let Some(link) = link else { return };
        let mut waiting = std::mem::replace(&mut link.waiting, Queue::EMPTY);
        while let Some(index) = waiting.pop(&self.segments) {
            self.drop_segment(Token(index));
        }
        let has_left = |s: &Segment| s.pe == pe && s.stage == Stage::Sent && !s.kind.is_staged();
        for token in self.segments.tokens(has_left) {
            self.drop_segment(token);
        }
        if let Some(link) = self.streams.find_mut(pe).and_then(|s| s.link.as_deref_mut()) {
            self.messages.forget_all(link);
        }
    }

    /// What the fabric, or a copy, may still do for a peer that was given up: its memory is not free. What is in
    /// a queue is dropped there, and sets out no more.
    fn note_strays(&mut self, pe: Pe) {
        for token in self.segments.tokens(|s| s.pe == pe && s.is_out()) {
            let segment = &self.segments[token.0];
            let Local::Memory { addr, .. } = segment.transfer.local else { continue };
            let (what, len) = (segment.what(), segment.transfer.len);
            let lane = self.regions.kind();
            self.regions.strays().enter(Stray { lane, token, what, pe, addr, len });
            self.strays += 1;
        }
    }

    /// A segment has ended: if it was a stray, its memory is free.
    #[inline]
    pub(crate) fn is_no_stray(&mut self, token: Token) {
        if self.strays != 0 {
            self.leave_strays(token);
        }
    }

    #[cold]
    fn leave_strays(&mut self, token: Token) {
        if self.regions.strays().leave(self.regions.kind(), token) {
            self.strays -= 1;
        }
    }

    /// Whether there may be another line in the log of what a peer can bring about, and how many there were not.
    #[cold]
    pub(crate) fn may_say(&mut self) -> Option<Unsaid> {
        let now = self.port.now();
        self.lines.admit_at(now)
    }

    #[cold]
    pub(crate) fn fail_lane(&mut self, failed: EngineError) {
        // What follows the first may be a peer's to repeat.
        let is_first = self.failure.is_none();
        let unsaid = self.may_say();
        if is_first || unsaid.is_some() {
            error!(target: "TRANSPORT", "{failed}{}", unsaid.unwrap_or_default());
        }
        if is_first {
            self.failure = Some(Box::new(failed));
        }
    }

    /// A peer has asked for what cannot be done.
    pub(crate) fn bad_message(&mut self, pe: Pe, why: String) {
        self.fail_lane(EngineError::BadMessage { pe, why });
    }
}

#[cold]
pub(crate) fn local_fault(pe: Pe, error: &PortError) -> EngineError {
    EngineError::BadMessage { pe, why: error.to_string() }
}

#[cold]
pub(crate) fn unknown_token(token: Token) {
    // A provider that completes an operation twice, or one that was never posted. Acting on it
    // would corrupt another operation's state; ignoring it is safe.
    error!(target: "TRANSPORT", "libfabric completed an operation that is not in flight ({token:?})");
}
