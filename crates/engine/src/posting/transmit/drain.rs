//! The completions of one poll: plain ones are counted at a stretch, the others kept for
//! [`super::completions`].

use std::iter;

use crate::ids::WrId;
use crate::port::{Completions, POLL_BATCH};
use crate::posting::peers::Peers;
use crate::state::segment::Plain;
use crate::state::segment::table::SegmentTable;

/// The completions of one poll, on their way into the lane's books.
///
/// Most are plain and of the same peer as the one before. Those are counted, and their connection
/// is told once, when the run ends. A poll goes on with what the one before ended with.
#[derive(Debug)]
pub(crate) struct Drain<'a> {
    segments: &'a mut SegmentTable,
    peers: &'a mut Peers,
    run: Plain,
    count: u32,
    /// Segments of the runs before.
    known: u32,
    rare: &'a mut Rare,
}

/// Completions that take more than counting, and what the others were. Kept, so that an idle poll
/// need not make room for them.
#[derive(Debug)]
pub(crate) struct Rare {
    wr_ids: [WrId; POLL_BATCH],
    count: usize,
    /// What the last run of the poll before was of.
    last: Plain,
}

impl Rare {
    /// None.
    pub(crate) const EMPTY: Rare =
        Rare { wr_ids: [WrId(0); POLL_BATCH], count: 0, last: Plain::NONE };

    #[inline(always)]
    pub(crate) fn pop(&mut self) -> Option<WrId> {
        self.count = self.count.checked_sub(1)?;
        self.wr_ids.get(self.count).copied()
    }
}

impl<'a> Drain<'a> {
    #[inline(always)]
    pub(crate) fn new(
        segments: &'a mut SegmentTable,
        peers: &'a mut Peers,
        rare: &'a mut Rare,
    ) -> Self {
        let run = if peers.has_no_waiter(rare.last.pe()) { rare.last } else { Plain::NONE };
        Self { segments, peers, run, count: 0, known: 0, rare }
    }

    #[inline(never)]
    fn start_run(&mut self, wr_id: WrId) {
        self.end_run();
        match self.segments.plain(wr_id) {
            // The end of this segment may be what something in the connection waits for.
            Some(run) if self.peers.has_no_waiter(run.pe()) => {
                self.run = run;
                self.count = self.segments.finish_plain(iter::once(wr_id.index()), run) as u32;
            }
            _ => {
                if let Some(place) = self.rare.wr_ids.get_mut(self.rare.count) {
                    *place = wr_id;
                    self.rare.count += 1;
                }
            }
        }
    }

    #[inline(always)]
    fn end_run(&mut self) {
        if self.count != 0 {
            self.segments.count_finished(self.run, self.count);
            self.peers.ended(self.run, self.count);
            self.known += self.count;
        }
        self.run = Plain::NONE;
        self.count = 0;
    }

    #[inline(always)]
    pub(crate) fn finish(&mut self) -> u32 {
        self.rare.last = self.run;
        self.end_run();
        self.known
    }
}

impl Completions for Drain<'_> {
    #[inline(always)]
    fn take(&mut self, index: usize) -> bool {
        let exists = self.segments.has(index);
        if exists {
            self.start_run(WrId(index as u32));
        }
        exists
    }

    #[inline(always)]
    fn take_alike(&mut self, indices: impl ExactSizeIterator<Item = usize>) -> usize {
        if self.run == Plain::NONE {
            return 0;
        }
        let count = self.segments.finish_plain(indices, self.run);
        self.count += count as u32;
        count
    }
}
