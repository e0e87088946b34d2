//! A stream: everything a lane sends to one peer.

use super::error::EngineError;
use super::ids::{Pe, RailId};
use super::link::Link;
use super::pairing::first_rail;
use super::port::Direction;
use super::segment::{Queue, SegmentTable};

/// State of one (lane, peer). Opened at the first operation to the peer.
///
/// # Fences
/// Writes issued after a fence are *held*, none is sent, until every write before it is delivered.
/// So whether the fence is passed needs no order of completions, however they come: it is when no
/// write that was sent is outstanding. Then the writes held behind that fence go out, and if there
/// was another fence after them, those behind it wait in the same way.
#[derive(Debug)]
pub(super) struct Stream {
    /// The peer.
    pub(super) pe: Pe,
    /// The rail its next segment takes.
    pub(super) next_rail: u8,
    /// Writes must not go out right away: a fence has not been passed, or the stream has failed.
    /// While it has not failed, some write is outstanding then, whose completion opens it again.
    pub(super) closed: bool,
    /// Segments posted or ready, by [`Direction`]. Held ones do not count.
    under_way: [u32; 2],
    /// Rises with each fence that found writes outstanding.
    epoch: u32,
    /// Writes that wait behind a fence, in issue order, each with the fence's epoch.
    pub(super) held: Queue,
    /// Messages to and from the peer, from the first one on.
    pub(super) link: Option<Box<Link>>,
    /// When the last segment ended, on the watchdog's clock.
    pub(super) moved: u32,
    /// Warnings that the watchdog has given for what is outstanding.
    pub(super) warned: u32,
    /// The first failure; nothing more is sent to the peer after it.
    pub(super) error: Option<Box<EngineError>>,
}

impl Stream {
    pub(super) fn new(pe: Pe, first_rail: u8) -> Self {
        Self {
            pe,
            next_rail: first_rail,
            closed: false,
            under_way: [0; 2],
            epoch: 0,
            held: Queue::EMPTY,
            link: None,
            moved: 0,
            warned: 0,
            error: None,
        }
    }

    /// The stream's failure, if there was one.
    #[inline]
    pub(super) fn check(&self) -> Result<(), EngineError> {
        match &self.error {
            None => Ok(()),
            Some(failed) => Err((**failed).clone()),
        }
    }

    /// The message side, made if need be.
    #[inline]
    pub(super) fn link(&mut self) -> &mut Link {
        self.link.get_or_insert_with(|| Box::new(Link::new()))
    }

    /// Whether everything issued to the peer is delivered and everything read has landed. Something
    /// is held only while something else is outstanding.
    #[inline]
    pub(super) fn is_quiet(&self) -> bool {
        self.under_way == [0; 2]
    }

    /// Segments that have not ended, held ones among the writes.
    pub(super) fn outstanding(&self, direction: Direction) -> u32 {
        let held = if direction == Direction::Write { self.held.len() } else { 0 };
        self.under_way[direction as usize] + held
    }

    /// The next segment takes the rail after this one: round robin.
    #[inline(always)]
    pub(super) fn rotate(&mut self, used: RailId, n_rails: usize) {
        let next = used.0 + 1;
        self.next_rail = if usize::from(next) == n_rails { 0 } else { next };
    }

    /// A segment is under way.
    #[inline(always)]
    pub(super) fn begin(&mut self, direction: Direction) {
        self.under_way[direction as usize] += 1;
    }

    /// A segment that was under way has ended. Whether the stream should be opened now.
    #[inline(always)]
    pub(super) fn end(&mut self, direction: Direction) -> bool {
        let left = self.under_way[direction as usize] - 1;
        self.under_way[direction as usize] = left;
        left == 0 && self.closed
    }

    /// Writes from here on come after those before.
    #[inline]
    pub(super) fn fence(&mut self) {
        if self.under_way[Direction::Write as usize] != 0 {
            self.epoch += 1;
            self.closed = true;
        }
    }

    /// The fence that a write issued now waits for, while the stream is closed.
    pub(super) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// If all writes sent are delivered: the epoch whose held writes may go out now. Without any
    /// the stream is open again.
    pub(super) fn passed(&mut self, segments: &SegmentTable) -> Option<u32> {
        if self.error.is_some() || self.under_way[Direction::Write as usize] != 0 {
            return None;
        }
        let epoch = self.held.front().map_or(self.epoch, |front| segments[front].epoch);
        // A fence after the writes that go out now closes the stream behind them.
        self.closed = epoch != self.epoch;
        Some(epoch)
    }
}

/// The streams of a lane, by PE.
///
/// A peer never talked to costs the eight bytes of an empty place.
#[derive(Debug)]
pub(super) struct Streams {
    places: Box<[Option<Box<Stream>>]>,
    me: Pe,
    rails: u8,
}

impl Streams {
    pub(super) fn new(me: Pe, n_pes: u32, rails: u8) -> Self {
        Self { places: (0..n_pes).map(|_| None).collect(), me, rails }
    }

    /// PEs of the job.
    pub(super) fn n_pes(&self) -> u32 {
        self.places.len() as u32
    }

    /// The stream to a peer, if anything was ever sent to it.
    #[inline]
    pub(super) fn find(&self, pe: Pe) -> Option<&Stream> {
        self.places.get(pe.index())?.as_deref()
    }

    /// As [`Streams::find`], to change it.
    #[inline(always)]
    pub(super) fn find_mut(&mut self, pe: Pe) -> Option<&mut Stream> {
        self.places.get_mut(pe.index())?.as_deref_mut()
    }

    /// The stream to a peer, opened if need be. None for a PE outside the job.
    #[inline]
    pub(super) fn open(&mut self, pe: Pe) -> Option<&mut Stream> {
        let place = self.places.get_mut(pe.index())?;
        let first_rail = || first_rail(self.me, pe, self.rails).0;
        Some(place.get_or_insert_with(|| Box::new(Stream::new(pe, first_rail()))))
    }

    /// All streams opened so far, to change them.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Stream> {
        self.places.iter_mut().filter_map(Option::as_deref_mut)
    }
}
