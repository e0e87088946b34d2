//! A connection: everything a lane sends to one peer.

#[cfg(any(test, feature = "audit"))]
mod audit;
pub(crate) mod connections;
#[cfg(test)]
mod tests;

use crate::error::EngineError;
use crate::ids::Pe;
use crate::port::Direction;
use crate::rails::counters::PeerCounters;
use crate::rails::paths::{Hop, PathTable};
use crate::state::messages::reliable_channel::ReliableChannel;
use crate::state::segment::queue::Queue;
use crate::state::segment::table::SegmentTable;
use crate::state::segment::{Follows, Segment, WriteClass};
use crate::state::watch::Watch;
use crate::wire::handle::{HandleView, Identity};
use crate::wire::seal::Receiver;
use crate::wire::window::Seq;

/// Writes must not go out right away: a fence has not been passed, or the connection has failed.
/// While it has not failed, some write is outstanding then, whose completion opens it again.
const CLOSED: u8 = 1;

const HAS_PENDING: u8 = 2;

const BLOCKED: u8 = 4;

const SLOW: u8 = 8;

/// State of one (lane, peer). Opened at the first operation to the peer.
///
/// # Fences
/// Writes issued after a fence are *held*, none is sent, until every write before it is delivered.
/// So whether the fence is passed needs no order of completions, however they come: it is when no
/// write that was sent is outstanding. Then the writes held behind that fence go out, and if there
/// was another fence after them, those behind it wait in the same way.
///
/// What leaves as a request is ordered by its target. So once every write that was sent is a
/// request that has left, the fence is passed for other requests: they say that they come behind
/// all with a number below a *mark*. Everything else waits until they are delivered. While anything
/// is held, whatever comes later is held behind it: nothing waits for requests without end.
///
/// # Signals sent apart from their data
/// A signal takes effect behind the puts before it, and holds up none after it. So puts are of two
/// generations. A signal that finds puts under way is *held back*, and with the first one the
/// generation changes: those under way are the *older* ones, those that begin from now on the
/// newer. When the last older one has ended, the signals that were held back before any newer put
/// leave. For the others the generation changes again: newer ones become older ones. Every put is
/// waited for by at most the signals after it, and none waits for puts without end. A put that has
/// left as a request is no put any longer: the target sees to it.
///
/// A signal that comes behind signals as well counts as a put itself from the moment it waits for
/// nothing until it has left: an older one if it was held back, so that those behind it stay.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) pe: Pe,
    /// What the peer's handles with keys say first, once one was used; each of its rails that a
    /// path leads to has a key in these.
    handles: Identity,
    pub(crate) receiver: Receiver,
    /// The path its next segment takes, and with it the rail.
    pub(crate) next: Hop,
    /// Bytes of the longest segment that may go out in the fast path; 0 while none may.
    pub(crate) fast_limit: usize,
    /// Why nothing may go out in the fast path: [`CLOSED`], [`HAS_PENDING`], [`BLOCKED`], [`SLOW`];
    /// `fast_limit` is 0 while there is a reason.
    shut: u8,
    /// What `fast_limit` is otherwise.
    open_limit: usize,
    /// Segments that have ever been posted or ready, by [`Direction`], modulo 2^32. Held ones do
    /// not count.
    begun: [u32; 2],
    ended: [u32; 2],
    /// Writes that were submitted before the last fence that found some under way.
    submitted_at_fence: u32,
    /// Writes under way that are no puts: atomics, and signals without bytes.
    words: u32,
    puts: WriteClass,
    /// Puts under way of the other class. None while no signal is held back, but for one that was
    /// and has not left.
    older: u32,
    /// Signals that wait for puts, oldest first. They are under way.
    held_back: Queue,
    /// How many of them wait for the older puts alone. A lane has room for fewer messages than this
    /// counts.
    first_held_back: u16,
    epoch: u32,
    /// The latest fence that is passed for requests, and the number that they come behind; none if
    /// everything before is delivered.
    passed: u32,
    mark: Option<Seq>,
    /// Writes that wait behind a fence, in issue order, each with the fence's epoch.
    pub(crate) held: Queue,
    /// Segments that wait by themselves, on all rails: see [`crate::posting::transmit::blocked`].
    blocked: u32,
    /// Writes that were in doubt and have not ended. Messages wait until there are none.
    pub(crate) lost_writes: u32,
    /// Bytes that each rail has ahead for the peer, of segments whose rail was chosen by load.
    ahead: Option<Box<[u64]>>,
    /// Messages to and from the peer, from the first one on.
    pub(crate) channel: Option<Box<ReliableChannel>>,
    pub(crate) watch: Watch,
    /// The first failure; nothing more is sent to the peer after it.
    pub(crate) error: Option<Box<EngineError>>,
}

const FIRST: u32 = u32::MAX - 9;

impl Connection {
    pub(crate) fn new(pe: Pe, receiver: Receiver, next: Hop, fast_limit: usize) -> Self {
        Self {
            pe,
            handles: Identity::of(pe),
            receiver,
            next,
            fast_limit,
            shut: if fast_limit == 0 { SLOW } else { 0 },
            open_limit: fast_limit,
            begun: [FIRST; 2],
            ended: [FIRST; 2],
            submitted_at_fence: FIRST,
            words: 0,
            puts: WriteClass::EvenPut,
            older: 0,
            held_back: Queue::EMPTY,
            first_held_back: 0,
            epoch: FIRST,
            passed: FIRST,
            mark: None,
            held: Queue::EMPTY,
            blocked: 0,
            lost_writes: 0,
            ahead: None,
            channel: None,
            watch: Watch::default(),
            error: None,
        }
    }

    #[inline(always)]
    pub(crate) fn handles(&self) -> Identity {
        self.handles
    }

    /// A handle of the peer's is used. The fast path takes those like it from here on, if they have
    /// a key for each rail that a path leads to.
    pub(crate) fn learn(&mut self, handle: &HandleView<'_>, paths: &PathTable) {
        if self.handles != handle.identity() && handle.rails() > paths.last_far_rail(self.pe).0 {
            self.handles = handle.identity();
        }
    }

    #[inline]
    pub(crate) fn check(&self) -> Result<(), EngineError> {
        match &self.error {
            None => Ok(()),
            Some(failed) => Err((**failed).clone()),
        }
    }

    pub(crate) fn counters(&self) -> PeerCounters {
        let [mut writes, reads] = self.begun.map(|begun| begun.wrapping_sub(FIRST));
        writes = writes.wrapping_add(self.held.len());
        let (sent, received) = self.channel.as_deref().map_or((0, 0), ReliableChannel::counts);
        PeerCounters { pe: self.pe, writes, reads, sent, received }
    }

    #[inline]
    pub(crate) fn channel(&mut self) -> &mut ReliableChannel {
        self.channel.get_or_insert_with(|| Box::new(ReliableChannel::new(self.pe)))
    }

    pub(crate) fn block(&mut self) {
        self.blocked += 1;
        self.set_shut(BLOCKED, true);
    }

    pub(crate) fn unblock(&mut self) {
        self.blocked -= 1;
        self.set_shut(BLOCKED, self.blocked != 0);
    }

    pub(crate) fn has_blocked(&self) -> bool {
        self.blocked != 0
    }

    fn set_shut(&mut self, reason: u8, on: bool) {
        self.shut = if on { self.shut | reason } else { self.shut & !reason };
        self.fast_limit = if self.shut == 0 { self.open_limit } else { 0 };
    }

    pub(crate) fn ahead(&mut self, rails: usize) -> &mut [u64] {
        self.ahead.get_or_insert_with(|| vec![0; rails].into())
    }

    /// Whether everything issued to the peer is delivered and everything read has landed. Something
    /// is held only while something else is outstanding.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        self.begun == self.ended
    }

    pub(crate) fn has_unheard(&self) -> bool {
        self.channel.as_deref().is_some_and(|channel| channel.unacknowledged() != 0)
    }

    #[inline]
    fn under_way(&self, direction: Direction) -> u32 {
        self.begun[direction as usize].wrapping_sub(self.ended[direction as usize])
    }

    pub(crate) fn ended(&self) -> u32 {
        self.ended[0].wrapping_add(self.ended[1])
    }

    pub(crate) fn outstanding(&self, direction: Direction) -> u32 {
        let held = if direction == Direction::Write { self.held.len() } else { 0 };
        self.under_way(direction) + held
    }

    #[inline(always)]
    pub(crate) fn rotate(&mut self, paths: &PathTable) {
        paths.advance(&mut self.next);
    }

    /// Whether writes must not go out right away.
    #[inline(always)]
    pub(crate) fn is_closed(&self) -> bool {
        self.shut & CLOSED != 0
    }

    #[inline(always)]
    pub(crate) fn bars_fast_path(&self) -> bool {
        self.shut != 0
    }

    #[inline(always)]
    pub(crate) fn has_pending(&self) -> bool {
        self.shut & HAS_PENDING != 0
    }

    /// From here on operations for the peer are pending, or no longer. While they are the
    /// connection is not quiet: something that holds up no fence counts as under way.
    pub(crate) fn set_pending(&mut self, has_pending: bool) {
        if self.has_pending() == has_pending {
            return;
        }
        self.set_shut(HAS_PENDING, has_pending);
        let begun = &mut self.begun[Direction::Read as usize];
        *begun = if has_pending { begun.wrapping_add(1) } else { begun.wrapping_sub(1) };
    }

    pub(crate) fn writes_submitted(&self) -> u32 {
        self.begun[Direction::Write as usize].wrapping_add(self.held.len())
    }

    pub(crate) fn is_first_behind_fence(&self) -> bool {
        let alone = self.outstanding(Direction::Write) == 1;
        alone || self.writes_submitted() == self.submitted_at_fence.wrapping_add(1)
    }

    pub(crate) fn holds_back(&self) -> bool {
        !self.held_back.is_empty()
    }

    pub(crate) fn all_under_way(&self) -> u32 {
        self.outstanding(Direction::Write) + self.under_way(Direction::Read)
    }

    /// Writes must not go out right away.
    pub(crate) fn close(&mut self) {
        self.submitted_at_fence = self.writes_submitted();
        self.epoch = self.epoch.wrapping_add(1);
        self.set_shut(CLOSED, true);
    }

    pub(crate) fn passes_requests(&mut self) -> bool {
        if !self.held.is_empty() || self.error.is_some() {
            return false;
        }
        if self.passed != self.epoch && self.all_placed() {
            self.pass_requests(self.epoch);
        }
        self.passed == self.epoch
    }

    pub(crate) fn mark(&self) -> Option<Seq> {
        self.mark
    }

    fn all_placed(&self) -> bool {
        let placed = self.channel.as_deref().map_or(0, ReliableChannel::placed);
        self.under_way(Direction::Write) == placed
    }

    pub(crate) fn place_put(&mut self, class: WriteClass) {
        self.leave_class(Direction::Write, class);
        self.words += 1;
    }

    pub(crate) fn displace(&mut self, segment: &mut Segment) {
        self.words -= 1;
        segment.class = self.puts;
    }

    #[inline(always)]
    pub(crate) fn begin(&mut self, direction: Direction) {
        let begun = &mut self.begun[direction as usize];
        *begun = begun.wrapping_add(1);
    }

    #[inline(always)]
    pub(crate) fn begin_word(&mut self) {
        self.words += 1;
        self.begin(Direction::Write);
    }

    pub(crate) fn begin_segment(&mut self, segment: &mut Segment) {
        match segment.class {
            WriteClass::Word => self.words += 1,
            WriteClass::EvenPut | WriteClass::OddPut => segment.class = self.puts,
        }
        self.begin(segment.direction);
    }

    pub(crate) fn begin_part(&mut self, segment: &mut Segment, of: WriteClass) {
        segment.class = of;
        match (segment.direction, of) {
            (Direction::Read, _) => {}
            (Direction::Write, WriteClass::Word) => self.words += 1,
            (Direction::Write, class) => self.older += u32::from(class != self.puts),
        }
        self.begin(segment.direction);
    }

    #[inline(always)]
    pub(crate) fn put_class(&self) -> WriteClass {
        self.puts
    }

    #[inline(always)]
    pub(crate) fn puts_under_way(&self) -> u32 {
        self.under_way(Direction::Write).wrapping_sub(self.words)
    }

    #[inline(always)]
    pub(crate) fn is_waited_for(&self) -> bool {
        self.is_closed() && self.may_pass() || self.older == 0 && !self.held_back.is_empty()
    }

    #[cold]
    fn may_pass(&self) -> bool {
        self.under_way(Direction::Write) == 0 || !self.held.is_empty() && self.all_placed()
    }

    #[inline(always)]
    fn leave_class(&mut self, direction: Direction, class: WriteClass) {
        if direction == Direction::Read {
            return;
        }
        if class == WriteClass::Word {
            self.words -= 1;
        } else if class != self.puts {
            self.older -= 1;
        }
    }

    #[inline(always)]
    pub(crate) fn end(&mut self, direction: Direction, class: WriteClass) -> bool {
        let ended = &mut self.ended[direction as usize];
        *ended = ended.wrapping_add(1);
        self.leave_class(direction, class);
        self.is_waited_for()
    }

    pub(crate) fn replaced(&mut self, direction: Direction, class: WriteClass) -> bool {
        let begun = &mut self.begun[direction as usize];
        *begun = begun.wrapping_sub(1);
        self.leave_class(direction, class);
        self.is_waited_for()
    }

    #[inline(always)]
    pub(crate) fn end_messages(&mut self, count: u32) {
        let ended = &mut self.ended[Direction::Write as usize];
        *ended = ended.wrapping_add(count);
        self.words -= count;
    }

    pub(crate) fn hold_back(&mut self, segments: &mut SegmentTable, index: u32) {
        debug_assert!(self.puts_under_way() != 0, "a signal waits for nothing");
        if self.held_back.is_empty() && self.older == 0 {
            self.change_generation();
        }
        let is_first = u32::from(self.first_held_back) == self.held_back.len();
        if is_first && self.puts_under_way() == self.older {
            self.first_held_back += 1;
        }
        self.held_back.push(segments, index);
    }

    fn change_generation(&mut self) {
        debug_assert!(self.older == 0, "there are two generations");
        self.older = self.puts_under_way();
        self.puts = self.puts.other();
    }

    pub(crate) fn go_first(&mut self, segment: &mut Segment) {
        if std::mem::replace(&mut segment.follows, Follows::Nothing) == Follows::All {
            self.words -= 1;
            segment.class = self.puts;
        }
    }

    pub(crate) fn let_go(&mut self, segments: &mut SegmentTable) -> Option<u32> {
        while self.older == 0 && !self.held_back.is_empty() {
            if self.first_held_back != 0 {
                self.first_held_back -= 1;
                let index = self.held_back.pop(segments)?;
                let segment = &mut segments[index];
                if std::mem::replace(&mut segment.follows, Follows::Nothing) == Follows::All {
                    self.words -= 1;
                    segment.class = self.puts.other();
                    self.older += 1;
                }
                return Some(index);
            }
            self.change_generation();
            self.first_held_back = self.held_back.len() as u16;
        }
        None
    }

    pub(crate) fn take_held_back(&mut self) -> Queue {
        self.first_held_back = 0;
        std::mem::replace(&mut self.held_back, Queue::EMPTY)
    }

    #[inline]
    pub(crate) fn fence(&mut self) {
        if self.under_way(Direction::Write) != 0 {
            self.close();
        }
    }

    pub(crate) fn fence_again(&mut self) {
        if self.is_closed() && self.writes_submitted() != self.submitted_at_fence {
            self.fence();
        }
    }

    fn pass_requests(&mut self, epoch: u32) {
        self.passed = epoch;
        self.mark = self.channel.as_deref().map(|channel| channel.next);
    }

    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// If all writes sent are delivered: the epoch whose held writes may go out now, and that all
    /// of them may. Without any the connection is open again. If all of them are requests that have
    /// left: the same, for requests.
    pub(crate) fn passed(&mut self, segments: &SegmentTable) -> Option<(u32, bool)> {
        if self.error.is_some() {
            return None;
        }
        let front = self.held.front();
        let epoch = front.map_or(self.epoch, |front| segments[front].fence());
        if self.under_way(Direction::Write) != 0 {
            let is_request = front.is_some_and(|front| segments[front].is_request());
            if !is_request || !self.all_placed() {
                return None;
            }
            if self.passed != epoch {
                self.pass_requests(epoch);
            }
            return Some((epoch, false));
        }
        (self.passed, self.mark) = (epoch, None);
        // A fence after the writes that go out now closes the connection behind them.
        if epoch == self.epoch {
            self.set_shut(CLOSED, false);
        }
        Some((epoch, true))
    }
}
