//! The ends of segments: what a completion, or a segment that is dropped, means for its operation, its stream
//! and what is behind them.

use std::iter;

use crate::ids::Token;
use crate::port::{Completions, POLL_BATCH, Port};
use crate::posting::{Core, Event};
use crate::state::operation::OpId;
use crate::state::segment::table::{Finished, SegmentTable};
use crate::state::segment::{Kind, Plain, Segment, Stage};
use crate::state::stream::Streams;

/// The completions of one poll, on their way into the lane's books.
///
/// Most are plain and of the same peer as the one before. Those are counted, and their stream is told
/// once, when the run ends.
#[derive(Debug)]
pub(crate) struct Drain<'a> {
    segments: &'a mut SegmentTable,
    streams: &'a mut Streams,
    /// What a segment is that belongs to the run.
    run: Plain,
    /// Segments of the run.
    count: u32,
    /// Segments of the runs before.
    known: u32,
    rare: &'a mut Rare,
}

/// Completions that take more than counting. Belongs to the lane, so that an idle poll need not make
/// room for them.
#[derive(Debug)]
pub(crate) struct Rare {
    tokens: [Token; POLL_BATCH],
    count: usize,
}

impl Rare {
    /// None.
    pub(crate) const EMPTY: Rare = Rare { tokens: [Token(0); POLL_BATCH], count: 0 };

    /// Takes one out, in no order.
    #[inline(always)]
    pub(crate) fn pop(&mut self) -> Option<Token> {
        self.count = self.count.checked_sub(1)?;
        self.tokens.get(self.count).copied()
    }
}

impl<'a> Drain<'a> {
    #[inline(always)]
    pub(crate) fn new(
        segments: &'a mut SegmentTable,
        streams: &'a mut Streams,
        rare: &'a mut Rare,
    ) -> Self {
        Self { segments, streams, run: Plain::NONE, count: 0, known: 0, rare }
    }

    /// Takes a completion that does not belong to the run.
    #[inline(never)]
    fn start_run(&mut self, token: Token) {
        self.end_run();
        match self.segments.plain(token) {
            // The end of this segment may be what something in the stream waits for.
            Some(run) if self.streams.is_open(run.pe()) => {
                self.run = run;
                self.count = self.segments.finish_plain(iter::once(token.index()), run) as u32;
            }
            _ => {
                if let Some(place) = self.rare.tokens.get_mut(self.rare.count) {
                    *place = token;
                    self.rare.count += 1;
                }
            }
        }
    }

    fn end_run(&mut self) {
        if self.count != 0 {
            self.segments.count_finished(self.run, self.count);
            self.streams.ended(self.run, self.count);
            self.known += self.count;
        }
        self.run = Plain::NONE;
        self.count = 0;
    }

    /// Ends the last run. The number of segments that have ended; the rare ones are left.
    #[inline(always)]
    pub(crate) fn finish(mut self) -> u32 {
        self.end_run();
        self.known
    }
}

impl Completions for Drain<'_> {
    /// At most [`POLL_BATCH`] times.
    #[inline(always)]
    fn take(&mut self, index: usize) -> bool {
        let exists = self.segments.has(index);
        if exists {
            self.start_run(Token(index as u32));
        }
        exists
    }

    /// Those of the run.
    #[inline(always)]
    fn take_alike(&mut self, indices: impl Iterator<Item = usize>) -> usize {
        if self.run == Plain::NONE {
            return 0;
        }
        let count = self.segments.finish_plain(indices, self.run);
        self.count += count as u32;
        count
    }
}

impl<P: Port> Core<P> {
    /// Applies one completion of bytes that no mechanism moves, except for the rail's own count. Whether it
    /// was of such a segment in flight.
    pub(crate) fn completed(&mut self, token: Token) -> bool {
        let segment = self.segments.away(token);
        let reissued = segment.is_some_and(Segment::is_reissued_write);
        let Some(finished) = self.segments.finish(token) else { return false };
        self.is_no_stray(token);
        if reissued {
            self.reissued_ended(finished.pe);
        }
        self.ended(finished);
        true
    }

    /// Tells the operation and the stream of a segment that was under way that it has ended.
    ///
    /// In this order: a signal chained to the operation is under way before its data is not, so the
    /// stream is never quiet in between.
    #[inline(always)]
    pub(crate) fn ended(&mut self, Finished { pe, op, direction, class }: Finished) {
        if op != OpId::NONE.0 {
            self.op_done(op);
        }
        self.watchdog.has_moved();
        let Some(stream) = self.streams.find_mut(pe) else { return };
        if stream.end(direction, class) {
            self.release(pe);
        }
    }

    pub(crate) fn op_done(&mut self, op: u32) {
        if let Some(then) = self.ops.done(op) {
            self.unchain(Token(then));
        }
    }

    /// A signal's data is delivered: the signal may leave, or is dropped with the rest of a stream
    /// that has failed. Not before fences that came later, which is why it does not look at them.
    pub(crate) fn unchain(&mut self, token: Token) {
        let segment = &mut self.segments[token.0];
        let Segment { pe, rail, .. } = *segment;
        match self.streams.find_mut(pe) {
            Some(stream) if stream.error.is_none() => {
                stream.begin_segment(segment);
                self.queue(token, rail);
            }
            _ => self.drop_segment(token),
        }
    }

    /// Ends a segment that is not posted and will not be.
    #[cold]
    pub(crate) fn drop_segment(&mut self, token: Token) {
        self.end_load(token, false);
        let segment = &self.segments[token.0];
        if segment.kind.has_mover() {
            return self.raise(Event::Dropped(token));
        }
        if !segment.kind.is_rma() {
            self.leave_message(token);
        }
        self.end_dropped(token);
    }

    /// Ends a segment that is not posted and will not be, and that has nothing any more.
    pub(crate) fn end_dropped(&mut self, token: Token) {
        let segment = self.segments[token.0];
        let Segment { pe, stage, .. } = segment;
        let op = segment.op();
        if segment.is_reissued_write() {
            self.reissued_ended(pe);
        }
        self.segments.give(token);
        self.is_no_stray(token);
        if matches!(stage, Stage::Held | Stage::Chained) {
            if op != OpId::NONE.0 {
                self.op_done(op);
            }
        } else {
            self.ended(Finished::of(&segment));
        }
    }

    /// The message of a segment that ends, or its place among the atomics of the fabric.
    fn leave_message(&mut self, token: Token) {
        let segment = self.segments[token.0];
        if segment.kind == Kind::FabricAtomic {
            if let Some(atomics) = self.atomics.as_deref_mut() {
                atomics.give(segment.atomic_slot());
            }
            return;
        }
        if let Some(stream) = self.streams.find_mut(segment.pe) {
            match segment.kind {
                Kind::Fetch => {
                    let link = stream.link();
                    link.turn_fetch(segment.fetch_place());
                    link.apart = link.apart.wrapping_sub(u32::from(segment.stage == Stage::Sent));
                    if segment.message().is_none() {
                        self.messages.restore();
                    }
                }
                // Acknowledged, or the stream has failed and sends nothing more.
                Kind::CountedSignal => {
                    if let Some(tags) = stream.link().tags.as_deref_mut() {
                        tags.give(segment.tag());
                    }
                }
                _ => {}
            }
        }
        match (segment.message(), segment.stage) {
            (None, _) => {}
            // The message itself waits for its acknowledgement.
            (Some(message), Stage::Sent) => self.messages.forget_segment(message),
            // Nothing more goes to its peer, so that nobody counts what has not left.
            (Some(message), _) => self.messages.give(message),
        }
    }
}
