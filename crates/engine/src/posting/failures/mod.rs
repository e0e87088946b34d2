//! Failures: which operations end, which peers are declared failed, and who is told.
//!
//! A failed segment or message ends the connection to its peer: nothing more is sent there, since
//! what follows might be a flag for data that never left. Other peers go on, and have the room that
//! its operations took: those end, but for what the fabric or the peer may still touch. The lane's
//! first failure is told to the proxy's loop for ever after; a connection's first one to every
//! later call about the peer.
//!
//! Where rails are monitored, a segment that the fabric refuses is set aside first, and recovery
//! decides.

pub(crate) mod loss;
pub(crate) mod watchdog;

use std::collections::VecDeque;
use std::time::Duration;

use log::error;

use crate::error::EngineError;
use crate::ids::{Pe, RailId, WrId};
use crate::port::{Local, Port, PortError, Transfer};
use crate::posting::Core;
use crate::posting::failures::watchdog::{Overdue, Watchdog};
use crate::posting::peers::Peers;
use crate::posting::transmit::Transmit;
use crate::rate_limit::{RateLimit, Unsaid};
#[cfg(any(test, feature = "audit"))]
use crate::state::discrepancy::{Discrepancy, same};
use crate::state::orphans::Orphan;
use crate::state::segment::queue::Queue;
use crate::state::segment::waits::REISSUES;
use crate::state::segment::{Segment, Stage};

/// The work-request id of messages that belong to no segment.
pub(crate) const CONTROL: WrId = WrId(u32::MAX);

const LINES: u64 = 64;

/// What has failed, and what is to be seen to.
#[derive(Debug)]
pub(crate) struct Failures {
    watchdog: Watchdog,
    first: Option<Box<EngineError>>,
    /// Rails are monitored: what fails on one may go over another.
    recovers: bool,
    events: VecDeque<Event>,
    /// Peers that were declared failed, and for whose answers something may still wait.
    failed_peers: Vec<Pe>,
    /// Of lines in the log that peers can bring about.
    lines: RateLimit,
    /// Segments that were in doubt and that recovery does not know of yet.
    lost: Vec<WrId>,
    /// Segments in [`Orphans`](crate::state::orphans::Orphans).
    orphans: u32,
    /// Peers whose processes have ended, and when that was noticed.
    ended: Vec<(Pe, u32)>,
}

/// What a mechanism has to see to.
#[derive(Debug)]
pub(crate) enum Event {
    /// A segment that its mechanism moves has passed its fence.
    Begins(WrId),
    /// A segment that its mechanism moves is not posted and will not be: it ends with
    /// [`Core::end_dropped`], after what it has was given back.
    Dropped(WrId),
    /// The fabric has refused or failed a segment, and recovery may send it another way. A message
    /// is in no queue; bytes are among [`Failures::take_lost`].
    Refused(WrId, PortError),
    /// The fabric has refused a message that belongs to no segment.
    PathFailed { pe: Pe, rail: RailId, error: PortError },
}

impl Event {
    #[cfg(any(test, feature = "audit"))]
    pub(crate) fn wr_id(&self) -> Option<WrId> {
        match self {
            Self::Begins(wr_id) | Self::Dropped(wr_id) | Self::Refused(wr_id, _) => Some(*wr_id),
            Self::PathFailed { .. } => None,
        }
    }
}

impl Failures {
    pub(super) fn new(watchdog: Watchdog) -> Self {
        Self {
            watchdog,
            first: None,
            recovers: false,
            events: VecDeque::new(),
            failed_peers: Vec::new(),
            lines: RateLimit::most(LINES, Duration::from_secs(10)),
            lost: Vec::new(),
            orphans: 0,
            ended: Vec::new(),
        }
    }

    #[inline(always)]
    pub(crate) fn stamp(&self) -> u32 {
        self.watchdog.stamp()
    }

    /// A segment has ended otherwise than by a completion, of which its rail knows.
    #[inline(always)]
    pub(in crate::posting) fn has_moved(&mut self) {
        self.watchdog.has_moved();
    }

    pub(crate) fn hurry(&mut self) {
        self.watchdog.hurry();
    }

    #[inline]
    pub(crate) fn is_due(&mut self) -> bool {
        self.watchdog.is_due()
    }

    #[inline]
    pub(crate) fn count_yielded(&mut self) {
        self.watchdog.count_yielded();
    }

    pub(crate) fn starts(&mut self, now: u64) -> bool {
        self.watchdog.starts(now)
    }

    pub(crate) fn overdue(&self, moved: u32, warned: u32) -> Option<Overdue> {
        self.watchdog.overdue(moved, warned)
    }

    pub(crate) fn gives_up(&self, since: u32) -> Option<u64> {
        self.watchdog.gives_up(since)
    }

    #[inline(always)]
    pub(crate) fn first(&self) -> Option<&EngineError> {
        self.first.as_deref()
    }

    #[inline(always)]
    pub(crate) fn recovers(&self) -> bool {
        self.recovers
    }

    pub(super) fn set_recovers(&mut self, recovers: bool) {
        self.recovers = recovers;
    }

    pub(crate) fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    pub(crate) fn next_failed(&mut self) -> Option<Pe> {
        self.failed_peers.pop()
    }

    pub(crate) fn take_lost(&mut self) -> Vec<WrId> {
        std::mem::take(&mut self.lost)
    }

    /// Notes that a peer's process has ended. It fails when its time is up: at the end of a job
    /// peers end one after the other, and nothing is wrong.
    pub(crate) fn note_ended(&mut self, pe: Pe) {
        self.ended.push((pe, self.stamp()));
    }

    pub(crate) fn take_ended(&mut self) -> Vec<Pe> {
        let ended = std::mem::take(&mut self.ended);
        let is_over = |(_, since): &(Pe, u32)| self.gives_up(*since).is_some();
        let (over, left): (Vec<_>, Vec<_>) = ended.into_iter().partition(is_over);
        self.ended = left;
        over.into_iter().map(|(pe, _)| pe).collect()
    }

    pub(crate) fn has_no_orphans(&self) -> bool {
        self.orphans == 0
    }

    pub(crate) fn may_say(&mut self, now: u64) -> Option<Unsaid> {
        self.lines.admit_at(now)
    }

    pub(crate) fn look<P: Port>(
        &mut self,
        peers: &mut Peers,
        transmit: &Transmit<P>,
        staged: u32,
        pending: impl Iterator<Item = Pe>,
    ) -> Vec<(Pe, EngineError)> {
        self.watchdog.look(peers, transmit, staged, pending)
    }

    /// Something for a mechanism to see to, in this iteration.
    #[cold]
    pub(in crate::posting) fn raise(&mut self, event: Event) {
        self.events.push_back(event);
        self.watchdog.hurry();
    }
}

#[cfg(any(test, feature = "audit"))]
impl Failures {
    pub(crate) fn raised(&self) -> Vec<WrId> {
        self.events.iter().filter_map(Event::wr_id).collect()
    }

    pub(crate) fn audit<P: Port>(&self, transmit: &Transmit<P>) -> Result<(), Discrepancy> {
        let orphans = transmit.regions().orphans().of(transmit.regions().kind());
        same("orphans", self.orphans as usize, orphans.len())?;
        let over = orphans.iter().filter(|wr_id| !transmit.segment(**wr_id).is_out()).count();
        same("orphans that have ended", over, 0)
    }
}

impl<P: Port> Core<P> {
    /// A rail has failed as a whole: so has every connection with something on it, which may never
    /// end.
    #[cold]
    pub(crate) fn fail_rail(&mut self, rail: RailId, error: PortError) {
        let rail_name = self.transmit.port().rail_name(rail).to_owned();
        let failed = EngineError::Rail { rail, rail_name, error };
        let under_way = self.transmit.in_use().copied().chain(self.without_segment());
        let on_it = under_way.filter(|segment| segment.rail == rail);
        let mut peers: Vec<Pe> = on_it.map(|segment| segment.pe).collect();
        peers.sort_unstable();
        peers.dedup();
        for pe in peers {
            self.give_up(pe, &failed);
        }
        self.ask_again(rail);
        self.fail_lane(failed);
    }

    /// Asks all peers once more for the acknowledgements that they were asked for: the question may
    /// have been on the rail that has failed, and nobody is told of that.
    fn ask_again(&mut self, failed: RailId) {
        let transmit = &self.transmit;
        self.peers.ask_all_again(|connection| {
            if connection.next.rail == failed {
                transmit.rotate(connection);
            }
        });
    }

    /// A segment that the fabric refused or failed: it goes another way if that may be, or ends,
    /// and its connection with it. It is none of the rail's segments in flight any more.
    #[cold]
    pub(crate) fn fail_segment(&mut self, wr_id: WrId, error: PortError) {
        if self.failures.recovers() && !error.blames_operation() && self.set_aside(wr_id) {
            return self.failures.raise(Event::Refused(wr_id, error));
        }
        self.end_failed(wr_id, error);
    }

    fn set_aside(&mut self, wr_id: WrId) -> bool {
        let segment = self.transmit.segment(wr_id);
        let stage = segment.stage;
        if self.peers.check(segment.pe).is_err() {
            return false;
        }
        if segment.message().is_some() {
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

    #[cold]
    pub(crate) fn end_failed(&mut self, wr_id: WrId, error: PortError) {
        let segment = self.transmit.segment(wr_id);
        let pe = segment.pe;
        let failed = self.segment_error(wr_id, segment.rail, error);
        // First, so that the end of the segment releases nothing that waits for it.
        self.fail_connection(pe, failed);
        self.drop_segment(wr_id);
    }

    pub(crate) fn segment_error(&self, wr_id: WrId, rail: RailId, error: PortError) -> EngineError {
        let segment = self.transmit.segment(wr_id);
        EngineError::Segment {
            what: segment.what(),
            pe: segment.pe,
            len: segment.len(),
            rail,
            rail_name: self.transmit.port().rail_name(rail).to_owned(),
            error,
        }
    }

    #[cold]
    pub(crate) fn fail_connection(&mut self, pe: Pe, failed: EngineError) {
        self.give_up(pe, &failed);
        self.fail_lane(failed);
    }

    fn give_up(&mut self, pe: Pe, failed: &EngineError) {
        if let Some(connection) = self.peers.find_mut(pe) {
            connection.close();
            let is_first = connection.error.is_none();
            connection.error.get_or_insert_with(|| Box::new(failed.clone()));
            let held = std::mem::replace(&mut connection.held, Queue::EMPTY);
            let held_back = connection.take_held_back();
            for mut waiting in [held, held_back] {
                while let Some(wr_id) = self.transmit.dequeue(&mut waiting) {
                    self.drop_segment(wr_id);
                }
            }
            if is_first {
                self.note_orphans(pe);
                self.failures.failed_peers.push(pe);
                self.failures.watchdog.hurry();
            }
        }
    }

    /// The messages to a peer that was declared failed end, those that have left and those that
    /// wait for its window: no acknowledgement or reply of it is waited for any more, and they take
    /// room of others.
    #[cold]
    pub(crate) fn end_messages(&mut self, pe: Pe) {
        let channel = self.peers.channel_mut(pe);
        let Some(channel) = channel else { return };
        let mut waiting = std::mem::replace(&mut channel.waiting, Queue::EMPTY);
        while let Some(wr_id) = self.transmit.dequeue(&mut waiting) {
            self.drop_segment(wr_id);
        }
        self.give_segments(pe);
        let has_left = |s: &Segment| s.pe == pe && s.stage == Stage::Sent && s.work().is_message();
        for wr_id in self.transmit.wr_ids(has_left) {
            self.drop_segment(wr_id);
        }
        self.peers.forget_messages(pe);
    }

    /// What the fabric, or a copy, may still do for a peer that was declared failed: its memory is
    /// not free. What is in a queue is dropped there, and sets out no more.
    fn note_orphans(&mut self, pe: Pe) {
        for wr_id in self.transmit.wr_ids(|s| s.pe == pe && s.is_out()) {
            let segment = self.transmit.segment(wr_id);
            let Some(Transfer { local: Local::Memory { addr, .. }, len, .. }) =
                segment.work().transfer().copied()
            else {
                continue;
            };
            let what = segment.what();
            let lane = self.transmit.regions().kind();
            self.transmit.regions().orphans().enter(Orphan { lane, wr_id, what, pe, addr, len });
            self.failures.orphans += 1;
        }
    }

    #[inline]
    pub(crate) fn is_no_orphan(&mut self, wr_id: WrId) {
        if self.failures.orphans != 0 {
            self.leave_orphans(wr_id);
        }
    }

    #[cold]
    fn leave_orphans(&mut self, wr_id: WrId) {
        if self.transmit.regions().orphans().leave(self.transmit.regions().kind(), wr_id) {
            self.failures.orphans -= 1;
        }
    }

    #[cold]
    pub(crate) fn may_say(&mut self) -> Option<Unsaid> {
        let now = self.transmit.now();
        self.failures.may_say(now)
    }

    #[cold]
    pub(crate) fn fail_lane(&mut self, failed: EngineError) {
        // What follows the first may be a peer's to repeat.
        let is_first = self.failures.first.is_none();
        let unsaid = self.may_say();
        if is_first || unsaid.is_some() {
            error!(target: "TRANSPORT", "{failed}{}", unsaid.unwrap_or_default());
        }
        if is_first {
            self.failures.first = Some(Box::new(failed));
        }
    }

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

#[cold]
pub(crate) fn unknown_failure(rail: RailId, rail_name: &str, wr_id: WrId, failed: &PortError) {
    error!(
        target: "TRANSPORT",
        "rail {} ({rail_name}): libfabric says of an operation that is not in flight ({wr_id:?}) that it has \
         failed: {failed}",
        rail.0
    );
}

#[cfg(test)]
mod tests;
