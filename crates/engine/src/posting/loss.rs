//! Lost segments: posted, or to be posted, on a path that has failed, so that nobody knows what becomes of them.
//!
//! They wait here until [`crate::recovery::reissue`] posts them again. If one completes after all, in the
//! meantime, it has ended, as always.

use crate::ids::{Pe, Token};
use crate::port::{Direction, Port};
use crate::posting::Core;
use crate::state::segment::waits::Waits;
use crate::state::segment::{Kind, Stage};

impl<P: Port> Core<P> {
    /// A segment is lost sight of; `posted` if the fabric has taken it.
    pub(crate) fn lose(&mut self, token: Token, posted: bool) {
        // Its slot stays a stripe's until it ends; its rail is not waited for.
        self.take_load(token, false);
        let stamp = self.watchdog.stamp();
        let segment = &mut self.segments[token.0];
        let (pe, direction) = (segment.pe, segment.transfer.direction);
        let waits = match (posted, direction) {
            (false, _) => Waits::NONE,
            (true, Direction::Read) => Waits::TOKEN,
            (true, Direction::Write) => Waits::TOKEN.and(Waits::TARGET),
        };
        segment.lose(waits);
        let is_new = matches!(segment.kind, Kind::Transfer | Kind::Stripe);
        if is_new {
            segment.kind = Kind::Reissued;
            segment.no_message();
        }
        segment.born = stamp;
        if let (true, Direction::Write, Some(stream)) =
            (is_new, direction, self.streams.find_mut(pe))
        {
            stream.lost_writes += 1;
            stream.fence();
        }
        self.lost.push(token);
        self.watchdog.hurry();
    }

    /// The fabric does not have the token of a segment that was lost sight of.
    pub(crate) fn token_is_back(&mut self, token: Token) {
        let segment = &mut self.segments[token.0];
        segment.set_waits(segment.waits().without(Waits::TOKEN));
    }

    /// A segment that was lost sight of has completed: whether the fabric had its token. It counts as posted
    /// then.
    pub(crate) fn came_back(&mut self, token: Token) -> bool {
        let segment = &mut self.segments[token.0];
        let had = segment.waits().has(Waits::TOKEN);
        if had {
            segment.stage = Stage::Posted;
        }
        had
    }

    /// A write that was lost sight of has ended.
    pub(super) fn reissued_ended(&mut self, pe: Pe) {
        if let Some(stream) = self.streams.find_mut(pe) {
            stream.lost_writes = stream.lost_writes.saturating_sub(1);
        }
        self.watchdog.hurry();
    }
}
