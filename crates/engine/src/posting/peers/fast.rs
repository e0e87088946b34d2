//! The fast path of messages about words, and of puts that are counted for the next signal: what
//! meets no obstacle, in few instructions.
//!
//! At the first obstacle, before anything has happened, it gives up; the general way
//! ([`super::requests`]) takes over.

use std::collections::VecDeque;

use crate::ids::Pe;
use crate::port::Port;
use crate::posting::Core;
use crate::rails::paths::Hop;
use crate::request::{AtomicRequest, LocalSide, Request, Rest};
use crate::state::batch::Batch;
use crate::state::connection::Connection;
use crate::state::counts::{Counting, Tags};
use crate::state::messages::reliable_channel::ReliableChannel;
use crate::state::messages::table::MessageTable;
use crate::state::segment::Stage;
use crate::wire::handle::HandleView;
use crate::wire::message::{ATOMIC, PUT_SIGNAL_HEAD};

const BEHIND_ALL: u16 = 1;

#[cold]
#[inline(never)]
fn ask(channel: &mut ReliableChannel, control: &mut VecDeque<Pe>) {
    channel.want_ack();
    if channel.enters_control() {
        control.push_back(channel.pe());
    }
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

    /// Sends an operation on a word, after the bytes of `part` if there is one, in one message.
    /// Whether it is on its way; if not, nothing has happened. `ORDERED`: signals come behind
    /// signals. A part is as long as a message has room for, and the processor reaches its bytes.
    #[inline(always)]
    pub(crate) fn try_send<const ORDERED: bool>(
        &mut self,
        request: &AtomicRequest<'_>,
        part: Option<&Request<'_>>,
        batch: Batch,
    ) -> bool {
        let AtomicRequest { pe, remote_handle, remote_addr: addr, ref atomic, .. } = *request;
        let width = atomic.width.bytes();
        let Self { transmit, peers, .. } = self;
        let Some(connection) = peers.connections.find_mut(pe) else { return false };
        // A connection that has failed is closed as well, and one with pending operations shut.
        if connection.bars_fast_path() {
            return false;
        }
        let (puts_under_way, handles) = (connection.puts_under_way(), connection.handles());
        let Some(channel) = connection.channel.as_deref_mut() else { return false };
        // A signal comes behind the puts before it, which the general way sees to, but where it
        // comes behind all messages before it, of which none waits.
        let in_order = ORDERED && atomic.op.is_signal();
        let follows = in_order || part.is_none() && atomic.op.is_signal();
        if follows && (puts_under_way != 0 || !in_order && channel.has_sent_puts()) {
            return false;
        }
        if ORDERED && in_order && channel.tags.as_deref().is_some_and(Tags::has_open) {
            return false;
        }
        if !channel.has_room_for_new(&peers.messages) {
            return false;
        }
        let Some(way) = transmit.clear_way(connection.next.rail) else { return false };
        let Some(mut slot) = peers.messages.next_slot() else { return false };
        let Some(word) = HandleView::asked(remote_handle, handles) else { return false };
        let Some(at) = word.spot(addr, width as u64) else { return false };
        if addr % width as u64 != 0 {
            return false;
        }
        // The data is last, and written where it goes: with it the last of the arguments is done
        // with.
        let len = match part {
            None => ATOMIC,
            Some(part) => {
                let LocalSide::Memory(from) = part.local else { return false };
                let Some(remote) = HandleView::asked(part.remote_handle, handles) else {
                    return false;
                };
                let Some(to) = remote.spot(part.remote_addr, part.len as u64) else { return false };
                if way.port.load(from, slot.packet().data(to, part.len)).is_err() {
                    return false;
                }
                PUT_SIGNAL_HEAD + part.len
            }
        };
        // All is in its place before the fabric is asked, so that nothing is kept through the call.
        // If it declines, the message is one that waits.
        let (seq, ack) = (channel.next, channel.ack());
        let is_behind = in_order && channel.has_sent_puts();
        let Hop { to, rail, .. } = connection.next;
        let (slot, packet) = slot.take(channel, rail, width, batch);
        match part {
            None => packet.atomic(peers.me, (seq, ack), at, atomic),
            Some(_) => packet.signal(peers.me, (seq, ack), at, atomic),
        }
        if is_behind {
            packet.set_behind(BEHIND_ALL);
        }
        if part.is_some() || in_order {
            channel.last_put = seq;
        }
        way.segments.batches.begin(batch);
        channel.carried(ack);
        if channel.take_next(seq) {
            ask(channel, &mut peers.control);
        }
        connection.begin_word();
        connection.rotate(way.paths);
        let head = match part {
            None => peers.seal.close_to(&connection.receiver, false, packet),
            Some(_) => peers.seal.close_to(&connection.receiver, true, packet),
        };
        let (named, bytes) = (MessageTable::wr_id(slot, seq), packet.first(len));
        let has_left = way.port.try_send(way.rail.fast, rail, to, named, bytes);
        head.put_back(packet);
        if !has_left {
            self.wait_untaken(pe);
        }
        true
    }

    /// The message to a peer that has its latest number, and that the fabric has not taken, has
    /// none any more: it is tried again with reasons, and waits if there is no room.
    #[cold]
    #[inline(never)]
    fn wait_untaken(&mut self, pe: Pe) {
        let Some(channel) = self.peers.connections.channel_mut(pe) else { return };
        let slot = self.peers.messages.take_back(channel);
        let is_put = channel.last_put == channel.next;
        let Some(wr_id) = self.give_segment(slot) else { return };
        let Self { transmit, peers, failures } = self;
        let Some(connection) = peers.connections.find_mut(pe) else { return };
        let segment = transmit.segment_mut(wr_id);
        segment.stage = Stage::Ready;
        segment.born = failures.stamp();
        segment.behind_sent = peers.messages.packet_mut(slot).behind() != 0;
        let rail = segment.rail;
        if is_put {
            connection.displace(segment);
        }
        self.dispatch(wr_id, rail);
    }
}
