//! Puts whose signal the peer applies when it has counted their segments.
//!
//! Every segment carries remote data that names the sender and the put ([`Mark`]); the signal is a
//! message that says how many there are. Both go out at once, on any rails, and overtake one another as
//! they like. The peer applies the signal when it has both it and so many segments. No signal waits for
//! another: each has a count of its own.
//!
//! # Why it cannot deadlock
//! A signal that waits at the receiver has a place set aside for it: the sender has at most [`TAGS`]
//! counted puts under way to one peer, and the receiver as many slots, from the first one on. So it is
//! taken at once, as every message is, and what comes after it too. The acknowledgement stops before it
//! (acknowledged means applied), so that at most a window of messages passes it before the sender has
//! to wait. Then, and when it has no tag left, the sender waits for the data of that signal and for
//! nothing else; and the data is on its way: its segments were submitted before the signal, so each has
//! a slot, and waits only for room on its rail or for older writes behind a fence, never for a window.

use log::warn;

use crate::engine::error::EngineError;
use crate::engine::ids::Pe;
use crate::engine::lane::Lane;
use crate::engine::port::Port;
use crate::engine::request::Request;
use crate::engine::request::{AtomicRequest, PutSignalRequest};
pub use crate::engine::state::counts::TAGS;
use crate::engine::state::counts::Tags;
use crate::engine::state::counts::{CountedSignal, Counts};
use crate::engine::state::link::Link;
use crate::engine::state::operation::OpId;
use crate::engine::wire::message::{Body, Mark, Tag};

/// Why a counted put is refused.
const NOT_COUNTED: &str =
    "a counted put, and in this job rails are looked after, so nothing is counted";

/// What the segments of a put tell the peer.
#[derive(Debug)]
pub(in crate::engine) struct Told {
    /// The remote data of each.
    pub(in crate::engine) data: u32,
    /// How many there are so far.
    pub(in crate::engine) segments: u32,
}

impl<P: Port> Lane<P> {
    /// Data on all rails, with the signal beside it.
    pub(in crate::engine) fn put_signal_counted(
        &mut self,
        request: &PutSignalRequest<'_>,
    ) -> Result<(), EngineError> {
        let PutSignalRequest { parts, signal } = request;
        let Some(tag) = self.take_tag(signal.pe)? else {
            return self.put_signal_chained(parts, signal);
        };
        let sent = self.send_counted(parts, signal, tag);
        if sent.is_err() {
            // Some segments may be out, and their signal never will be.
            let stream = self.streams.find_mut(signal.pe);
            if let Some(tags) = stream.and_then(|stream| stream.link().tags.as_deref_mut()) {
                tags.retire();
            }
        }
        sent
    }

    /// A tag for a put to the peer, as soon as one is free. None if nothing is counted to this peer any
    /// more.
    fn take_tag(&mut self, pe: Pe) -> Result<Option<Tag>, EngineError> {
        let mut idle = 0;
        loop {
            let most = self.counted;
            let link = self.stream_to(pe)?.link();
            let tags = link.tags.get_or_insert_with(|| Box::new(Tags::new(most)));
            if tags.is_retired() {
                return Ok(None);
            }
            if let Some(tag) = tags.take() {
                if tags.are_few() {
                    self.want_ack(pe);
                }
                return Ok(Some(tag));
            }
            self.make_room(&mut idle)?;
            if let Some(failed) = &self.failure {
                return Err((**failed).clone());
            }
        }
    }

    fn send_counted(
        &mut self,
        parts: &[Request<'_>],
        signal: &AtomicRequest<'_>,
        tag: Tag,
    ) -> Result<(), EngineError> {
        let mut told = Told { data: Mark { from: self.me, tag }.encode(), segments: 0 };
        let mut idle = 0;
        for part in parts {
            let mut sent = 0;
            loop {
                self.submit_counted(part, &mut sent, &mut told)?;
                if sent == part.len {
                    break;
                }
                self.make_room(&mut idle)?;
            }
        }
        loop {
            let segments = told.segments;
            let body = |at, atomic| Body::CountedSignal { at, atomic, tag, segments };
            if self.try_message(signal, OpId::NONE, body)? {
                return Ok(());
            }
            self.make_room(&mut idle)?;
        }
    }

    /// A write of a peer has landed, with remote data.
    #[cold]
    pub(in crate::engine) fn landed(&mut self, data: u32) {
        let Mark { from: pe, tag } = Mark::decode(data);
        if self.health.is_some() {
            return self.fail_lane(EngineError::BadMessage { pe, why: NOT_COUNTED.to_owned() });
        }
        let now = self.watchdog.stamp();
        let Some(stream) = self.streams.open(pe, &self.paths) else {
            let why = format!("it is no PE of this job of {}", self.streams.n_pes());
            return self.fail_lane(EngineError::BadMessage { pe, why });
        };
        match counts(stream.link()).landed(tag, now) {
            Ok(None) => {}
            Ok(Some(signal)) => {
                self.unapplied -= 1;
                self.apply_counted(pe, &signal);
            }
            Err(why) => self.fail_lane(EngineError::BadMessage { pe, why }),
        }
    }

    /// A signal has arrived that is applied when so many segments have.
    #[cold]
    pub(in crate::engine) fn announced(
        &mut self,
        pe: Pe,
        tag: Tag,
        segments: u32,
        signal: &CountedSignal,
    ) {
        if self.health.is_some() {
            return self.cannot_carry_out(pe, signal.seq, NOT_COUNTED.to_owned());
        }
        let now = self.watchdog.stamp();
        let Some(stream) = self.streams.find_mut(pe) else { return };
        match counts(stream.link()).announced(tag, segments, signal, now) {
            Ok(true) => self.apply_counted(pe, signal),
            Ok(false) => {
                self.unapplied += 1;
                self.settle(pe);
            }
            Err(why) => self.fail_lane(EngineError::BadMessage { pe, why }),
        }
    }

    fn apply_counted(&mut self, pe: Pe, signal: &CountedSignal) {
        let CountedSignal { at, atomic, .. } = *signal;
        if let Err(why) = self.carry_out(pe, &Body::Atomic { at, atomic }) {
            self.cannot_carry_out(pe, signal.seq, why);
        }
        self.settle(pe);
    }

    /// Notes what may be acknowledged now.
    fn settle(&mut self, pe: Pe) {
        let Some(stream) = self.streams.find_mut(pe) else { return };
        let link = stream.link();
        let first = counts(link).first_waiting().map(|(first, ..)| first);
        link.waits_for_data(first);
        link.check_wanted();
        self.note_control(pe);
    }

    /// Looks for signals whose data does not come.
    #[cold]
    pub(in crate::engine) fn inspect_counts(&mut self) {
        if self.unapplied == 0 {
            return;
        }
        let mut failed = None;
        for stream in self.streams.iter_mut() {
            let pe = stream.pe;
            let Some(counts) = stream.link.as_deref_mut().and_then(|l| l.counts.as_deref_mut())
            else {
                continue;
            };
            let Some((_, arrived, segments)) = counts.first_waiting() else { continue };
            let Some(overdue) = self.watchdog.overdue(counts.moved, counts.warned) else {
                continue;
            };
            counts.warned += 1;
            let (waiting, seconds) = (counts.waiting(), overdue.seconds);
            let report = EngineError::DataMissing { pe, arrived, segments, waiting, seconds };
            if overdue.fails {
                failed = Some(report);
            } else {
                warn!(target: "TRANSPORT", "{report}");
            }
        }
        if let Some(failed) = failed.filter(|_| self.failure.is_none()) {
            self.fail_lane(failed);
        }
    }
}

pub(in crate::engine) fn counts(link: &mut Link) -> &mut Counts {
    link.counts.get_or_insert_with(|| Box::new(Counts::new()))
}
