//! Gathered puts: several puts to one peer that leave as one fragment.
//!
//! A put that waits for a bounce buffer is *open*: others to the same peer may join it, as many as
//! the buffer takes. They need no segment, message or bounce buffer of their own. When it is their
//! turn they are put in the order of their places at the peer, so that neighbours there are
//! neighbours in the buffer, and copied out together behind a list of where they go. The peer is
//! told to pull the buffer, reads the list, and copies all of them in together. One answer ends
//! all of them.
//!
//! A put may have a *signal*, which is listed with it: the peer applies the signals of a list when
//! all of its puts are copied. A put with signal is listed also where it goes alone.
//!
//! So a lane that is kept waiting sends ever more with each copy and message, and one that is not
//! sends each put by itself, at once.
//!
//! # Who may join
//! Puts that are ordered alike: that nobody waits for by themselves, of the same batch, with no
//! fence and no signal that waits for puts in between.
//!
//! Before layout 4, NVSHMEM hands over a put with signal as put, fence and signal. So what comes
//! behind fences may join as well, where nothing but what is in the list comes before these fences:
//! a signal, which belongs to the last put of the list then, and a put, with which the list is one
//! *in order*. The peer gives the device such a list as it is, or executes it step by step.
//!
//! # Why it cannot deadlock
//! What is open waits for nothing but its bounce buffer, as it would alone. Lists for what comes in
//! are not those for what leaves, and are held while a device copies.

use std::ops::Range;

use crate::atomic::Atomic;
use crate::ids::{Pe, WrId};
use crate::port::copies::{Copy, CopyDirection, MOST_STEPS, Reach, SoonOrder, Step, Tagged};
use crate::port::{Direction, Port, PortError, Posted};
use crate::posting::Core;
use crate::posting::peers::words::Order;
use crate::staging::Staging;
use crate::staging::state::lists::{List, Open, Part};
use crate::staging::state::role::Role;
use crate::staging::state::{ALL, FRAGMENT, Fragment, LocalEnd, RemoteEnd, State};
use crate::state::connection::Connection;
use crate::state::operation::OpId;
use crate::state::regions::Place;
use crate::state::segment::Stage;
use crate::wire::message::Spot;
use crate::wire::staged::{LIST_ENTRY, ListEntry, ListedSignal, MAX_PAYLOAD, MOST_LISTED};

/// Bytes of the longest put that is gathered. A longer one is worth a copy of its own.
pub(super) const LONGEST: usize = 64 << 10;

/// Puts begin at multiples of this in a bounce buffer, but for those right behind their neighbour.
const ALIGN: usize = 64;

/// Puts of a list in order, each of which may have a signal.
pub(super) const MOST_IN_ORDER: usize = MOST_STEPS / 2;

/// Whether a put that is ordered so may join, in the list's order if there were fences.
fn accepts<P: Port>(open: &Open, core: &Core<P>, pe: Pe, order: &Order) -> bool {
    *order == open.order || accepts_behind(open, core, pe, order)
}

/// Whether nothing but what is in the list comes before what is ordered so.
fn accepts_behind<P: Port>(open: &Open, core: &Core<P>, pe: Pe, order: &Order) -> bool {
    let Some(connection) = core.peers.find(pe) else { return false };
    order.differs_by_fences(&open.order)
        && open.submitted == Some(connection.writes_submitted())
        && !connection.has_pending()
        && !connection.holds_back()
}

/// Bytes that so many puts take at most in a bounce buffer, if their own are so many.
fn room_for(puts: usize, bytes: usize) -> usize {
    bytes + (puts * LIST_ENTRY).next_multiple_of(ALIGN)
}

/// Bytes of several puts that leave as one fragment.
pub(super) fn gathered_len(most: usize, shares: bool) -> usize {
    if shares { most } else { most.min(FRAGMENT) }
}

impl Staging {
    /// Whether a put, and its signal if it has one, has joined one that waits. `most`: bytes that a
    /// fragment may have.
    pub(super) fn joins<P: Port>(
        &mut self,
        core: &mut Core<P>,
        pe: Pe,
        (memory, len): (usize, usize),
        (to, signal): (Spot, Option<ListedSignal>),
        most: usize,
    ) -> bool {
        let Some(open) = self.state().peer(pe).open.filter(|_| len <= LONGEST) else {
            return false;
        };
        let Some(order) = core.order(pe).filter(|order| accepts(&open, core, pe, order)) else {
            self.state().peer(pe).open = None;
            return false;
        };
        let state = self.state();
        let puts = match state.fragment(open.wr_id).list {
            Some(list) => state.gathered.out.parts(list).len(),
            None => 1,
        };
        let bytes = open.bytes + len.next_multiple_of(ALIGN);
        let in_order = state.fragment(open.wr_id).listed.in_order || order != open.order;
        let most_puts = if in_order { MOST_IN_ORDER } else { MOST_LISTED };
        if puts >= most_puts || room_for(puts + 1, bytes) > most {
            return false;
        }
        let Some(list) = self.list_of(pe, open.wr_id) else { return false };
        self.state().gathered.out.parts(list).push(Part { memory, len, to, at: 0, signal });
        let signals = (signal.is_some(), open.signals.1 || signal.is_some());
        self.state().fragment(open.wr_id).listed.in_order = in_order;
        self.state().peer(pe).open = Some(Open { bytes, order, signals, ..open });
        true
    }

    /// Bytes of a bounce buffer that puts to a peer may share, whose own have `bounce_len`.
    pub(super) fn most_gathered(&mut self, pe: Pe, bounce_len: usize) -> usize {
        let Some(own) = self.bouncing() else { return 0 };
        gathered_len(own.bounce.bounce_len.min(bounce_len), own.copies.is_seen_by(pe))
    }

    /// Whether a signal behind fences has become that of the last put that waits, behind which
    /// nothing else has set out.
    pub(crate) fn joins_signal<P: Port>(
        &mut self,
        core: &mut Core<P>,
        pe: Pe,
        signal: ListedSignal,
        bounce_len: usize,
    ) -> bool {
        let Some(state) = self.state.as_deref_mut() else { return false };
        let Some(open) = state.peer(pe).open.filter(|open| !open.signals.0) else { return false };
        // A put that was alone has a list from now on.
        if room_for(1, open.bytes) > self.most_gathered(pe, bounce_len) {
            return false;
        }
        if core.order(pe).is_none_or(|order| !accepts_behind(&open, core, pe, &order)) {
            return false;
        }
        // Of several, each comes behind the fences before it.
        let in_order = self.state().fragment(open.wr_id).listed.in_order || open.signals.1;
        let Some(list) = self.list_of(pe, open.wr_id) else { return false };
        let parts = self.state().gathered.out.parts(list);
        if in_order && parts.len() > MOST_IN_ORDER {
            return false;
        }
        let Some(last) = parts.last_mut() else { return false };
        last.signal = Some(signal);
        let signals = (true, true);
        let state = self.state();
        state.fragment(open.wr_id).listed.in_order = in_order;
        state.peer(pe).open = Some(Open { signals, ..open });
        state.influx.takes();
        true
    }

    /// A list of one put with its signal, if it fits a bounce buffer of `most` bytes and there is
    /// such a list.
    pub(super) fn list_alone(
        &mut self,
        pe: Pe,
        (memory, len): (usize, usize),
        (to, signal): (Spot, ListedSignal),
        most: usize,
    ) -> Option<List> {
        if room_for(1, len.next_multiple_of(ALIGN)) > most {
            return None;
        }
        let list = self.state().gathered.out.take(pe)?;
        let part = Part { memory, len, to, at: 0, signal: Some(signal) };
        self.state().gathered.out.parts(list).push(part);
        Some(list)
    }

    /// A list that nobody has is free again.
    pub(super) fn give_list(&mut self, list: List) {
        self.state().gathered.out.give(list);
    }

    /// The list of a put, made if need be with itself in it. None while there is none.
    fn list_of(&mut self, pe: Pe, wr_id: WrId) -> Option<List> {
        let Fragment { list, memory, len, remote_end, .. } = *self.state().fragment(wr_id);
        let RemoteEnd::Peer(to) = remote_end else { return None };
        if list.is_some() {
            return list;
        }
        let list = self.state().gathered.out.take(pe)?;
        let part = Part { memory, len, to, at: 0, signal: None };
        self.state().gathered.out.parts(list).push(part);
        self.state().fragment(wr_id).list = Some(list);
        Some(list)
    }

    /// A fragment of this lane's has set out, or a fence holds it: it is open from now on, if it is
    /// a whole put.
    pub(super) fn open<P: Port>(&mut self, core: &mut Core<P>, wr_id: WrId, op: OpId, whole: bool) {
        let segment = core.transmit.segment(wr_id);
        let (pe, batch, class) = (segment.pe, segment.batch(), segment.class);
        let Fragment { len, local_end, remote_end, .. } = *self.state().fragment(wr_id);
        let ends = (local_end, remote_end);
        let fits = matches!(ends, (LocalEnd::BounceBuffer, RemoteEnd::Peer(_)));
        let is_put = segment.direction == Direction::Write;
        let is_held = segment.stage == Stage::Held;
        let alone = op == OpId::NONE && whole && len > MAX_PAYLOAD && len <= LONGEST;
        let Some(order) = core.order(pe).filter(|_| fits && is_put && alone) else { return };
        // What a fence holds has no class yet.
        if is_held || order.is_of(class, batch) {
            let bytes = len.next_multiple_of(ALIGN);
            let connection = core.peers.find(pe).filter(|peer| peer.is_first_behind_fence());
            let submitted = connection.map(Connection::writes_submitted);
            let has_signal = self.state().fragment(wr_id).list.is_some();
            let signals = (has_signal, has_signal);
            self.state().peer(pe).open = Some(Open { wr_id, order, bytes, submitted, signals });
        }
    }

    /// Nothing joins a fragment any more.
    pub(super) fn close(&mut self, pe: Pe, wr_id: WrId) {
        let open = &mut self.state().peer(pe).open;
        *open = open.filter(|open| open.wr_id != wr_id);
    }

    /// A put that has its bounce buffer is about to be copied there: if others have joined it, it
    /// is one pull of all of them. False if it has failed.
    pub(super) fn seal_list<P: Port>(&mut self, core: &mut Core<P>, wr_id: WrId) -> bool {
        let pe = core.transmit.segment(wr_id).pe;
        self.close(pe, wr_id);
        let Fragment { list: Some(list), bounce: Some(bounce), role, listed, .. } =
            *self.state().fragment(wr_id)
        else {
            return true;
        };
        // One put and its signal take one trip to the device so.
        let alone = self.state().gathered.out.parts(list).len() == 1;
        let in_order = alone || listed.in_order;
        let mut bytes = [0; MOST_LISTED * LIST_ENTRY];
        let parts = self.state().gathered.out.parts(list);
        if !in_order {
            parts.sort_unstable_by_key(|part| (part.to.slot, part.to.offset));
        }
        let count = parts.len();
        let mut end = count * LIST_ENTRY;
        let mut before: Option<Part> = None;
        for (part, entry) in parts.iter_mut().zip(bytes.chunks_exact_mut(LIST_ENTRY)) {
            let touches = before.is_some_and(|before| {
                let next = before.to.offset + before.len as u64;
                (before.to.slot, next) == (part.to.slot, part.to.offset)
            });
            part.at = if touches { end } else { end.next_multiple_of(ALIGN) };
            end = part.at + part.len;
            let (len, at) = (part.len as u32, part.at as u32);
            let Part { to, signal, .. } = *part;
            entry.copy_from_slice(&ListEntry { to, len, at, signal }.encode());
            before = Some(*part);
        }
        let fragment = self.state().fragment(wr_id);
        fragment.len = end;
        fragment.remote_end = RemoteEnd::Peer(Spot::listed(count, in_order));
        core.transmit.segment_mut(wr_id).set_len(end);
        let addr = self.bouncing().map_or(0, |bouncing| bouncing.addr(role, bounce));
        let listed = &bytes[..count * LIST_ENTRY];
        let stored = core.transmit.port_mut().store(addr, listed);
        let is_stored = stored.is_ok();
        if let Err(error) = stored {
            self.fail_fragment(core, wr_id, error);
        }
        is_stored
    }

    /// The copies of a fragment whose bounce buffer is at an address. None, and nothing is added,
    /// if it has to wait, or has failed for it.
    pub(super) fn add_copies<P: Port>(
        &mut self,
        core: &mut Core<P>,
        wr_id: WrId,
        bounce: usize,
        together: &mut Vec<Tagged>,
    ) -> Result<(), Unlisted> {
        let Fragment { len, memory, role, list, listed, next, .. } = *self.state().fragment(wr_id);
        let (direction, tag) = (role.direction(), wr_id.0);
        let list = match (list, listed.count) {
            (Some(list), _) => list,
            (None, 0) => {
                together.push(Tagged { copy: Copy { direction, memory, bounce, len }, tag });
                return Ok(());
            }
            (None, count) => match self.read_list(core, wr_id, bounce, count) {
                Ok(Some(list)) => list,
                Ok(None) => return Err(Unlisted::Waits),
                Err(error) => {
                    self.fail_fragment(core, wr_id, error);
                    return Err(Unlisted::Failed);
                }
            },
        };
        let parts = self.state().gathered.of(direction).parts(list);
        // Of those in their order one at a time.
        let parts = match next {
            Some(next) => &parts[usize::from(next)..][..1],
            None => &parts[..],
        };
        for Part { memory, len, at, .. } in parts {
            let (memory, bounce, len) = (*memory, bounce + *at, *len);
            together.push(Tagged { copy: Copy { direction, memory, bounce, len }, tag });
        }
        Ok(())
    }

    /// Reads where a peer's puts go. Nothing in the list leads outside of the bounce buffer, or of
    /// what is registered. None while there is no room for it.
    fn read_list<P: Port>(
        &mut self,
        core: &mut Core<P>,
        wr_id: WrId,
        bounce: usize,
        count: u16,
    ) -> Result<Option<List>, PortError> {
        let total = self.state().fragment(wr_id).len;
        let mut bytes = [0; MOST_LISTED * LIST_ENTRY];
        let bytes = &mut bytes[..usize::from(count) * LIST_ENTRY];
        // Once: the peer may change it meanwhile.
        core.transmit.port_mut().load(bounce, bytes)?;
        let pe = core.transmit.segment(wr_id).pe;
        let Some(list) = self.state().gathered.inward.take(pe) else { return Ok(None) };
        for entry in bytes.chunks_exact(LIST_ENTRY) {
            match Self::read_entry(core, entry, bytes.len(), total) {
                Ok(part) => self.state().gathered.inward.parts(list).push(part),
                Err(text) => {
                    self.state().gathered.inward.give(list);
                    let call = "reading the peer's list of puts";
                    return Err(PortError { call, code: 0, text });
                }
            }
        }
        self.state().fragment(wr_id).list = Some(list);
        Ok(Some(list))
    }

    /// An entry of a list of `begin` bytes, in a bounce buffer with `total`.
    fn read_entry<P: Port>(
        core: &mut Core<P>,
        entry: &[u8],
        begin: usize,
        total: usize,
    ) -> Result<Part, String> {
        let Some(ListEntry { to, len, at, signal }) = ListEntry::decode(entry) else {
            return Err(String::from("a signal that is none"));
        };
        let (len, at) = (len as usize, at as usize);
        let place = core.transmit.regions_mut().locate(to, len).map_err(|e| e.to_string())?;
        if at < begin || at > total || len == 0 || len > total - at {
            return Err(format!("{len} bytes at {at} of a bounce buffer with {total}"));
        }
        if let Some(ListedSignal { at, atomic }) = signal {
            core.locate_word(at, atomic.width)?;
        }
        Ok(Part { memory: place.addr, len, to, at, signal })
    }

    /// Gives the device a peer's puts in their order, with their signals. None where it does not
    /// take them so.
    pub(super) fn start_in_order<P: Port>(
        &mut self,
        core: &mut Core<P>,
        wr_id: WrId,
        bounce: usize,
    ) -> Result<Option<Posted>, PortError> {
        let count = self.state().fragment(wr_id).listed.count;
        let list = match self.state().fragment(wr_id).list {
            Some(list) => list,
            None => match self.read_list(core, wr_id, bounce, count)? {
                Some(list) => list,
                None => return Ok(Some(Posted::Again)),
            },
        };
        let nothing =
            Step::Copy(Copy { direction: CopyDirection::In, memory: 0, bounce: 0, len: 0 });
        let mut steps = [nothing; MOST_STEPS];
        let mut end = 0;
        for at in 0..usize::from(count) {
            let Part { memory, len, at, signal, .. } = self.state().gathered.inward.parts(list)[at];
            let (direction, bounce) = (CopyDirection::In, bounce + at);
            steps[end] = Step::Copy(Copy { direction, memory, bounce, len });
            end += 1;
            let Some(ListedSignal { at, atomic }) = signal else { continue };
            let place = Self::word_of(core, at, &atomic)?;
            if place.reach == Reach::Direct {
                return Ok(None);
            }
            steps[end] = Step::Apply { addr: place.addr, atomic };
            end += 1;
        }
        let Some(bouncing) = self.bouncing() else { return Ok(None) };
        let started = bouncing.copies.start_in_order(&steps[..end], wr_id.0)?;
        if started == Some(Posted::Yes) {
            self.state().fragment(wr_id).next = Some(ALL);
        }
        Ok(started)
    }

    /// A put of a peer's is copied that comes before others, and its signal is applied. Whether it
    /// was the last one.
    pub(super) fn end_step<P: Port>(
        &mut self,
        core: &mut Core<P>,
        wr_id: WrId,
        next: u16,
    ) -> Result<bool, PortError> {
        if next == ALL {
            return Ok(true);
        }
        let Some(list) = self.state().fragment(wr_id).list else { return Ok(true) };
        let next = usize::from(next);
        if self.apply_signals(core, list, next..next + 1)? {
            self.state().settle(core)?;
        }
        self.state().fragment(wr_id).next = Some(next as u16 + 1);
        Ok(next + 1 == self.state().gathered.inward.parts(list).len())
    }

    /// Applies the signals of a peer's puts that are copied, by the next
    /// [`Staging::settle`]. Whether there are any.
    pub(super) fn apply_listed<P: Port>(
        &mut self,
        core: &mut Core<P>,
        wr_id: WrId,
    ) -> Result<bool, PortError> {
        let Fragment { role: Role::Pull(_), list: Some(list), next: None, .. } =
            *self.state().fragment(wr_id)
        else {
            return Ok(false);
        };
        let puts = self.state().gathered.inward.parts(list).len();
        self.apply_signals(core, list, 0..puts)
    }

    /// Where the word of a signal is.
    fn word_of<P: Port>(core: &mut Core<P>, at: Spot, atomic: &Atomic) -> Result<Place, PortError> {
        let call = "applying the signal of a put";
        core.locate_word(at, atomic.width).map_err(|text| PortError { call, code: 0, text })
    }

    fn apply_signals<P: Port>(
        &mut self,
        core: &mut Core<P>,
        list: List,
        puts: Range<usize>,
    ) -> Result<bool, PortError> {
        let mut has_signals = false;
        for at in puts {
            let signal = self.state().gathered.inward.parts(list)[at].signal;
            let Some(ListedSignal { at, atomic }) = signal else { continue };
            let place = Self::word_of(core, at, &atomic)?;
            // All puts of the list are there, and nothing orders its signals.
            self.apply_soon(core, place, &atomic, SoonOrder::Any)?;
            has_signals = true;
        }
        Ok(has_signals)
    }

    /// A fragment touches the memory of its puts no longer. Their bytes, or its own.
    pub(super) fn leave_list(&mut self, wr_id: WrId) -> usize {
        let Fragment { role, len, .. } = *self.state().fragment(wr_id);
        let Some(list) = self.state().fragment(wr_id).list.take() else { return len };
        let lists = self.state().gathered.of(role.direction());
        let bytes = lists.parts(list).iter().map(|part| part.len).sum();
        lists.give(list);
        bytes
    }
}

/// Why a fragment's copies were not listed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Unlisted {
    /// There is no room for its list.
    Waits,
    /// It has failed.
    Failed,
}

impl State {
    /// The list of a fragment whose copies have not begun, and is to be read again.
    pub(super) fn forget_read_list(&mut self, wr_id: WrId) {
        if self.peek(wr_id).listed.count != 0 && self.peek(wr_id).next.is_none_or(|next| next == 0)
        {
            if let Some(list) = self.fragment(wr_id).list.take() {
                self.gathered.inward.give(list);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever their lengths, also of neighbours: places of the first have the room of their list.
    #[test]
    fn what_joins_fits() {
        for lens in [&[233, 233][..], &[7168; 64], &[300; MOST_LISTED], &[64, 65, 63, 7000]] {
            let bytes = lens.iter().map(|len: &usize| len.next_multiple_of(ALIGN)).sum();
            let mut end = lens.len() * LIST_ENTRY;
            for len in lens {
                end = end.next_multiple_of(ALIGN) + len;
            }
            assert!(end <= room_for(lens.len(), bytes), "{lens:?}");
        }
    }
}
