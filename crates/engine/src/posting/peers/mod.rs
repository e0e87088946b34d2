//! Peers: the connections to them, the messages on their way, and what is owed to them.

pub(crate) mod answers;
mod arrivals;
#[cfg(any(test, feature = "audit"))]
mod audit;
pub(crate) mod control;
pub(crate) mod fast;
pub(crate) mod messages;
pub(crate) mod requests;
mod table;
pub(crate) mod words;

use std::collections::VecDeque;

use crate::error::EngineError;
use crate::ids::Pe;
use crate::port::packet::PacketOf;
use crate::rails::paths::PathTable;
use crate::state::connection::Connection;
use crate::state::connection::connections::Connections;
use crate::state::counts::Counting;
use crate::state::messages::reliable_channel::ReliableChannel;
use crate::state::messages::table::MessageTable;
use crate::state::messages::unnumbered::Unnumbered;
use crate::state::segment::{Plain, WriteClass};
use crate::wire::cookie::Cookie;
use crate::wire::marks::Marks;
use crate::wire::message::Tag;
use crate::wire::seal::Seal;

/// What is known of peers, and owed to them.
#[derive(Debug)]
pub(crate) struct Peers {
    me: Pe,
    /// See [`Lane::order_signals`](crate::lane::Lane::order_signals).
    orders_signals: bool,
    seal: Box<Seal>,
    marks: Box<Marks>,
    connections: Connections,
    messages: MessageTable,
    /// The message that words may join.
    run: Box<words::Run>,
    control: VecDeque<Pe>,
    /// Peers that answers were sent to since recovery looked last, each once.
    answered: Vec<Pe>,
    /// Messages without numbers that are due.
    unnumbered: VecDeque<Unnumbered>,
    /// Peers some of whose requests may wait no longer for others of theirs.
    due: Vec<Pe>,
}

impl Peers {
    pub(super) fn new(
        (me, cookie, mark_bytes): (Pe, Cookie, u8),
        n_pes: u32,
        rails: u8,
        fast_limit: usize,
        messages: u32,
    ) -> Self {
        Self {
            me,
            orders_signals: false,
            seal: Box::new(Seal::new(cookie, me)),
            marks: Box::new(Marks::new(cookie, me, n_pes, mark_bytes)),
            connections: Connections::new(me, n_pes, rails, fast_limit),
            messages: MessageTable::new(messages),
            run: words::Run::none(),
            control: VecDeque::with_capacity(64),
            answered: Vec::new(),
            unnumbered: VecDeque::with_capacity(64),
            due: Vec::new(),
        }
    }

    pub(crate) fn order_signals(&mut self) {
        self.orders_signals = true;
    }

    #[inline(always)]
    pub(crate) fn orders_signals(&self) -> bool {
        self.orders_signals
    }

    #[inline]
    pub(crate) fn counts_for_next(&self, pe: Pe) -> bool {
        self.orders_signals && self.counted_for_next(pe).is_some()
    }

    pub(crate) fn counted_for_next(&self, pe: Pe) -> Option<Counting> {
        self.channel(pe)?.tags.as_deref()?.counted()
    }

    pub(crate) fn end_count(&mut self, pe: Pe) {
        let channel = self.connections.channel_mut(pe);
        if let Some(tags) = channel.and_then(|channel| channel.tags.as_deref_mut()) {
            tags.take_open();
        }
    }

    /// What writes are that the peer counts. Signals that come behind signals do not wait for them:
    /// they have the peer count them, or come behind the signal that does.
    pub(crate) fn order_of_counted(&self) -> WriteClass {
        if self.orders_signals { WriteClass::Word } else { WriteClass::EvenPut }
    }

    #[inline(always)]
    pub(crate) fn me(&self) -> Pe {
        self.me
    }

    #[inline]
    pub(crate) fn n_pes(&self) -> u32 {
        self.connections.n_pes()
    }

    #[inline]
    pub(crate) fn find(&self, pe: Pe) -> Option<&Connection> {
        self.connections.find(pe)
    }

    #[inline(always)]
    pub(crate) fn find_mut(&mut self, pe: Pe) -> Option<&mut Connection> {
        self.connections.find_mut(pe)
    }

    #[inline]
    pub(crate) fn channel(&self, pe: Pe) -> Option<&ReliableChannel> {
        self.connections.channel(pe)
    }

    #[inline]
    pub(crate) fn channel_mut(&mut self, pe: Pe) -> Option<&mut ReliableChannel> {
        self.connections.channel_mut(pe)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Connection> {
        self.connections.iter()
    }

    pub(crate) fn for_each(&mut self, each: impl FnMut(&mut Connection)) {
        self.connections.for_each(each);
    }

    #[inline]
    pub(super) fn has_no_waiter(&self, pe: Pe) -> bool {
        self.connections.has_no_waiter(pe)
    }

    #[inline]
    pub(super) fn ended(&mut self, plain: Plain, count: u32) {
        self.connections.ended(plain, count);
    }

    #[inline]
    pub(super) fn open(&mut self, pe: Pe, paths: &mut PathTable) -> Option<&mut Connection> {
        let Self { connections, seal, .. } = self;
        connections.open(pe, paths, || seal.receiver(pe))
    }

    #[inline]
    pub(crate) fn owe_control(&mut self, pe: Pe) {
        self.control.push_back(pe);
    }

    pub(crate) fn has_no_answers(&self) -> bool {
        self.unnumbered.is_empty()
    }

    #[inline]
    pub(crate) fn has_no_due(&self) -> bool {
        self.due.is_empty()
    }

    pub(crate) fn next_due(&mut self) -> Option<Pe> {
        self.due.pop()
    }

    pub(crate) fn drain_answered(&mut self, mut each: impl FnMut(Pe)) {
        for pe in self.answered.drain(..) {
            if let Some(connection) = self.connections.find_mut(pe) {
                connection.channel().is_noted = false;
                each(pe);
            }
        }
    }

    pub(super) fn keep_answers(&mut self, messages: u32, answers: u32) {
        self.messages = MessageTable::with_answers(messages, answers);
    }

    #[inline]
    pub(crate) fn seal<const N: usize>(&self, pe: Pe, packet: &mut PacketOf<N>) {
        self.seal.close(pe, packet);
    }

    /// Opens a message that has come in, of so many bytes.
    #[inline(always)]
    pub(crate) fn unseal<const N: usize>(&self, packet: &mut PacketOf<N>, len: usize) {
        self.seal.open_as(packet, len);
    }

    pub(super) fn mark_of_mine(&self, pe: Pe, tag: Tag) -> u64 {
        self.marks.of_mine(pe, tag)
    }

    pub(crate) fn marked_by(&self, mark: u64) -> (Pe, usize) {
        self.marks.named(mark)
    }

    pub(crate) fn is_mark_of(&self, mark: u64, pe: Pe, tag: Tag) -> bool {
        self.marks.is_of(mark, pe, tag)
    }

    #[inline]
    pub(crate) fn check(&self, pe: Pe) -> Result<(), EngineError> {
        self.find(pe).map_or(Ok(()), Connection::check)
    }

    #[cold]
    pub(crate) fn check_pe(&self, pe: Pe) -> Result<(), EngineError> {
        let n_pes = self.n_pes();
        if pe.0 < n_pes { Ok(()) } else { Err(EngineError::NoSuchPe { pe, n_pes }) }
    }
}

#[cfg(test)]
mod tests;
