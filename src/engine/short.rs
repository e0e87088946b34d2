//! The short ways of a lane: what is most common, in few instructions.
//!
//! Each does what a long way does as well, for operations that meet no obstacle: no fence, no lack of
//! room, nothing wrong. At the first obstacle, before anything has happened, it gives up, and the long
//! way does the operation or says what is wrong with it. Nothing in here can panic, so callers need
//! no guard; errors own strings, so none are made before they are needed.

use super::atomic::Atomic;
use super::error::EngineError;
use super::handle::{HandleBytes, HandleView};
use super::ids::{Pe, Token};
use super::lane::{Lane, Request, SignalEngine};
use super::port::{Direction, Local, Port, Transfer};
use super::segment::{NIL, Segment, Stage};
use super::wire::{MAX_EAGER, Spot};

/// A put or a get of the common kind, in what the short way needs of it.
#[derive(Clone, Copy, Debug)]
pub struct Common<'a> {
    /// As in [`Request`].
    pub direction: Direction,
    /// The peer.
    pub pe: Pe,
    /// The peer's handle, as in [`Request`].
    pub handle: &'a HandleBytes,
    /// The remote address, as in [`Request`].
    pub addr: u64,
    /// The local side, without a descriptor.
    pub local: Local,
    /// Bytes to move.
    pub len: usize,
}

/// A put of one piece with its signal, of the common kind.
#[derive(Clone, Copy, Debug)]
pub struct CommonSignal<'a> {
    /// The peer.
    pub pe: Pe,
    /// The peer's handle for the region that the bytes go to.
    pub data_handle: &'a HandleBytes,
    /// Where they go, in the peer's address space.
    pub data_addr: u64,
    /// Local address of the bytes.
    pub from: usize,
    /// How many.
    pub len: usize,
    /// The peer's handle for the region that holds the signal.
    pub handle: &'a HandleBytes,
    /// The signal, in the peer's address space.
    pub addr: u64,
    /// What is done to it; it fetches nothing.
    pub atomic: Atomic,
}

/// Bytes that go with a signal.
#[derive(Clone, Copy)]
struct Data {
    from: usize,
    len: usize,
    to: Spot,
}

impl<P: Port> Lane<P> {
    /// As [`Lane::start`], and in few instructions what is common: one segment, to a peer without a
    /// pending fence, over a rail with room, from memory that needs no descriptor.
    ///
    /// `request` makes the request of the same arguments, for the long way. Nothing in the short one
    /// can panic. The short way does not end a burst: the caller does, where there are bursts.
    ///
    /// # Errors
    /// As [`Lane::start`].
    #[inline(always)]
    pub fn start_at_once<'a>(
        &mut self,
        common: Common<'a>,
        request: impl FnOnce(Common<'a>) -> Request<'a>,
    ) -> Result<(), Box<EngineError>> {
        let Common { direction, pe, handle, addr, local, len } = common;
        'long: {
            let Some(stream) = self.streams.find_mut(pe) else { break 'long };
            let path = stream.next;
            let Some(rail) = self.rails.get_mut(path.rail.index()) else { break 'long };
            let Some(remote) = HandleView::sound(handle) else { break 'long };
            let target = remote.target(addr, len as u64, path.remote);
            let Some((remote, key)) = target else { break 'long };
            if len.wrapping_sub(1) >= stream.short_limit || !rail.is_open() {
                break 'long;
            }
            let Some((token, segment)) = self.segments.take_slot() else { break 'long };
            // All is in its place before the fabric is asked. So if it declines, the segment is one
            // that waits, and what it takes to say so need not be kept through the call.
            let transfer = Transfer { direction, local, len, remote, key };
            segment.make_plain(pe, direction);
            segment.rail = path.rail;
            segment.transfer = transfer;
            stream.begin(direction);
            stream.rotate(&self.paths);
            rail.taken(len);
            let context = segment.context;
            return if self.port.post_short(rail.short, path.to, token, context, &transfer) {
                Ok(())
            } else {
                self.not_at_once(token)
            };
        }
        self.start_at_length(&request(common))
    }

    /// The fabric has not taken a segment that was counted as taken: it is tried again, with reasons,
    /// and waits in its rail's queue if there is no room.
    #[cold]
    #[inline(never)]
    fn not_at_once(&mut self, token: Token) -> Result<(), Box<EngineError>> {
        let segment = &mut self.segments[token.0];
        let Segment { pe, rail, transfer, .. } = *segment;
        segment.stage = Stage::Ready;
        segment.born = self.watchdog.stamp();
        segment.message = NIL;
        self.rails[rail.index()].not_taken(transfer.len);
        self.dispatch(token, rail);
        self.check_stream(pe).map_err(Box::new)
    }

    /// [`Lane::start`], out of the way.
    #[cold]
    #[inline(never)]
    fn start_at_length(&mut self, request: &Request<'_>) -> Result<(), Box<EngineError>> {
        self.start(request).map_err(Box::new)
    }

    /// As [`Lane::put_signal`] for a few bytes: data and signal in one message. Says whether it is on
    /// its way; if not, nothing has happened.
    #[inline(always)]
    pub fn put_signal_at_once(&mut self, put: &CommonSignal<'_>) -> bool {
        let eager = matches!(self.signals, SignalEngine::Auto | SignalEngine::Eager);
        if !eager || put.len.wrapping_sub(1) >= MAX_EAGER {
            return false;
        }
        let Some(data) = HandleView::sound(put.data_handle) else { return false };
        let Some(to) = data.spot(put.data_addr, put.len as u64) else { return false };
        let data = Some(Data { from: put.from, len: put.len, to });
        self.send_at_once(put.pe, put.handle, put.addr, &put.atomic, data)
    }

    /// As [`Lane::atomic`] for an operation that fetches nothing. Says whether it is on its way; if
    /// not, nothing has happened.
    #[inline(always)]
    pub fn atomic_at_once(
        &mut self,
        pe: Pe,
        handle: &HandleBytes,
        addr: u64,
        atomic: &Atomic,
    ) -> bool {
        // A PE's own atomics come after its writes to itself, which the long way sees to.
        if pe == self.me {
            return false;
        }
        self.send_at_once(pe, handle, addr, atomic, None)
    }

    /// Sends an operation on a word, after `data` if there is some, in one message.
    #[inline(always)]
    fn send_at_once(
        &mut self,
        pe: Pe,
        handle: &HandleBytes,
        addr: u64,
        atomic: &Atomic,
        data: Option<Data>,
    ) -> bool {
        let width = atomic.width.bytes();
        let Some(stream) = self.streams.find_mut(pe) else { return false };
        let path = stream.next;
        let Some(rail) = self.rails.get_mut(path.rail.index()) else { return false };
        let Some(word) = HandleView::sound(handle) else { return false };
        let Some(at) = word.spot(addr, width as u64) else { return false };
        // A stream that has failed is closed as well.
        let closed = stream.is_closed();
        let Some(link) = stream.link.as_deref_mut() else { return false };
        // The long way ends a burst.
        if closed || !self.has_short || self.withheld != 0 {
            return false;
        }
        if rail.queued() != 0 || !link.has_room(&self.messages) {
            return false;
        }
        if addr % width as u64 != 0 {
            return false;
        }
        let Some(token) = self.segments.next_token() else { return false };
        let Some((slot, packet)) = self.messages.next_packet() else { return false };
        let numbers = (link.next, link.ack());
        match data {
            None => packet.atomic(self.me, numbers, at, atomic),
            Some(Data { from, len, to }) => {
                let room = packet.put_signal(self.me, numbers, at, atomic, to, len);
                if self.port.load(from, room).is_err() {
                    return false;
                }
            }
        }
        if !self.port.send_short(rail.short, path.rail, path.to, token, packet.bytes()) {
            return false;
        }
        self.messages.take_next(link, slot, token.0, numbers.0);
        let born = self.watchdog.stamp();
        self.segments.take_sent(pe, path.rail, slot, born, width);
        link.carried(numbers.1);
        link.take_number();
        if link.enters_control() {
            self.control.push_back(pe);
        }
        stream.begin(Direction::Write);
        stream.rotate(&self.paths);
        true
    }
}
