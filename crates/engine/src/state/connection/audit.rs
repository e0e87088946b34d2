//! The audit of a connection: what it counts, beside the segments of its peer.

use crate::port::Direction;
use crate::state::audit::OfPeer;
use crate::state::connection::{BLOCKED, Connection};
use crate::state::discrepancy::{Discrepancy, same};
use crate::state::segment::table::SegmentTable;
use crate::state::segment::{Stage, WriteClass};

impl Connection {
    pub(crate) fn audit(&self, segments: &SegmentTable, found: &OfPeer) -> Result<(), Discrepancy> {
        let [writes, reads] = found.under_way;
        same("writes under way", self.under_way(Direction::Write), writes)?;
        let pending = u32::from(self.has_pending());
        same("reads under way", self.under_way(Direction::Read), reads + pending)?;
        same("words", self.words, found.words)?;
        let older = match self.puts.other() {
            WriteClass::OddPut => found.odd_puts,
            _ => found.even_puts,
        };
        same("older puts", self.older, older)?;
        same("writes that were in doubt", self.lost_writes, found.lost_writes)?;
        let held = self.held.audit(segments, Stage::Held)?;
        same("held writes", held, found.held)?;
        let held_back = self.held_back.audit(segments, Stage::BehindPuts)?;
        same("signals held back", held_back, found.held_back)?;
        let first_held_back = u32::from(self.first_held_back);
        same("signals that wait for older puts", first_held_back, first_held_back.min(held_back))?;
        same("a blocked connection", self.shut & BLOCKED != 0, self.blocked != 0)?;
        let fast_limit = if self.shut == 0 { self.open_limit } else { 0 };
        same("the limit of the fast path", self.fast_limit, fast_limit)?;
        let closes = self.error.is_some() || writes != 0;
        same("whether it is closed, for nothing", self.is_closed() && !closes, false)?;
        same(
            "whether it is closed, with writes held",
            self.is_closed(),
            self.is_closed() || held != 0,
        )?;
        let none = vec![0; found.ahead.len()];
        let ahead = self.ahead.as_deref().unwrap_or(&none);
        same("bytes ahead", ahead, &found.ahead[..])?;
        let has_failed = self.error.is_some();
        self.channel.as_deref().map_or(Ok(()), |channel| channel.audit(segments, found, has_failed))
    }

    pub(crate) fn blocked(&self) -> u32 {
        self.blocked
    }
}
