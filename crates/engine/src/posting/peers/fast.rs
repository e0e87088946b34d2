//! The fast path of messages about words, and of puts that are counted for the next signal: what
//! meets no obstacle, in few instructions.
//!
//! At the first obstacle, before anything has happened, it gives up; the general way
//! ([`super::requests`]) takes over.

use crate::port::Port;
use crate::posting::Core;
use crate::request::{AtomicRequest, Request, Rest};
use crate::state::batch::Batch;
use crate::state::connection::Connection;
use crate::state::counts::{Counting, Tags};
use crate::state::messages::table::MessageTable;
use crate::state::segment::WriteClass;
use crate::wire::handle::HandleView;
use crate::wire::message::Spot;

/// Of a request that comes behind all requests before it.
const BEHIND_ALL: u16 = 1;

/// Bytes that go with a signal.
#[derive(Clone, Copy)]
pub(crate) struct Data {
    pub(crate) from: usize,
    pub(crate) len: usize,
    pub(crate) to: Spot,
}

impl<P: Port> Core<P> {
    /// Posts a put that is counted for the next signal; see
    /// [`Transmit::try_post`](crate::posting::transmit::Transmit::try_post).
    ///
    /// # Errors
    /// As there.
    #[inline(always)]
    pub(crate) fn try_post_counted<'a>(
        &mut self,
        request: Request<'a>,
        batch: Batch,
    ) -> Result<(), Rest<'a>> {
        let Self { transmit, peers, .. } = self;
        let Some(connection) = peers.connections.find_mut(request.pe) else {
            return Err(Rest::Untried(request));
        };
        let tags = |connection: &'_ mut Connection| -> Option<Counting> {
            connection.channel.as_deref_mut()?.tags.as_deref_mut()?.open_fast()
        };
        let Some(open) = tags(connection) else { return Err(Rest::Untried(request)) };
        let mark = peers.marks.of_mine(request.pe, open.tag);
        let tried = transmit.try_post_as::<true>(connection, request, batch, open.tag, mark);
        if !matches!(tried, Err(Rest::Untried(_))) {
            let channel = connection.channel.as_deref_mut();
            if let Some(tags) = channel.and_then(|channel| channel.tags.as_deref_mut()) {
                tags.keep_open(Counting { segments: open.segments + 1, ..open });
            }
        }
        tried
    }

    /// Sends an operation on a word, after `data` if there is some, in one message. `ORDERED`:
    /// signals come behind signals.
    #[inline(always)]
    pub(crate) fn try_send<const ORDERED: bool>(
        &mut self,
        request: &AtomicRequest<'_>,
        data: Option<Data>,
        batch: Batch,
    ) -> bool {
        let AtomicRequest { pe, remote_handle, remote_addr: addr, ref atomic, .. } = *request;
        let width = atomic.width.bytes();
        let Some(connection) = self.peers.connections.find_mut(pe) else { return false };
        let path = connection.next;
        let Some(word) = HandleView::sound(pe, remote_handle) else { return false };
        let Some(at) = word.spot(addr, width as u64) else { return false };
        // A connection that has failed is closed as well, and one with pending operations shut.
        let closed = connection.bars_fast_path();
        let puts_under_way = connection.puts_under_way();
        let Some(channel) = connection.channel.as_deref_mut() else { return false };
        // A signal comes behind the puts before it, which the general way sees to, but where it
        // comes behind all messages before it, of which none waits.
        let in_order = ORDERED && atomic.op.is_signal();
        let follows = in_order || data.is_none() && atomic.op.is_signal();
        if follows && (puts_under_way != 0 || !in_order && channel.has_sent_puts()) {
            return false;
        }
        if closed || !self.transmit.is_clear(path.rail) {
            return false;
        }
        if ORDERED && in_order && channel.tags.as_deref().is_some_and(Tags::has_open) {
            return false;
        }
        if !channel.has_room_for_new(&self.peers.messages) {
            return false;
        }
        if addr % width as u64 != 0 {
            return false;
        }
        let Some(wr_id) = self.transmit.next_wr_id() else { return false };
        let Some(mut message) = self.peers.messages.next() else { return false };
        let numbers = (channel.next, channel.ack());
        let slot = message.index;
        let packet = message.packet();
        match data {
            None => packet.atomic(self.peers.me, numbers, at, atomic),
            Some(Data { from, len, to }) => {
                let room = packet.put_signal(self.peers.me, numbers, at, atomic, to, len);
                if self.transmit.port_mut().load(from, room).is_err() {
                    return false;
                }
            }
        }
        if in_order && channel.has_sent_puts() {
            packet.set_behind(BEHIND_ALL);
        }
        let named = MessageTable::wr_id(slot, numbers.0);
        let head = self.peers.seal.close(pe, packet);
        if !self.transmit.try_send(&path, named, packet.bytes()) {
            return false;
        }
        head.put_back(packet);
        if data.is_some() || in_order {
            channel.last_put = numbers.0;
        }
        let left = message.leave(wr_id.0, numbers.0, path.rail);
        self.peers.messages.take_next(channel, left);
        let born = self.failures.stamp();
        // The target sees to the order of what has left, data or none.
        let class = WriteClass::Word;
        self.transmit.take_sent((pe, path.rail), slot, born, width, class, batch);
        channel.carried(numbers.1);
        channel.take_number();
        if channel.enters_control() {
            self.peers.control.push_back(pe);
        }
        connection.begin_word();
        self.transmit.rotate(connection);
        true
    }
}
