//! Failures: which operations end, which peers have failed, and who is told.
//!
//! A segment or message that fails ends the connection to its peer: nothing more is sent there,
//! since it might be the signal of data that never arrived. All operations of the peer end, but the
//! fabric may still touch the memory of segments that are with it; those become orphans, and
//! their memory cannot be released. Other peers go on. The lane's first failure is reported from
//! every iteration, a peer's first failure by every later call about it.

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
use crate::segments::{PLAIN, SegmentState};
use crate::wire::message::Seq;

/// Bit of orphans that are copies; those of segments have their index.
const COPY: u32 = 1 << 31;

/// A copy under way between local memory and a bounce buffer.
#[derive(Debug)]
pub(crate) struct ActiveCopy {
    /// Staging's transfer.
    token: u32,
    pub(crate) peer: u32,
    pub(crate) what: &'static str,
    pub(crate) memory: (usize, usize),
}

/// Most lines in the log, in ten seconds, about faults that peers can cause.
const LINES: u64 = 64;

/// What has failed.
#[derive(Debug)]
pub(crate) struct Failures {
    first: Option<Box<EngineError>>,
    lines: RateLimit,
}

impl Failures {
    pub(super) fn new() -> Self {
        Self { first: None, lines: RateLimit::new(LINES, Duration::from_secs(10)) }
    }

    /// The first failure of the lane.
    #[inline(always)]
    pub(crate) fn first(&self) -> Option<&EngineError> {
        self.first.as_deref()
    }
}

impl<P: Port> Core<P> {
    /// A peer has failed.
    #[cold]
    pub(crate) fn fail_peer(&mut self, at: u32, failed: EngineError) {
        let peer = self.peers.get_mut(at);
        if peer.error.is_none() {
            peer.error = Some(Box::new(failed.clone()));
            self.end_operations(at);
        }
        self.fail_lane(failed);
    }

    fn end_operations(&mut self, at: u32) {
        let peer = self.peers.get_mut(at);
        let pe = peer.pe;
        let queue = std::mem::take(&mut peer.queue);
        let held = std::mem::take(&mut peer.held);
        let quiets = std::mem::take(&mut peer.quiets);
        // Nothing of the peer is counted by it any more.
        peer.forget();
        peer.update_fast_path();
        self.queued -= queue.len();
        for queued in queue {
            match queued {
                QueueEntry::Op(op, _) => self.end_queued(&op),
                QueueEntry::Fence => {}
                QueueEntry::Quiet(group) => self.end_in_group(group),
            }
        }
        held.into_iter().for_each(|signal| self.end_in_group(signal.completion));
        quiets.into_iter().for_each(|(_, group)| self.end_in_group(group));
        let posted: Vec<u32> = self.segments.of_peer(at).map(|(index, _)| index).collect();
        for index in posted {
            let Some(segment) = self.segments.posted_mut(index as usize) else { continue };
            let completion = segment.owner.completion();
            if segment.owner.is_plain() {
                segment.token = PLAIN;
            }
            segment.owner = segment.owner.with(SegmentState::Orphan);
            let (memory, what) = (segment.memory(), segment.what());
            if let Some(memory) = memory {
                let lane = self.regions.kind();
                let orphan = Orphan { lane, segment: index, what, pe, memory };
                self.regions.index().enter_orphan(orphan);
            }
            self.end_in_group(completion);
        }
        for copying in self.copies.iter().filter(|copying| copying.peer == at) {
            let ActiveCopy { token, what, memory, .. } = *copying;
            let (lane, segment) = (self.regions.kind(), COPY | token);
            self.regions.index().enter_orphan(Orphan { lane, segment, what, pe, memory });
        }
        let sent = self.messages.sent().filter(|(_, slot)| slot.owner.peer() == at);
        let sent: Vec<u16> = sent.map(|(number, _)| number).collect();
        for number in sent {
            let Some(slot) = self.messages.get_mut(number) else { continue };
            slot.owner = slot.owner.unordered();
            let (seq, purpose) = (slot.seq, slot.purpose);
            if let Some(channel) = self.peers.get_mut(at).channel.as_deref_mut() {
                match purpose {
                    Purpose::Fetch { place, .. } => channel.end_fetch(place),
                    Purpose::Staged { token, .. } => {
                        self.staging_events.push_back(StagingEvent::Message { token, ok: false });
                    }
                    Purpose::Plain | Purpose::CountedSignal(_) => {}
                }
                if seq >= channel.acked {
                    channel.take_sent(seq);
                }
            }
            self.end_message(at, number);
        }
        self.staging_events.push_back(StagingEvent::Failed { peer: at });
    }

    fn end_queued(&mut self, op: &Op) {
        if let OpKind::PutSignal(_, SignalProtocol::Chained { data, .. }) = op.kind {
            self.end_in_group(data);
        }
        self.end_in_group(op.completion);
    }

    /// A rail has failed as a whole: so has every peer with something on it, which may never end.
    #[cold]
    pub(crate) fn fail_rail(&mut self, rail: RailId, error: PortError) {
        let rail_name = self.port.rail_name(rail).to_owned();
        let failed = EngineError::Rail { rail, rail_name, error };
        let segments = self.segments.posted().filter(|(_, s)| s.owner.rail() == rail);
        let messages = self.messages.sent().filter(|(_, slot)| slot.owner.rail() == rail);
        let mut peers: Vec<u32> = segments
            .map(|(_, segment)| segment.owner.peer())
            .chain(messages.map(|(_, slot)| slot.owner.peer()))
            .collect();
        peers.sort_unstable();
        peers.dedup();
        for at in peers {
            let peer = self.peers.get_mut(at);
            if peer.error.is_none() {
                peer.error = Some(Box::new(failed.clone()));
                self.end_operations(at);
            }
        }
        self.fail_lane(failed);
    }

    /// The lane has failed.
    #[cold]
    pub(crate) fn fail_lane(&mut self, failed: EngineError) {
        let now = self.port.now();
        let suppressed = self.failures.lines.admit_at(now);
        // Later failures may be a peer's to repeat.
        if self.failures.first.is_none() || suppressed.is_some() {
            error!(target: "TRANSPORT", "{failed}{}", suppressed.unwrap_or_default());
        }
        self.failures.first.get_or_insert_with(|| Box::new(failed));
    }

    /// A copy between local memory and a bounce buffer has begun.
    pub(crate) fn begin_copy(
        &mut self,
        token: u32,
        peer: u32,
        what: &'static str,
        memory: (usize, usize),
    ) {
        self.copies.push(ActiveCopy { token, peer, what, memory });
    }

    /// Whether copies of a transfer are under way.
    pub(crate) fn is_copying(&self, token: u32) -> bool {
        self.copies.iter().any(|copying| copying.token == token)
    }

    /// The copies of a transfer have ended.
    pub(crate) fn end_copy(&mut self, token: u32) {
        let peer = self.copies.iter().find(|copying| copying.token == token);
        let Some(peer) = peer.map(|copying| copying.peer) else { return };
        self.copies.retain(|copying| copying.token != token);
        if self.peers.get(peer).error.is_some() {
            self.regions.index().leave_orphan(self.regions.kind(), COPY | token);
        }
    }

    /// A message of a peer cannot be executed: the peer is told, and so is this lane.
    #[cold]
    pub(crate) fn refuse(&mut self, at: u32, seq: Seq, why: String) {
        self.decline(at, seq, why.clone());
        let pe: Pe = Pe(at);
        self.fail_lane(EngineError::BadMessage { pe, why });
    }

    /// A transfer that a peer has asked for cannot be done: the peer is told.
    #[cold]
    pub(crate) fn decline(&mut self, at: u32, seq: Seq, why: String) {
        if self.channel(at).has_refused {
            return;
        }
        if let Some(suppressed) = self.failures.lines.admit_at(self.port.now()) {
            let pe = Pe(at);
            error!(target: "TRANSPORT", "{pe} asks for something that cannot be done: {why}{suppressed}");
        }
        let channel = self.channel(at);
        channel.has_refused = true;
        channel.refusal = Some((seq, why));
        channel.waiting = Vec::new();
        self.staging_events.push_back(StagingEvent::Refused { peer: at });
        self.enter_control(at);
    }

    /// Something has come in that is of nobody of the job.
    #[cold]
    pub(crate) fn drop_foreign(&mut self, rail: RailId, what: &dyn std::fmt::Display) {
        let counters = &mut self.rails[rail.index()].counters;
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
