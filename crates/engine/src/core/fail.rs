//! Failures: which operations end, which peers have failed, and who is told.
//!
//! A segment or message that fails ends the connection to its peer: nothing more is sent there,
//! since it might be the signal of data that never arrived. All operations of the peer end, but the
//! fabric may still access the memory of segments in flight; those become orphans, whose memory
//! cannot be released. Other peers go on. Each iteration reports the lane's first failure, each
//! later call about a peer that peer's first failure.

use std::time::Duration;

use log::error;

use crate::channel::slots::Purpose;
use crate::core::{Core, StagingEvent};
use crate::error::EngineError;
use crate::ids::{Pe, RailId};
use crate::op::{Op, OpKind, QueueEntry, SignalProtocol};
use crate::port::{Port, PortError};
use crate::rate_limit::RateLimit;
use crate::regions::Orphan;
use crate::segments::SegmentState;
use crate::wire::message::Seq;

/// Bit in the numbers of orphans that are copies; those of segments are their index.
const COPY: u32 = 1 << 31;

#[derive(Debug)]
pub(crate) struct ActiveCopy {
    token: u32,
    pub(crate) pe: Pe,
    pub(crate) what: &'static str,
    pub(crate) memory: (usize, usize),
}

/// Maximum number of log lines per ten seconds about faults that peers can cause.
const LINES: u64 = 64;

#[derive(Debug)]
pub(crate) struct Failures {
    first: Option<Box<EngineError>>,
    lines: RateLimit,
}

impl Failures {
    pub(super) fn new() -> Self {
        Self { first: None, lines: RateLimit::new(LINES, Duration::from_secs(10)) }
    }

    #[inline(always)]
    pub(crate) fn first(&self) -> Option<&EngineError> {
        self.first.as_deref()
    }
}

impl<P: Port> Core<P> {
    /// Fails a peer: ends all its operations. Later failures of it are only logged.
    #[cold]
    pub(crate) fn fail_peer(&mut self, pe: Pe, failed: EngineError) {
        self.end_operations(pe, &failed);
        self.fail_lane(failed);
    }

    fn end_operations(&mut self, pe: Pe, failed: &EngineError) {
        let peer = self.peers.get_mut(pe);
        if peer.error.is_some() {
            return;
        }
        // Continuations of the groups that end read the error.
        peer.error = Some(Box::new(failed.clone()));
        let queue = std::mem::take(&mut peer.queue);
        let signals = std::mem::take(&mut peer.waiting_signals);
        let quiets = std::mem::take(&mut peer.quiets);
        // The counts start anew: orphans and unordered messages do not count in them.
        peer.reset_order();
        peer.update_fast_path();
        self.queued -= queue.len();
        for queued in queue {
            match queued {
                QueueEntry::Op(op, _) => self.end_queued(&op),
                QueueEntry::Fence | QueueEntry::OwnWords => {}
                QueueEntry::Quiet(group) => self.end_in_group(group),
            }
        }
        signals.into_iter().for_each(|signal| self.end_in_group(signal.completion));
        quiets.into_iter().for_each(|(_, group)| self.end_in_group(group));
        let posted: Vec<u32> = self.segments.of_peer(pe).map(|(index, _)| index).collect();
        for index in posted {
            let Some(segment) = self.segments.posted_mut(index as usize) else { continue };
            let completion = segment.account.completion();
            // An orphan is no plain segment: its token is read.
            segment.token = segment.token();
            segment.account = segment.account.with(SegmentState::Orphan);
            let (memory, what) = (segment.memory(), segment.what());
            if let Some(memory) = memory {
                let lane = self.regions.kind;
                let orphan = Orphan { lane, segment: index, what, pe, memory };
                // Release of the region looks here: the NIC may still write to it.
                self.regions.directory.enter_orphan(orphan);
            }
            self.end_in_group(completion);
        }
        // The device executes started copies, whatever happened to the peer.
        for copying in self.copies.iter().filter(|copying| copying.pe == pe) {
            let ActiveCopy { token, what, memory, .. } = *copying;
            let (lane, segment) = (self.regions.kind, COPY | token);
            self.regions.directory.enter_orphan(Orphan { lane, segment, what, pe, memory });
        }
        let sent = self.messages.sent().filter(|(_, slot)| slot.account.pe() == pe);
        let sent: Vec<u16> = sent.map(|(index, _)| index).collect();
        for index in sent {
            let Some(slot) = self.messages.get_mut(index) else { continue };
            // Its group was dropped; only the completion group still counts it.
            slot.account = slot.account.unordered();
            let purpose = slot.purpose;
            if let Some(channel) = self.peers.get_mut(pe).channel.as_deref_mut() {
                match purpose {
                    Purpose::Fetch { reply_slot, .. } => channel.end_fetch(reply_slot),
                    Purpose::Staged { token, .. } => {
                        self.staging_events.push_back(StagingEvent::Message { token, ok: false });
                    }
                    Purpose::Plain | Purpose::CountedSignal(_) => {}
                }
            }
            self.end_message(pe, index);
        }
        self.staging_events.push_back(StagingEvent::Failed { pe });
    }

    fn end_queued(&mut self, op: &Op) {
        if let OpKind::PutSignal(_, SignalProtocol::Chained { data, .. }) = op.kind {
            self.end_in_group(data);
        }
        self.end_in_group(op.completion);
    }

    /// Fails a rail, and every peer with work in flight on it, which may never end.
    #[cold]
    pub(crate) fn fail_rail(&mut self, rail: RailId, error: PortError) {
        let rail_name = self.port.rail_name(rail).to_owned();
        let failed = EngineError::Rail { rail, rail_name, error };
        let segments = self.segments.posted().filter(|(_, s)| s.account.rail() == rail);
        let messages = self.messages.sent().filter(|(_, slot)| slot.account.rail() == rail);
        let mut peers: Vec<Pe> = segments
            .map(|(_, segment)| segment.account.pe())
            .chain(messages.map(|(_, slot)| slot.account.pe()))
            .collect();
        // One error for each peer, however much it has in flight.
        peers.sort_unstable();
        peers.dedup();
        peers.into_iter().for_each(|pe| self.end_operations(pe, &failed));
        self.fail_lane(failed);
    }

    pub(crate) fn segment_error(
        &self,
        (what, pe): (&'static str, Pe),
        len: usize,
        rail: RailId,
        error: PortError,
    ) -> EngineError {
        let rail_name = self.port.rail_name(rail).to_owned();
        EngineError::Segment { what, pe, len, rail, rail_name, error }
    }

    /// Logs a failure, and keeps it if it is the lane's first.
    #[cold]
    pub(crate) fn fail_lane(&mut self, failed: EngineError) {
        let now = self.port.now();
        let suppressed = self.failures.lines.admit_at(now);
        // A peer may cause later failures over and over; the first is always logged.
        if self.failures.first.is_none() || suppressed.is_some() {
            error!(target: "TRANSPORT", "{failed}{}", suppressed.unwrap_or_default());
        }
        self.failures.first.get_or_insert_with(|| Box::new(failed));
    }

    pub(crate) fn begin_copy(
        &mut self,
        token: u32,
        pe: Pe,
        what: &'static str,
        memory: (usize, usize),
    ) {
        self.copies.push(ActiveCopy { token, pe, what, memory });
    }

    pub(crate) fn is_copying(&self, token: u32) -> bool {
        self.copies.iter().any(|copying| copying.token == token)
    }

    pub(crate) fn end_copy(&mut self, token: u32) {
        let copying = self.copies.iter().find(|copying| copying.token == token);
        let Some(pe) = copying.map(|copying| copying.pe) else { return };
        self.copies.retain(|copying| copying.token != token);
        if self.peers.get(pe).error.is_some() {
            self.regions.directory.leave_orphan(self.regions.kind, COPY | token);
        }
    }

    /// Refuses a message that no correct peer sends, and fails the lane.
    #[cold]
    pub(crate) fn refuse(&mut self, pe: Pe, seq: Seq, why: String) {
        self.decline(pe, seq, why.clone());
        self.fail_lane(EngineError::BadMessage { pe, why });
    }

    /// Refuses a message that cannot be executed, and with it everything later of the peer.
    #[cold]
    pub(crate) fn decline(&mut self, pe: Pe, seq: Seq, why: String) {
        if self.channel(pe).has_refused {
            // One refusal ends the connection at the peer, so a second would tell nothing.
            return;
        }
        if let Some(suppressed) = self.failures.lines.admit_at(self.port.now()) {
            error!(target: "TRANSPORT", "{pe} asks for something that cannot be done: {why}{suppressed}");
        }
        let channel = self.channel(pe);
        channel.has_refused = true;
        channel.refusal = Some((seq, why));
        // Messages after the refused one must not be executed without it.
        channel.waiting = Vec::new();
        self.staging_events.push_back(StagingEvent::Refused { pe });
        self.enter_control(pe);
    }

    /// Counts something received that no PE of the job has sent; warns of the first on a rail.
    #[cold]
    pub(crate) fn drop_foreign(&mut self, rail: RailId, what: &dyn std::fmt::Display) {
        let counters = &mut self.rails[rail].counters;
        counters.foreign += 1;
        if counters.foreign == 1 {
            let name = self.port.rail_name(rail);
            log::warn!(
                target: "TRANSPORT",
                "{rail} ({name}) has received something that is not of this job, and drops it and all like it: {what}. \
                 Another process knows or guessed its address; a firewall would keep it out"
            );
        }
    }
}
