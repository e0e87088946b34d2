//! Applying the completions of one poll.

use crate::engine::ids::Token;
use crate::engine::port::POLL_BATCH;
use crate::engine::state::segment::{Finish, Plain, SegmentTable};
use crate::engine::state::stream::Streams;

/// The completions of one poll, on their way into the lane's books.
///
/// Most are plain and of the same peer as the one before. Those are counted, and their stream is told
/// once, when the run ends.
#[derive(Debug)]
pub(in crate::engine) struct Drain<'a> {
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
pub(in crate::engine) struct Rare {
    tokens: [Token; POLL_BATCH],
    count: usize,
}

impl Rare {
    /// None.
    pub(in crate::engine) const EMPTY: Rare = Rare { tokens: [Token(0); POLL_BATCH], count: 0 };

    /// Takes one out, in no order.
    #[inline(always)]
    pub(in crate::engine) fn pop(&mut self) -> Option<Token> {
        self.count = self.count.checked_sub(1)?;
        self.tokens.get(self.count).copied()
    }
}

impl<'a> Drain<'a> {
    #[inline(always)]
    pub(in crate::engine) fn new(
        segments: &'a mut SegmentTable,
        streams: &'a mut Streams,
        rare: &'a mut Rare,
    ) -> Self {
        Self { segments, streams, run: Plain::NONE, count: 0, known: 0, rare }
    }

    /// Takes one completion, at most [`POLL_BATCH`] times; false if there is no segment of that index.
    #[inline(always)]
    pub(in crate::engine) fn take(&mut self, index: usize) -> bool {
        match self.segments.finish_plain(index, self.run) {
            Finish::Done => {
                self.count += 1;
                true
            }
            Finish::NoSlot => false,
            Finish::Other => {
                self.start_run(Token(index as u32));
                true
            }
        }
    }

    /// Takes a completion that does not belong to the run.
    #[inline(never)]
    fn start_run(&mut self, token: Token) {
        self.end_run();
        match self.segments.plain(token) {
            // A closed stream may be opened by the end of this segment.
            Some(run) if self.streams.is_open(run.pe()) => {
                self.run = run;
                self.segments.finish_plain(token.index(), run);
                self.count = 1;
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
    pub(in crate::engine) fn finish(mut self) -> u32 {
        self.end_run();
        self.known
    }
}
