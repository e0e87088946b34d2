//! Counted signals: the peer applies one when it has counted the segments of its data.
//!
//! Every segment carries immediate data that is known for the put's
//! ([`Marks`](crate::wire::marks::Marks)); the signal is a message that says how many there are.
//! Both go out at once, on any rails, and overtake one another as they like. The peer applies the
//! signal when it has both it and so many segments. No signal waits for another: each has a count
//! of its own.
//!
//! # Signals behind puts without a signal
//! Where signals come behind all puts before them ([`Lane::order_signals`]), such puts are counted
//! as well. To each peer one tag may be *open*: their segments carry it. The next signal to the
//! peer takes it over, leaves at once, and says how many segments there are, those of its own data
//! among them. Puts after it open another tag. A put for which there is no tag is not counted: the
//! signal waits until it is delivered.
//!
//! [`Lane::order_signals`]: crate::lane::Lane::order_signals
//!
//! # Why it cannot deadlock
//! A signal that waits at the receiver has a place set aside for it: the sender has at most
//! [`TAGS`] counted puts under way to one peer, and the receiver as many slots, from the first one
//! on. So it is taken at once, as every message is, and what comes after it too. The
//! acknowledgement stops before it (acknowledged means applied), so that at most a window of
//! messages passes it before the sender has to wait. Then, and when it has no tag left, the sender
//! waits for the data of that signal and for nothing else; and the data is on its way: its segments
//! were submitted before the signal, so each has a slot, and waits only for room on its rail or for
//! older writes behind a fence, never for a window.
//!
//! An open tag that no signal ever takes over stays in use, and its slot at the receiver counts on.
//! Nothing waits for either: a put with signal that finds no free tag takes over the open one, and
//! there is one at most.

use log::warn;

use crate::error::EngineError;
use crate::ids::Pe;
use crate::port::Port;
use crate::posting::Core;
use crate::signal::Signals;
pub(crate) use crate::state::counts::Counting;
pub use crate::state::counts::TAGS;
use crate::state::counts::{CountedSignal, Counts, Tags};
use crate::state::messages::reliable_channel::ReliableChannel;
use crate::wire::message::Tag;

const NOT_COUNTED: &str =
    "a counted put, and in this job rails are monitored, so nothing is counted";

/// What a sender has for a put to be counted.
#[derive(Debug)]
pub(crate) enum Tagged {
    /// A tag, which it has to itself, and the segments before it that its signal counts as well.
    With(Counting),
    /// None at present: they come back with acknowledgements.
    Later,
    /// Nothing is counted to this peer any more.
    Never,
}

impl Signals {
    pub(crate) fn take_tag<P: Port>(
        &self,
        core: &mut Core<P>,
        pe: Pe,
    ) -> Result<Tagged, EngineError> {
        let most = self.most_counted;
        let channel = core.connection_to(pe)?.channel();
        let tags = channel.tags.get_or_insert_with(|| Box::new(Tags::new(most)));
        if let Some(open) = tags.take_open() {
            return Ok(Tagged::With(open));
        }
        if tags.is_retired() {
            return Ok(Tagged::Never);
        }
        let Some(tag) = tags.take() else { return Ok(Tagged::Later) };
        if tags.are_few() {
            core.peers.want_ack(pe);
        }
        Ok(Tagged::With(Counting { tag, segments: 0 }))
    }

    /// What the segments of a put without a signal are counted with, for the next signal. None
    /// while there is no tag: the signal waits for the put then.
    pub(crate) fn open_tag<P: Port>(
        &self,
        core: &mut Core<P>,
        pe: Pe,
    ) -> Result<Option<Counting>, EngineError> {
        let most = self.most_counted;
        let channel = core.connection_to(pe)?.channel();
        let tags = channel.tags.get_or_insert_with(|| Box::new(Tags::new(most)));
        let open = tags.open();
        if tags.are_few() {
            core.peers.want_ack(pe);
        }
        Ok(open)
    }

    pub(crate) fn keep_open<P: Port>(&self, core: &mut Core<P>, pe: Pe, counting: Counting) {
        if let Some(tags) = tags(core, pe) {
            tags.keep_open(counting);
        }
    }

    /// A put was begun and not finished: some segments may be out, and their signal never will be.
    pub(crate) fn retire<P: Port>(&self, core: &mut Core<P>, pe: Pe) {
        if let Some(tags) = tags(core, pe) {
            tags.retire();
        }
    }

    /// A write has landed, with immediate data. Gives the signal that is to be applied now, and
    /// then [`Signals::settle`] is called.
    ///
    /// # Errors
    /// Nobody who counts for this PE has marked it so.
    #[cold]
    pub(crate) fn landed<P: Port>(
        &mut self,
        core: &mut Core<P>,
        mark: u64,
    ) -> Result<Option<(Pe, CountedSignal)>, &'static str> {
        if self.most_counted == 0 {
            return Err("a write with immediate data, and in this job nothing is counted");
        }
        let (pe, slot) = core.peers.marked_by(mark);
        let channel = core.peers.channel(pe);
        let counts = channel.and_then(|channel| channel.counts.as_deref());
        let tag = counts.map_or_else(|| Tag::first(slot), |counts| counts.expected(slot));
        if !core.peers.is_mark_of(mark, pe, tag) {
            return Err("a write with immediate data that is of no put under way");
        }
        let now = core.failures.stamp();
        let Some(connection) = core.open_connection(pe) else {
            return Err("a write with immediate data whose sender is no PE of the job");
        };
        let signal = self::counts(connection.channel()).landed(tag, now);
        self.unapplied -= u32::from(signal.is_some());
        Ok(signal.map(|signal| (pe, signal)))
    }

    #[cold]
    pub(crate) fn announced<P: Port>(
        &mut self,
        core: &mut Core<P>,
        pe: Pe,
        (tag, segments): (Tag, u32),
        signal: &CountedSignal,
    ) -> bool {
        if core.failures.recovers() {
            core.cannot_execute(pe, signal.seq, NOT_COUNTED.to_owned());
            return false;
        }
        let now = core.failures.stamp();
        let Some(connection) = core.peers.find_mut(pe) else { return false };
        match counts(connection.channel()).announced(tag, segments, signal, now) {
            Ok(true) => return true,
            Ok(false) => {
                self.unapplied += 1;
                self.settle(core, pe);
            }
            Err(why) => core.bad_message(pe, why),
        }
        false
    }

    pub(crate) fn settle<P: Port>(&self, core: &mut Core<P>, pe: Pe) {
        let Some(connection) = core.peers.find_mut(pe) else { return };
        let channel = connection.channel();
        let first = counts(channel).first_waiting().map(|(first, ..)| first);
        channel.waits_for_data(first);
        channel.check_wanted();
        core.peers.queue_control(pe);
        core.peers.note_due(pe);
    }

    #[cold]
    pub(crate) fn inspect_counts<P: Port>(&mut self, core: &mut Core<P>) {
        if self.unapplied == 0 {
            return;
        }
        let mut failed = None;
        let now = core.transmit.now();
        let Core { peers, failures, .. } = &mut *core;
        peers.for_each(|connection| {
            let pe = connection.pe;
            let Some(counts) =
                connection.channel.as_deref_mut().and_then(|l| l.counts.as_deref_mut())
            else {
                return;
            };
            let Some((_, arrived, segments)) = counts.first_waiting() else { return };
            let Some(overdue) = failures.overdue(counts.moved, counts.warned) else { return };
            counts.warned += 1;
            let (waiting, seconds) = (counts.waiting(), overdue.seconds);
            let report = EngineError::DataMissing { pe, arrived, segments, waiting, seconds };
            if overdue.fails {
                failed = Some(report);
            } else if let Some(unsaid) = failures.may_say(now) {
                warn!(target: "TRANSPORT", "{report}{unsaid}");
            }
        });
        if let Some(failed) = failed.filter(|_| core.failures.first().is_none()) {
            core.fail_lane(failed);
        }
    }
}

fn tags<P: Port>(core: &mut Core<P>, pe: Pe) -> Option<&mut Tags> {
    core.peers.find_mut(pe)?.channel.as_deref_mut()?.tags.as_deref_mut()
}

pub(crate) fn counts(channel: &mut ReliableChannel) -> &mut Counts {
    channel.counts.get_or_insert_with(|| Box::new(Counts::new()))
}
