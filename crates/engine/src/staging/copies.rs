//! Copies between bounce buffers and memory, in batches.
//!
//! The port tells how many transfers it takes: none while the device has enough to do. Transfers
//! that become ready meanwhile go to it in one call.

use std::ops::Range;

use crate::core::Core;
use crate::port::copies::{
    Copied, Copy, CopyDirection, DeferredOrder, MAX_BATCH_COPIES, OrderedStep, Reach, TaggedCopy,
};
use crate::port::{Port, PortError, Posted};
use crate::staging::receive::{CopySpan, ReceiveState};
use crate::staging::records::{Record, are_ordered, group_at};
use crate::staging::send::SendState;
use crate::staging::{Staging, Token};
use crate::wire::staging::MAX_RECORDS;

/// Bytes from which a copy is worth a call of its own, unless transfers wait for buffers.
const LONG: usize = 256 << 10;

/// Maximum bytes of one call, unless a single transfer has more.
const MAX_BYTES: usize = 2 << 20;

fn error(text: String) -> PortError {
    PortError { call: "applying the signal of a put", code: 0, text }
}

impl Staging {
    fn room(&self, direction: CopyDirection) -> usize {
        self.stager.as_ref().map_or(0, |stager| stager.copies.room(direction))
    }

    /// Starts copies of ready transfers in a direction. Returns whether anything moved.
    pub(super) fn start_copies<P: Port>(
        &mut self,
        core: &mut Core<P>,
        direction: CopyDirection,
    ) -> bool {
        let mut moved = false;
        while let Some(first) = self.ready(direction).front().copied() {
            let room = self.room(direction);
            if room == 0 {
                break;
            }
            // A receive whose records depend on each other goes to the device alone, as an ordered
            // list.
            match self.start_ordered(core, first) {
                Some(Posted::Yes) => {
                    moved = true;
                    continue;
                }
                Some(Posted::Again) => break,
                None => {}
            }
            let mut batch = std::mem::take(&mut self.batch);
            self.collect(core, direction, room, &mut batch);
            let started = self.start_batch(core, direction, &batch);
            batch.clear();
            self.batch = batch;
            if !started {
                break;
            }
            moved = true;
        }
        moved
    }

    fn len_ready<P: Port>(&mut self, core: &Core<P>, token: Token) -> Option<usize> {
        // Transfers of a failed peer end with an event that is queued already.
        let lives = |peer: u32| core.peers.get(peer).error.is_none();
        match token {
            Token::Send(at) => {
                let send = self.sends.get(at)?;
                (send.state == SendState::CopyingOut && lives(send.peer)).then_some(send.len)
            }
            Token::Receive(at) => {
                let receive = self.receives.get(at)?;
                let is = matches!(
                    receive.state,
                    ReceiveState::Arrived | ReceiveState::CopyingIn(CopySpan::Group(_))
                );
                (is && lives(receive.peer)).then_some(receive.len)
            }
            Token::Get(_) => None,
        }
    }

    /// Takes ready transfers and appends their copies to `batch`.
    fn collect<P: Port>(
        &mut self,
        core: &mut Core<P>,
        direction: CopyDirection,
        room: usize,
        batch: &mut Vec<TaggedCopy>,
    ) {
        // While a transfer waits for a buffer, holding copies back would delay it as well.
        let has_backlog = direction == CopyDirection::In
            || self.stager.as_ref().is_some_and(|b| b.out.is_waited_for());
        let mut bytes = 0;
        for number in 0..room {
            let Some(token) = self.ready(direction).front().copied() else { break };
            let Some(len) = self.len_ready(core, token) else {
                self.ready(direction).pop_front();
                continue;
            };
            let waits = len >= LONG && (!has_backlog || bytes + len > MAX_BYTES);
            // Stop at the byte limit, at the port's limit, and before a receive that goes alone.
            if bytes > 0 && (waits || bytes >= MAX_BYTES)
                || batch.len() > MAX_BATCH_COPIES - MAX_RECORDS
                || number > 0 && self.is_first_in_order(token)
            {
                break;
            }
            // Taken from the queue only now: a transfer that does not fit stays first in it.
            bytes += len;
            self.ready(direction).pop_front();
            match token {
                Token::Send(at) => self.add_out(at, batch),
                Token::Receive(at) => self.add_in(core, at, batch),
                Token::Get(_) => {}
            }
        }
    }

    fn add_out(&mut self, at: u32, batch: &mut Vec<TaggedCopy>) {
        let Some(send) = self.sends.get(at) else { return };
        let (Some(buffer), Some(stager)) = (send.buffer, &self.stager) else { return };
        let bounce = stager.bounce.addr + stager.out.offset(buffer);
        let tag = Token::Send(at).bits();
        let direction = CopyDirection::Out;
        for Record { memory, len, at, .. } in send.records.iter().filter(|r| r.has_bytes()) {
            let copy = Copy { direction, memory: *memory, bounce: bounce + at, len: *len };
            batch.push(TaggedCopy { copy, tag });
        }
    }

    fn add_in<P: Port>(&mut self, core: &mut Core<P>, at: u32, batch: &mut Vec<TaggedCopy>) {
        let part = match self.receives.get(at).map(|receive| receive.state) {
            Some(ReceiveState::CopyingIn(part)) => part,
            _ => CopySpan::All,
        };
        let placed = self.bytes_of(at).and_then(|bytes| {
            if part == CopySpan::All {
                // As late as possible: regions may be released while a receive waits.
                self.locate_records(core, at, bytes)?;
            }
            Ok(bytes)
        });
        let bounce = match placed {
            Ok(bounce) => bounce,
            Err(error) => return self.finish(core, at, Err(error)),
        };
        let Some(receive) = self.receives.get(at) else { return };
        receive.state = ReceiveState::CopyingIn(part);
        let range = match part {
            CopySpan::Group(begin) => group_at(&receive.records, begin),
            _ => 0..receive.records.len(),
        };
        let tag = Token::Receive(at).bits();
        let direction = CopyDirection::In;
        for record in receive.records[range].iter().filter(|record| record.len > 0) {
            let Record { memory, len, at, .. } = *record;
            let copy = Copy { direction, memory, bounce: bounce + at, len };
            batch.push(TaggedCopy { copy, tag });
        }
    }

    fn is_first_in_order(&mut self, token: Token) -> bool {
        // Whether the records are ordered is known only once they are read.
        let Token::Receive(at) = token else { return false };
        let receive = self.receives.get(at);
        receive.is_some_and(|r| r.state == ReceiveState::Arrived && r.may_be_ordered())
    }

    /// Starts a receive with ordered records as one list. Returns None if the records are unordered
    /// or the device takes no such list: groups are then copied one after the other.
    fn start_ordered<P: Port>(&mut self, core: &mut Core<P>, token: Token) -> Option<Posted> {
        let Token::Receive(at) = token else { return None };
        if self.len_ready(core, token).is_none() || !self.is_first_in_order(token) {
            return None;
        }
        let bytes = self.bytes_of(at);
        let read = bytes.and_then(|bytes| self.locate_records(core, at, bytes).map(|()| bytes));
        let mut steps = std::mem::take(&mut self.steps);
        let started = read.and_then(|bytes| {
            let is_staged = self.list_steps(core, at, bytes, &mut steps)?;
            match &mut self.stager {
                Some(stager) if is_staged => {
                    stager.copies.start_in_order(&steps, Token::Receive(at).bits())
                }
                _ => Ok(None),
            }
        });
        steps.clear();
        self.steps = steps;
        let receive = self.receives.get(at)?;
        match started {
            Ok(Some(Posted::Yes)) => {
                receive.state = ReceiveState::CopyingIn(CopySpan::InOrder);
                self.ready(CopyDirection::In).pop_front();
                self.note_started(core, token);
                Some(Posted::Yes)
            }
            Ok(Some(Posted::Again)) => {
                receive.records.clear();
                Some(Posted::Again)
            }
            Ok(None) => {
                if receive.records.iter().any(|record| record.behind) {
                    receive.state = ReceiveState::CopyingIn(CopySpan::Group(0));
                } else {
                    // Plain from now on, so that it is not tried as a list again.
                    receive.records.clear();
                    receive.is_plain = true;
                }
                None
            }
            Err(error) => {
                self.ready(CopyDirection::In).pop_front();
                self.finish(core, at, Err(error));
                Some(Posted::Yes)
            }
        }
    }

    /// Appends the steps of a receive with ordered records. Returns false if they are unordered, or
    /// if the CPU has to change one of the words.
    fn list_steps<P: Port>(
        &mut self,
        core: &mut Core<P>,
        at: u32,
        bytes: usize,
        steps: &mut Vec<OrderedStep>,
    ) -> Result<bool, PortError> {
        let Some(receive) = self.receives.get(at) else { return Ok(false) };
        if !are_ordered(&receive.records) {
            return Ok(false);
        }
        let mut begin = 0;
        while begin < receive.records.len() {
            let range = group_at(&receive.records, begin);
            begin = range.end;
            let group = &receive.records[range];
            // The first copy of each group waits for the group before it.
            let mut behind = !steps.is_empty();
            for Record { memory, len, at, .. } in group.iter().filter(|record| record.len > 0) {
                let (direction, memory, len) = (CopyDirection::In, *memory, *len);
                let copy = Copy { direction, memory, bounce: bytes + at, len };
                steps.push(OrderedStep::Copy { copy, behind: std::mem::take(&mut behind) });
            }
            // The words of a group follow its copies, and are unordered among themselves.
            behind = true;
            for (word, atomic) in group.iter().filter_map(|record| record.signal) {
                let place = core.locate_word(word, &atomic).map_err(error)?;
                // The device cannot order its steps with a store of the CPU.
                if place.reach == Reach::Direct {
                    return Ok(false);
                }
                let (addr, behind) = (place.addr, std::mem::take(&mut behind));
                steps.push(OrderedStep::Apply { addr, atomic, behind });
            }
        }
        Ok(true)
    }

    /// Starts copies, grouped by transfer. Returns false if the port has no capacity.
    fn start_batch<P: Port>(
        &mut self,
        core: &mut Core<P>,
        direction: CopyDirection,
        batch: &[TaggedCopy],
    ) -> bool {
        let Some(stager) = self.stager.as_mut().filter(|_| !batch.is_empty()) else {
            return true;
        };
        let by_tag = || batch.chunk_by(|one, next| one.tag == next.tag);
        match stager.copies.start_all(batch) {
            Ok(Posted::Yes) => {
                for copies in by_tag() {
                    self.note_started(core, Token::of(copies[0].tag));
                }
                true
            }
            Ok(Posted::Again) => {
                let tokens: Vec<Token> = by_tag().map(|copies| Token::of(copies[0].tag)).collect();
                // Last first, so that each goes back to the head in the old order.
                for token in tokens.into_iter().rev() {
                    self.requeue(direction, token);
                }
                false
            }
            Err(error) if by_tag().count() == 1 => {
                match Token::of(batch[0].tag) {
                    Token::Send(at) => self.fail_send(core, at, error),
                    Token::Receive(at) => self.finish(core, at, Err(error)),
                    Token::Get(_) => {}
                }
                true
            }
            // One transfer is at fault: started one by one, only that one fails.
            Err(_) => {
                let mut left = by_tag();
                let started = left.all(|copies| self.start_batch(core, direction, copies));
                left.for_each(|copies| self.requeue(direction, Token::of(copies[0].tag)));
                started
            }
        }
    }

    /// Returns a transfer that was not started to the head of its ready queue.
    fn requeue(&mut self, direction: CopyDirection, token: Token) {
        if let Token::Receive(at) = token {
            if let Some(receive) = self.receives.get(at) {
                if receive.state == ReceiveState::CopyingIn(CopySpan::All) {
                    // Regions may change before the next attempt, so its records are located again.
                    receive.state = ReceiveState::Arrived;
                    receive.records.clear();
                }
            }
        }
        self.ready(direction).push_front(token);
    }

    fn note_started<P: Port>(&mut self, core: &mut Core<P>, token: Token) {
        self.copying += 1;
        // The memory may not be released until the device has ended, even if the peer fails.
        let mut begin = |peer, what, records: &[Record]| {
            for record in records {
                core.begin_copy(token.bits(), peer, what, (record.memory, record.len));
            }
        };
        if let Token::Send(at) = token {
            let Some(send) = self.sends.get(at) else { return };
            begin(send.peer, send.what(), &send.records);
        } else if let Token::Receive(at) = token {
            let Some(receive) = self.receives.get(at) else { return };
            begin(receive.peer, receive.what(), &receive.records);
        }
    }

    pub(super) fn copy_completed<P: Port>(&mut self, core: &mut Core<P>, copied: Copied) {
        let Copied { tag, result } = copied;
        self.copying -= 1;
        core.end_copy(tag);
        match (Token::of(tag), result) {
            (Token::Send(at), result) => {
                let Some(send) = self.sends.get(at) else { return };
                match (send.state, result) {
                    (SendState::Dropped, _) => self.end_send(core, at),
                    (_, Err(error)) => self.fail_send(core, at, error),
                    (_, Ok(())) => {
                        send.state = SendState::Posting(0);
                        self.outgoing.push_back(Token::Send(at));
                    }
                }
            }
            (Token::Receive(at), result) => {
                let state = self.receives.get(at).map(|receive| receive.state);
                match (state, result) {
                    (Some(ReceiveState::CopyingIn(part)), Ok(())) => {
                        self.store_words(core, at, part)
                    }
                    // The words are unchanged, so the message does not count as executed.
                    (Some(ReceiveState::Dropped), _) => self.end_receive(core, at),
                    (_, result) => self.finish(core, at, result),
                }
            }
            (Token::Get(_), _) => {}
        }
    }

    fn store_words<P: Port>(&mut self, core: &mut Core<P>, at: u32, part: CopySpan) {
        let Some(receive) = self.receives.get(at) else { return };
        let count = receive.records.len();
        let changed = match part {
            CopySpan::InOrder => Ok(false),
            CopySpan::All => self.change_words(core, at, 0..count),
            CopySpan::Group(begin) => return self.end_group(core, at, begin),
        };
        match changed {
            Ok(false) => self.finish(core, at, Ok(())),
            Ok(true) => {
                if let Some(receive) = self.receives.get(at) {
                    receive.state = ReceiveState::Storing;
                }
                // One flush per iteration completes the words of all such receives.
                self.signalled.push(at);
            }
            Err(error) => self.finish(core, at, Err(error)),
        }
    }

    fn change_words<P: Port>(
        &mut self,
        core: &mut Core<P>,
        at: u32,
        range: Range<usize>,
    ) -> Result<bool, PortError> {
        let mut has_words = false;
        for number in range {
            let record = self.receives.get(at).and_then(|receive| receive.records.get(number));
            let Some((word, atomic)) = record.and_then(|record| record.signal) else { continue };
            let place = core.locate_word(word, &atomic).map_err(error)?;
            // All puts of the group are stored, and its signals are unordered.
            self.apply(core, place, &atomic, DeferredOrder::Any)?;
            // These words are flushed with the receive: the next executed message must not be noted
            // for them.
            self.has_deferred = false;
            has_words = true;
        }
        Ok(has_words)
    }

    /// Continues after the copies of a record group: changes its words, and those of following
    /// groups without puts, until a group has to be copied.
    fn end_group<P: Port>(&mut self, core: &mut Core<P>, at: u32, mut begin: usize) {
        loop {
            let Some(receive) = self.receives.get(at) else { return };
            let count = receive.records.len();
            if begin >= count {
                return self.finish(core, at, Ok(()));
            }
            let range = group_at(&receive.records, begin);
            begin = range.end;
            let changed = self.change_words(core, at, range);
            // The next group follows these words, so deferred ones are completed first.
            let stored = changed.and_then(|any| if any { self.flush_writes(core) } else { Ok(()) });
            if let Err(error) = stored {
                return self.finish(core, at, Err(error));
            }
            let Some(receive) = self.receives.get(at) else { return };
            if begin < count {
                let next = group_at(&receive.records, begin);
                if receive.records[next].iter().any(|record| record.len > 0) {
                    receive.state = ReceiveState::CopyingIn(CopySpan::Group(begin));
                    return self.ready(CopyDirection::In).push_back(Token::Receive(at));
                }
            }
        }
    }

    pub(super) fn end_signalled<P: Port>(&mut self, core: &mut Core<P>) {
        // One flush serves the signals of all receives that ended in this iteration.
        if self.signalled.is_empty() {
            return;
        }
        let settled = self.flush_writes(core);
        let mut signalled = std::mem::take(&mut self.signalled);
        for at in signalled.drain(..) {
            self.finish(core, at, settled.clone());
        }
        self.signalled = signalled;
    }
}
