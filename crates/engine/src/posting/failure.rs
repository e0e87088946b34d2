//! Failures: which operations end, which peers are declared failed, and who is told.
//!
//! A failed segment or message ends the connection to its peer: nothing more is sent there, since what
//! follows might be a flag for data that never left. Other peers go on, and have the room that its operations
//! took: those end, but for what the fabric or the peer may still touch. The lane's first failure is
//! told to the proxy's loop for ever after; a connection's first one to every later call about the peer.
//!
//! Where rails are monitored, a segment that the fabric refuses is set aside first, and recovery decides.

use log::error;

use crate::error::EngineError;
use crate::ids::{Pe, RailId, WrId};
use crate::port::{Local, Port, PortError};
use crate::posting::{Core, Event};
use crate::rate_limit::Unsaid;
use crate::state::orphans::Orphan;
use crate::state::segment::queue::Queue;
use crate::state::segment::waits::REISSUES;
use crate::state::segment::{Segment, Stage};

/// The work-request id of messages that belong to no segment.
pub(crate) const CONTROL: WrId = WrId(u32::MAX);

impl<P: Port> Core<P> {
    /// A rail has failed as a whole: so has every connection with something on it, which may never end.
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
        let Self { connections, paths, control, .. } = self;
        connections.for_each(|connection| {
            let asks = connection.channel.as_deref_mut().filter(|_| connection.error.is_none());
            let Some(channel) = asks else { return };
            channel.ask_again();
            if channel.enters_control() {
                control.push_back(connection.pe);
            }
            if connection.next.rail == failed {
                connection.rotate(paths);
            }
        });
    }

    /// A segment that the fabric refused or failed: it goes another way if that may be, or ends, and its
    /// connection with it. It is none of the rail's segments in flight any more.
    #[cold]
    pub(crate) fn fail_segment(&mut self, wr_id: WrId, error: PortError) {
        if self.recovers && !error.blames_operation() && self.set_aside(wr_id) {
            return self.raise(Event::Refused(wr_id, error));
        }
        self.end_failed(wr_id, error);
    }

    /// Sets a segment aside until recovery has decided about it. Whether it may.
    fn set_aside(&mut self, wr_id: WrId) -> bool {
        let segment = &self.segments[wr_id.0];
        let (stage, kind) = (segment.stage, segment.kind);
        if self.check_connection(segment.pe).is_err() {
            return false;
        }
        if !kind.is_rma() && segment.message().is_some() {
            return true;
        }
        if segment.reissues() >= REISSUES {
            return false;
        }
        if stage != Stage::Lost {
            self.lose(wr_id, stage == Stage::Posted);
        }
        self.wr_id_is_back(wr_id);
        true
    }

    /// Ends a segment that the fabric refused or failed, and its connection with it.
    #[cold]
    pub(crate) fn end_failed(&mut self, wr_id: WrId, error: PortError) {
        let segment = &self.segments[wr_id.0];
        let pe = segment.pe;
        let failed = self.segment_error(wr_id, segment.rail, error);
        // First, so that the end of the segment releases nothing that waits for it.
        self.fail_connection(pe, failed);
        self.drop_segment(wr_id);
    }

    /// What has failed, in words.
    pub(crate) fn segment_error(&self, wr_id: WrId, rail: RailId, error: PortError) -> EngineError {
        let segment = &self.segments[wr_id.0];
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
    pub(crate) fn fail_connection(&mut self, pe: Pe, failed: EngineError) {
        self.give_up(pe, &failed);
        self.fail_lane(failed);
    }

    /// Marks a connection failed and drops what it holds back.
    fn give_up(&mut self, pe: Pe, failed: &EngineError) {
        if let Some(connection) = self.connections.find_mut(pe) {
            connection.close();
            let is_first = connection.error.is_none();
            connection.error.get_or_insert_with(|| Box::new(failed.clone()));
            let held = std::mem::replace(&mut connection.held, Queue::EMPTY);
            let held_back = connection.take_held_back();
            for mut waiting in [held, held_back] {
                while let Some(index) = waiting.pop(&self.segments) {
                    self.drop_segment(WrId(index));
                }
            }
            if is_first {
                self.note_orphans(pe);
                self.given_up.push(pe);
                self.watchdog.hurry();
            }
        }
    }

    /// The messages to a peer that was declared failed end, those that have left and those that wait for its window: no
    /// acknowledgement or reply of it is waited for any more, and they take room of others.
    #[cold]
    pub(crate) fn end_messages(&mut self, pe: Pe) {
        let channel =
            self.connections.find_mut(pe).and_then(|connection| connection.channel.as_deref_mut());
        let Some(channel) = channel else { return };
        let mut waiting = std::mem::replace(&mut channel.waiting, Queue::EMPTY);
        while let Some(index) = waiting.pop(&self.segments) {
            self.drop_segment(WrId(index));
        }
        let has_left = |s: &Segment| s.pe == pe && s.stage == Stage::Sent && !s.kind.is_staged();
        for wr_id in self.segments.wr_ids(has_left) {
            self.drop_segment(wr_id);
        }
        if let Some(channel) = self.connections.find_mut(pe).and_then(|s| s.channel.as_deref_mut())
        {
            self.messages.forget_all(channel);
        }
    }

    /// What the fabric, or a copy, may still do for a peer that was declared failed: its memory is not free. What is in
    /// a queue is dropped there, and sets out no more.
    fn note_orphans(&mut self, pe: Pe) {
        for wr_id in self.segments.wr_ids(|s| s.pe == pe && s.is_out()) {
            let segment = &self.segments[wr_id.0];
            let Local::Memory { addr, .. } = segment.transfer.local else { continue };
            let (what, len) = (segment.what(), segment.transfer.len);
            let lane = self.regions.kind();
            self.regions.orphans().enter(Orphan { lane, wr_id, what, pe, addr, len });
            self.orphans += 1;
        }
    }

    /// A segment has ended: if it was a orphan, its memory is free.
    #[inline]
    pub(crate) fn is_no_orphan(&mut self, wr_id: WrId) {
        if self.orphans != 0 {
            self.leave_orphans(wr_id);
        }
    }

    #[cold]
    fn leave_orphans(&mut self, wr_id: WrId) {
        if self.regions.orphans().leave(self.regions.kind(), wr_id) {
            self.orphans -= 1;
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
pub(crate) fn unknown_wr_id(wr_id: WrId) {
    // A provider that completes an operation twice, or one that was never posted. Acting on it
    // would corrupt another operation's state; ignoring it is safe.
    error!(target: "TRANSPORT", "libfabric completed an operation that is not in flight ({wr_id:?})");
}
