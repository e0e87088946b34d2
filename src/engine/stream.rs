//! A stream: everything a lane sends to one peer.

use super::error::EngineError;
use super::ids::Pe;
use super::pairing::first_rail;
use super::port::Direction;
use super::segment::{IssueOrder, NIL, Queue, SegmentTable};

/// State of one (lane, peer). Opened at the first operation to the peer.
#[derive(Debug)]
pub(super) struct Stream {
    /// The peer.
    pub(super) pe: Pe,
    /// The rail its next segment takes.
    pub(super) next_rail: u8,
    /// The `seq` its next segment gets.
    pub(super) issued: u64,
    /// While not zero: writes issued from here on wait until all writes below this `seq` are
    /// delivered. Zero once that is so, and when there was nothing to wait for.
    pub(super) fence: u64,
    /// Writes and reads under way, each in issue order.
    writes: IssueOrder,
    reads: IssueOrder,
    /// Writes that wait behind a fence, in issue order. Their `after` values never fall, so only
    /// the front need be looked at.
    pub(super) held: Queue,
    /// The first failure; nothing more is sent to the peer after it.
    pub(super) error: Option<Box<EngineError>>,
    /// What the watchdog saw when it last looked.
    pub(super) watch: [Watch; 2],
}

/// The oldest segment of one direction, and when it was first seen to be the oldest.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Watch {
    /// `seq` of the segment, plus one; zero for none.
    pub(super) seq: u64,
    /// When it was first seen, in nanoseconds of the watchdog's count.
    pub(super) since: u64,
    /// How many warnings have been given for it.
    pub(super) warned: u32,
}

impl Stream {
    pub(super) fn new(pe: Pe, first_rail: u8) -> Self {
        Self {
            pe,
            next_rail: first_rail,
            issued: 1,
            fence: 0,
            writes: IssueOrder::EMPTY,
            reads: IssueOrder::EMPTY,
            held: Queue::EMPTY,
            error: None,
            watch: [Watch::default(); 2],
        }
    }

    /// Segments of one direction, in issue order.
    #[inline]
    pub(super) fn order(&self, direction: Direction) -> &IssueOrder {
        match direction {
            Direction::Write => &self.writes,
            Direction::Read => &self.reads,
        }
    }

    #[inline]
    pub(super) fn order_mut(&mut self, direction: Direction) -> &mut IssueOrder {
        match direction {
            Direction::Write => &mut self.writes,
            Direction::Read => &mut self.reads,
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

    /// Whether a write may go out right away: nothing has failed, and no fence is pending.
    #[inline(always)]
    pub(super) fn is_open(&self) -> bool {
        self.error.is_none() && self.fence == 0
    }

    /// Whether everything issued to the peer is delivered and everything read has landed.
    #[inline]
    pub(super) fn is_quiet(&self) -> bool {
        self.writes.is_empty() && self.reads.is_empty()
    }

    /// Every write with a `seq` below this one is delivered. Constant time: the oldest write that
    /// is not delivered bounds the prefix.
    #[inline]
    pub(super) fn delivered_below(&self, table: &SegmentTable) -> u64 {
        self.writes.oldest().map_or(self.issued, |oldest| table[oldest].seq)
    }
}

/// The streams of a lane, found by peer.
///
/// A peer never talked to costs the four bytes of its index.
#[derive(Debug)]
pub(super) struct Streams {
    index: Box<[u32]>,
    open: Vec<Stream>,
    me: Pe,
    rails: u8,
}

impl Streams {
    pub(super) fn new(me: Pe, n_pes: u32, rails: u8) -> Self {
        Self { index: vec![NIL; n_pes as usize].into_boxed_slice(), open: Vec::new(), me, rails }
    }

    /// PEs of the job.
    pub(super) fn n_pes(&self) -> u32 {
        self.index.len() as u32
    }

    /// The stream to a peer, if anything was ever sent to it.
    #[inline]
    pub(super) fn find(&self, pe: Pe) -> Option<&Stream> {
        self.open.get(*self.index.get(pe.index())? as usize)
    }

    /// As [`Streams::find`], to change it.
    #[inline]
    pub(super) fn find_mut(&mut self, pe: Pe) -> Option<&mut Stream> {
        self.open.get_mut(*self.index.get(pe.index())? as usize)
    }

    /// The stream to a peer and its index, if there is one.
    #[inline(always)]
    pub(super) fn lookup(&mut self, pe: Pe) -> Option<(u32, &mut Stream)> {
        let index = *self.index.get(pe.index())?;
        self.open.get_mut(index as usize).map(|stream| (index, stream))
    }

    /// Index of the stream to a peer, opened if need be. None for a PE outside the job.
    #[inline]
    pub(super) fn open(&mut self, pe: Pe) -> Option<u32> {
        let index = *self.index.get(pe.index())?;
        if index != NIL { Some(index) } else { Some(self.open_new(pe)) }
    }

    #[cold]
    fn open_new(&mut self, pe: Pe) -> u32 {
        let index = self.open.len() as u32;
        let first_rail = first_rail(self.me, pe, self.rails).0;
        self.open.push(Stream::new(pe, first_rail));
        self.index[pe.index()] = index;
        index
    }

    /// Number of streams opened so far.
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }
}

impl std::ops::Index<u32> for Streams {
    type Output = Stream;
    #[inline]
    fn index(&self, index: u32) -> &Stream {
        &self.open[index as usize]
    }
}

impl std::ops::IndexMut<u32> for Streams {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut Stream {
        &mut self.open[index as usize]
    }
}
