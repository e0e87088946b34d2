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
//! all of its puts are copied. A put with signal is listed also where it goes alone. Puts of the
//! same bytes, such as a token for several experts, have them in the buffer once.
//!
//! So a lane that is kept waiting sends ever more with each copy and message, and one that is not
//! sends each put by itself, at once.
//!
//! # Who may join
//! Puts that are ordered alike: that nobody waits for by themselves, of the same batch, with no
//! fence and no signal that waits for puts in between.
//!
//! Before layout 4, NVSHMEM hands over a put with signal as put, fence and signal, and the warps of
//! a kernel do so all at once: several puts, several fences, several signals. So what comes behind
//! fences may join as well, puts and signals, where nothing but what is in the list comes before
//! these fences. Each fence begins a *group* of the list, which is one *in order* then. The peer
//! gives the device such a list as it is, or executes it group by group.
//!
//! # Why it cannot deadlock
//! What is open waits for nothing but its bounce buffer, as it would alone. Lists for what comes in
//! are not those for what leaves, and are held while a device copies. Between its groups a fragment
//! waits with its list for the next copy: not behind those that wait for a list, if none is free.

use std::ops::Range;

use crate::atomic::Atomic;
use crate::ids::{Pe, WrId};
use crate::port::copies::{Copy, CopyDirection, MOST_WORDS, Reach, SoonOrder, Step, Tagged};
use crate::port::{Direction, Port, PortError, Posted};
use crate::posting::Core;
use crate::posting::peers::words::Order;
use crate::staging::Staging;
use crate::staging::state::lists::{
    ALIGN, List, Open, Part, arrange, check_list, group_at, place, room_for,
};
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

/// Parts that are looked at for one with the same bytes: a kernel sends a token to all its experts
/// before the next one, or some of its warps do so at a time.
const LATEST: usize = 32;

fn accepts<P: Port>(open: &Open, core: &Core<P>, pe: Pe, order: &Order) -> bool {
    *order == open.order || accepts_behind(open, core, pe, order)
}

fn accepts_behind<P: Port>(open: &Open, core: &Core<P>, pe: Pe, order: &Order) -> bool {
    let Some(connection) = core.peers.find(pe) else { return false };
    order.differs_by_fences(&open.order)
        && open.submitted == Some(connection.writes_submitted())
        && !connection.has_pending()
        && !connection.holds_back()
}

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
        let repeats = self.has_listed(open.wr_id, memory, len);
        let bytes = open.bytes + if repeats { 0 } else { len.next_multiple_of(ALIGN) };
        let behind = order != open.order;
        let part = Part { memory, len, to, at: 0, signal, behind, repeats };
        self.add_part(pe, Open { bytes, order, ..open }, part, most)
    }

    /// Whether a put that waits, or one that has joined it, has these bytes.
    fn has_listed(&mut self, wr_id: WrId, memory: usize, len: usize) -> bool {
        let Fragment { list, memory: first, len: first_len, .. } = *self.state().fragment(wr_id);
        let Some(list) = list else { return (first, first_len) == (memory, len) };
        let latest = self.state().gathered.out.parts(list).iter().rev().take(LATEST);
        latest.into_iter().any(|part| (part.memory, part.len) == (memory, len))
    }

    /// Adds a part to the list of a put that waits, if there is room for it. `open` is as it was,
    /// with the part's bytes and order.
    fn add_part(&mut self, pe: Pe, open: Open, part: Part, most: usize) -> bool {
        let state = self.state();
        let Fragment { list, listed, .. } = *state.fragment(open.wr_id);
        let parts = list.map_or(1, |list| state.gathered.out.parts(list).len());
        let words = open.words + usize::from(part.signal.is_some());
        let in_order = listed.in_order || part.behind || part.len == 0;
        if parts >= MOST_LISTED
            || in_order && words > MOST_WORDS
            || room_for(parts + 1, open.bytes) > most
        {
            return false;
        }
        let Some(list) = self.list_of(pe, open.wr_id) else { return false };
        self.state().gathered.out.parts(list).push(part);
        self.state().fragment(open.wr_id).listed.in_order = in_order;
        let before = if part.behind { 0 } else { open.last_words };
        let last_words = before + (words - open.words);
        let ends_with_put = part.signal.is_none();
        self.state().peer(pe).open = Some(Open { words, last_words, ends_with_put, ..open });
        true
    }

    pub(super) fn most_gathered(&mut self, pe: Pe, bounce_len: usize) -> usize {
        let Some(own) = self.bouncing() else { return 0 };
        gathered_len(own.bounce.bounce_len.min(bounce_len), own.copies.is_seen_by(pe))
    }

    pub(crate) fn joins_signal<P: Port>(
        &mut self,
        core: &mut Core<P>,
        pe: Pe,
        signal: ListedSignal,
        bounce_len: usize,
    ) -> bool {
        let Some(state) = self.state.as_deref_mut() else { return false };
        let Some(open) = state.peer(pe).open else { return false };
        let most = self.most_gathered(pe, bounce_len);
        let order = core.order(pe).filter(|order| accepts_behind(&open, core, pe, order));
        let Some(order) = order else { return false };
        // A group that has signals takes none that may be behind a fence.
        let joined = if open.ends_with_put && open.last_words == 0 {
            self.give_signal(pe, open, signal, most)
        } else {
            let (to, behind) = (Spot { slot: 0, offset: 0 }, order != open.order);
            let signal = Some(signal);
            let part = Part { memory: 0, len: 0, to, at: 0, signal, behind, repeats: false };
            self.add_part(pe, Open { order, ..open }, part, most)
        };
        if joined {
            self.state().influx.takes();
        }
        joined
    }

    fn give_signal(&mut self, pe: Pe, open: Open, signal: ListedSignal, most: usize) -> bool {
        let in_order = self.state().fragment(open.wr_id).listed.in_order;
        // A put that was alone has a list from now on.
        if room_for(1, open.bytes) > most || in_order && open.words >= MOST_WORDS {
            return false;
        }
        let Some(list) = self.list_of(pe, open.wr_id) else { return false };
        let Some(last) = self.state().gathered.out.parts(list).last_mut() else { return false };
        last.signal = Some(signal);
        let (words, ends_with_put) = (open.words + 1, false);
        self.state().peer(pe).open = Some(Open { words, last_words: 1, ends_with_put, ..open });
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
        let signal = Some(signal);
        let part = Part { memory, len, to, at: 0, signal, behind: false, repeats: false };
        self.state().gathered.out.parts(list).push(part);
        Some(list)
    }

    pub(super) fn give_list(&mut self, list: List) {
        self.state().gathered.out.give(list);
    }

    fn list_of(&mut self, pe: Pe, wr_id: WrId) -> Option<List> {
        let Fragment { list, memory, len, remote_end, .. } = *self.state().fragment(wr_id);
        let RemoteEnd::Peer(to) = remote_end else { return None };
        if list.is_some() {
            return list;
        }
        let list = self.state().gathered.out.take(pe)?;
        let signal = None;
        let part = Part { memory, len, to, at: 0, signal, behind: false, repeats: false };
        self.state().gathered.out.parts(list).push(part);
        self.state().fragment(wr_id).list = Some(list);
        Some(list)
    }

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
            let (words, ends_with_put) = (usize::from(has_signal), !has_signal);
            self.state().peer(pe).open = Some(Open {
                wr_id,
                order,
                bytes,
                submitted,
                words,
                last_words: words,
                ends_with_put,
            });
        }
    }

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
        let parts = self.state().gathered.out.parts(list);
        arrange(parts);
        let count = parts.len();
        let end = place(parts);
        let mut bytes = [0; MOST_LISTED * LIST_ENTRY];
        for (part, entry) in parts.iter().zip(bytes.chunks_exact_mut(LIST_ENTRY)) {
            let Part { to, len, at, signal, behind, .. } = *part;
            let (len, at) = (len as u32, at as u32);
            entry.copy_from_slice(&ListEntry { to, len, at, signal, behind }.encode());
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
        // Of those in their order a group at a time.
        let range = next.map_or(0..parts.len(), |next| group_at(parts, usize::from(next)));
        for Part { memory, len, at, .. } in parts[range].iter().filter(|part| part.has_bytes()) {
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
        let read = bytes.chunks_exact(LIST_ENTRY).try_for_each(|entry| {
            let part = Self::read_entry(core, entry, bytes.len(), total)?;
            self.state().gathered.inward.parts(list).push(part);
            Ok(())
        });
        let in_order = self.state().fragment(wr_id).listed.in_order;
        let checked =
            read.and_then(|()| check_list(self.state().gathered.inward.parts(list), in_order));
        if let Err(text) = checked {
            self.state().gathered.inward.give(list);
            let call = "reading the peer's list of puts";
            return Err(PortError { call, code: 0, text });
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
        let Some(ListEntry { to, len, at, signal, behind }) = ListEntry::decode(entry) else {
            return Err(String::from("a signal that is none"));
        };
        let (len, at) = (len as usize, at as usize);
        if let Some(ListedSignal { at, atomic }) = signal {
            core.locate_word(at, atomic.width)?;
        }
        if len == 0 && signal.is_some() {
            return Ok(Part { memory: 0, len, to, at: 0, signal, behind, repeats: false });
        }
        let place = core.transmit.regions_mut().locate(to, len).map_err(|e| e.to_string())?;
        if at < begin || at > total || len == 0 || len > total - at {
            return Err(format!("{len} bytes at {at} of a bounce buffer with {total}"));
        }
        Ok(Part { memory: place.addr, len, to, at, signal, behind, repeats: false })
    }

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
        let mut steps = std::mem::take(&mut self.state().ready.steps);
        let is_staged = self.list_steps(core, list, bounce, &mut steps);
        let started = match (is_staged, self.bouncing()) {
            (Ok(true), Some(bouncing)) => bouncing.copies.start_in_order(&steps, wr_id.0),
            (is_staged, _) => is_staged.map(|_| None),
        };
        if matches!(started, Ok(Some(Posted::Yes))) {
            self.state().fragment(wr_id).next = Some(ALL);
            self.is_copied(core, wr_id, steps.iter().map(Step::memory));
        }
        steps.clear();
        self.state().ready.steps = steps;
        started
    }

    fn list_steps<P: Port>(
        &mut self,
        core: &mut Core<P>,
        list: List,
        bounce: usize,
        steps: &mut Vec<Step>,
    ) -> Result<bool, PortError> {
        let parts = self.state().gathered.inward.parts(list);
        let mut begin = 0;
        while begin < parts.len() {
            let range = group_at(parts, begin);
            begin = range.end;
            let group = &parts[range];
            let mut behind = !steps.is_empty();
            for Part { memory, len, at, .. } in group.iter().filter(|part| part.len != 0) {
                let (direction, memory, len) = (CopyDirection::In, *memory, *len);
                let copy = Copy { direction, memory, bounce: bounce + at, len };
                steps.push(Step::Copy { copy, behind: std::mem::take(&mut behind) });
            }
            behind = true;
            for ListedSignal { at, atomic } in group.iter().filter_map(|part| part.signal) {
                let place = Self::word_of(core, at, &atomic)?;
                if place.reach == Reach::Direct {
                    return Ok(false);
                }
                let (addr, behind) = (place.addr, std::mem::take(&mut behind));
                steps.push(Step::Apply { addr, atomic, behind });
            }
        }
        Ok(true)
    }

    /// A group of a peer's puts is copied that comes before others: its signals are applied, and
    /// those of groups behind it without puts. Whether it was the last one.
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
        let mut begin = usize::from(next);
        loop {
            let group = group_at(self.state().gathered.inward.parts(list), begin);
            begin = group.end;
            if self.apply_signals(core, list, group)? {
                self.state().settle(core)?;
            }
            let parts = self.state().gathered.inward.parts(list);
            if begin == parts.len() {
                return Ok(true);
            }
            if parts[group_at(parts, begin)].iter().any(|part| part.len != 0) {
                break;
            }
        }
        self.state().fragment(wr_id).next = Some(begin as u16);
        Ok(false)
    }

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
    /// A fragment of which another group is to be copied is ready again. Where all lists are taken
    /// the first one that is ready may wait for one, so this goes before it.
    pub(super) fn go_on_with_list(&mut self, wr_id: WrId) {
        match self.gathered.inward.is_free() {
            true => self.ready(CopyDirection::In).push_back(wr_id),
            false => self.ready(CopyDirection::In).push_front(wr_id),
        }
    }

    pub(super) fn forget_read_list(&mut self, wr_id: WrId) {
        if self.peek(wr_id).listed.count != 0 && self.peek(wr_id).next.is_none_or(|next| next == 0)
        {
            if let Some(list) = self.fragment(wr_id).list.take() {
                self.gathered.inward.give(list);
            }
        }
    }
}
