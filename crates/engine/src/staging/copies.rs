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
use crate::staging::receive::CopySpan;
use crate::staging::receive::ReceiveState::{self, Arrived, CopyingIn};
use crate::staging::records::{Record, are_ordered, section_at};
use crate::staging::send::{SendState, SendTarget};
use crate::staging::{Staging, Token};
use crate::wire::staging::MAX_RECORDS;

/// Bytes from which a copy out is worth a call of its own, unless transfers wait for buffers.
const LONG_COPY: usize = 256 << 10;

/// Bytes from which a call takes no further transfer.
const MAX_BYTES: usize = 2 << 20;

fn error(text: String) -> PortError {
    PortError { call: "applying the signal of a put", code: 0, text }
}

impl Staging {
    fn capacity(&self, direction: CopyDirection) -> usize {
        self.stager.as_ref().map_or(0, |stager| stager.copies.capacity(direction))
    }

    /// Starts copies of ready transfers in a direction. Returns whether anything moved.
    pub(super) fn start_copies<P: Port>(
        &mut self,
        core: &mut Core<P>,
        direction: CopyDirection,
    ) -> bool {
        let mut moved = false;
        while let Some(first) = self.ready(direction).front().copied() {
            let capacity = self.capacity(direction);
            if capacity == 0 {
                break;
            }
            // A receive with dependent records goes to the device alone, as an ordered batch.
            match self.start_ordered(core, first) {
                Some(Posted::Yes) => {
                    moved = true;
                    continue;
                }
                Some(Posted::Again) => break,
                None => {}
            }
            let mut batch = std::mem::take(&mut self.batch);
            self.collect(core, direction, capacity, &mut batch);
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
        // Transfers of a failed or refused peer end with an event that is queued already.
        let is_alive = |pe| core.peers.get(pe).error.is_none();
        match token {
            Token::Send(index) => {
                let send = self.sends.get(index)?;
                (send.state == SendState::CopyingOut && is_alive(send.pe)).then_some(send.len)
            }
            Token::Receive(index) => {
                let receive = self.receives.get(index)?;
                let is = matches!(receive.state, Arrived | CopyingIn(CopySpan::Section(_)));
                (is && is_alive(receive.pe) && !receive.is_refused(core)).then_some(receive.len)
            }
            Token::Get(_) => None,
        }
    }

    fn collect<P: Port>(
        &mut self,
        core: &mut Core<P>,
        direction: CopyDirection,
        capacity: usize,
        batch: &mut Vec<TaggedCopy>,
    ) {
        // While a transfer waits for a buffer, holding copies back would delay it as well.
        let has_backlog = direction == CopyDirection::In
            || self.stager.as_ref().is_some_and(|b| b.out.is_waited_for());
        let mut bytes = 0;
        for number in 0..capacity {
            let Some(token) = self.ready(direction).front().copied() else { break };
            let Some(len) = self.len_ready(core, token) else {
                self.ready(direction).pop_front();
                continue;
            };
            let waits = len >= LONG_COPY && (!has_backlog || bytes + len > MAX_BYTES);
            // Stop at the byte limit, at the port's limit, and before a receive that goes alone.
            if bytes > 0 && (waits || bytes >= MAX_BYTES)
                || batch.len() > MAX_BATCH_COPIES - MAX_RECORDS
                || number > 0 && self.goes_alone(core, token)
            {
                break;
            }
            // Taken from the queue only now: a transfer that does not fit stays first in it.
            bytes += len;
            self.ready(direction).pop_front();
            match token {
                Token::Send(index) => self.add_out(core, index, batch),
                Token::Receive(index) => self.add_in(core, index, batch),
                Token::Get(_) => {}
            }
        }
    }

    fn add_out<P: Port>(&mut self, core: &mut Core<P>, index: u32, batch: &mut Vec<TaggedCopy>) {
        let Some(send) = self.sends.get(index) else { return };
        let (Some(buffer), Some(stager)) = (send.buffer, &self.stager) else { return };
        if let SendTarget::Get(_, seq) = send.to {
            // Located again: the region may have been released since the request arrived.
            let mut located = send.records.iter().map(|get| core.regions.locate(get.to, get.len));
            if let Some(Err(fault)) = located.find(Result::is_err) {
                core.decline(send.pe, seq, fault.to_string());
                return self.end_send(core, index);
            }
        }
        let bounce = stager.bounce.addr + stager.out.offset(buffer);
        let tag = Token::Send(index).bits();
        let direction = CopyDirection::Out;
        for Record { memory, len, offset, .. } in send.records.iter().filter(|r| r.has_bytes()) {
            let copy = Copy { direction, memory: *memory, bounce: bounce + offset, len: *len };
            batch.push(TaggedCopy { copy, tag });
        }
    }

    fn add_in<P: Port>(&mut self, core: &mut Core<P>, index: u32, batch: &mut Vec<TaggedCopy>) {
        let part = match self.receives.get(index).map(|receive| receive.state) {
            Some(CopyingIn(part)) => part,
            _ => CopySpan::All,
        };
        // As late as possible: regions may be released while a receive waits.
        let is_located = self.receives.get(index).is_some_and(|r| !r.records.is_empty());
        let bounce = match part {
            CopySpan::All if !is_located => self.locate_records(core, index),
            _ => self.bytes_of(index),
        };
        let bounce = match bounce {
            Ok(bounce) => bounce,
            Err(error) => return self.finish(core, index, Err(error)),
        };
        let Some(receive) = self.receives.get(index) else { return };
        receive.state = CopyingIn(part);
        let range = match part {
            CopySpan::Section(begin) => section_at(&receive.records, begin),
            _ => 0..receive.records.len(),
        };
        let tag = Token::Receive(index).bits();
        let direction = CopyDirection::In;
        for record in receive.records[range].iter().filter(|record| record.len > 0) {
            let Record { memory, len, offset, .. } = *record;
            let copy = Copy { direction, memory, bounce: bounce + offset, len };
            batch.push(TaggedCopy { copy, tag });
        }
    }

    /// Returns a receive's index if its records may be ordered.
    fn may_be_ordered(&mut self, token: Token) -> Option<u32> {
        let Token::Receive(index) = token else { return None };
        let receive = self.receives.get(index)?;
        (receive.state == Arrived && receive.may_be_ordered()).then_some(index)
    }

    /// Returns true if a receive cannot be copied together with others: it is ordered, has no
    /// bytes, or cannot be read.
    fn goes_alone<P: Port>(&mut self, core: &mut Core<P>, token: Token) -> bool {
        let Some(index) = self.may_be_ordered(token) else { return false };
        // Whether the records are ordered is known only once they are read.
        let located = self.locate_records(core, index);
        let Some(receive) = self.receives.get(index) else { return false };
        let has_bytes = receive.records.iter().any(|record| record.len > 0);
        receive.is_unordered = located.is_ok() && has_bytes && !are_ordered(&receive.records);
        if !receive.is_unordered {
            // Read once more when its turn comes: regions may be released meanwhile.
            receive.records.clear();
        }
        !receive.is_unordered
    }

    /// Starts a receive with ordered records as one ordered batch. Returns None if the records are
    /// unordered or the device takes no such batch: sections are then copied one by one.
    fn start_ordered<P: Port>(&mut self, core: &mut Core<P>, token: Token) -> Option<Posted> {
        let index = self.may_be_ordered(token)?;
        self.len_ready(core, token)?;
        let mut steps = std::mem::take(&mut self.steps);
        let started = self.locate_records(core, index).and_then(|bytes| {
            let is_staged = self.append_steps(core, index, bytes, &mut steps)?;
            match &mut self.stager {
                Some(stager) if is_staged => {
                    stager.copies.start_in_order(&steps, Token::Receive(index).bits())
                }
                _ => Ok(None),
            }
        });
        steps.clear();
        self.steps = steps;
        let receive = self.receives.get(index)?;
        match started {
            Ok(Some(Posted::Yes)) => {
                receive.state = CopyingIn(CopySpan::InOrder);
                self.ready(CopyDirection::In).pop_front();
                self.begin_copies(core, token);
                Some(Posted::Yes)
            }
            Ok(Some(Posted::Again)) => {
                receive.records.clear();
                Some(Posted::Again)
            }
            Ok(None) => {
                if receive.records[section_at(&receive.records, 0)].iter().all(|r| r.len == 0) {
                    self.ready(CopyDirection::In).pop_front();
                    self.end_section(core, index, 0);
                    return Some(Posted::Yes);
                }
                // If unordered, it is not tried as an ordered batch again.
                receive.is_unordered = !receive.records.iter().any(|record| record.is_ordered);
                if !receive.is_unordered {
                    receive.state = CopyingIn(CopySpan::Section(0));
                }
                None
            }
            Err(error) => {
                self.ready(CopyDirection::In).pop_front();
                self.finish(core, index, Err(error));
                Some(Posted::Yes)
            }
        }
    }

    /// Appends the steps of a receive with ordered records. Returns false if they are unordered, or
    /// if the CPU has to change one of the words.
    fn append_steps<P: Port>(
        &mut self,
        core: &mut Core<P>,
        index: u32,
        bytes: usize,
        steps: &mut Vec<OrderedStep>,
    ) -> Result<bool, PortError> {
        let Some(receive) = self.receives.get(index) else { return Ok(false) };
        if !are_ordered(&receive.records) {
            return Ok(false);
        }
        let mut begin = 0;
        while begin < receive.records.len() {
            let range = section_at(&receive.records, begin);
            begin = range.end;
            let section = &receive.records[range];
            // The first copy of each section waits for the section before it.
            let mut is_ordered = !steps.is_empty();
            for Record { memory, len, offset, .. } in section.iter().filter(|r| r.len > 0) {
                let (direction, memory, len) = (CopyDirection::In, *memory, *len);
                let copy = Copy { direction, memory, bounce: bytes + offset, len };
                steps.push(OrderedStep::Copy { copy, is_ordered: std::mem::take(&mut is_ordered) });
            }
            for (word, atomic) in section.iter().filter_map(|record| record.signal) {
                let location = core.locate_word(word, &atomic).map_err(error)?;
                // The device cannot order its steps with a store of the CPU.
                if location.reach == Reach::Direct {
                    return Ok(false);
                }
                steps.push(OrderedStep::Apply { addr: location.addr, atomic });
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
                    self.begin_copies(core, Token::of(copies[0].tag));
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
                    Token::Send(index) => self.fail_send(core, index, error),
                    Token::Receive(index) => self.finish(core, index, Err(error)),
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
        if let Token::Receive(index) = token {
            let receive = self.receives.get(index);
            if let Some(receive) = receive.filter(|r| r.state == CopyingIn(CopySpan::All)) {
                // Regions may change before the next attempt, so its records are located again.
                receive.state = Arrived;
                receive.records.clear();
            }
        }
        self.ready(direction).push_front(token);
    }

    fn begin_copies<P: Port>(&mut self, core: &mut Core<P>, token: Token) {
        self.copying += 1;
        // The memory may not be released until the device has ended, even if the peer fails.
        let mut begin = |pe, what, records: &[Record]| {
            for record in records {
                core.begin_copy(token.bits(), pe, what, (record.memory, record.len));
            }
        };
        if let Token::Send(index) = token {
            let Some(send) = self.sends.get(index) else { return };
            begin(send.pe, send.what(), &send.records);
        } else if let Token::Receive(index) = token {
            let Some(receive) = self.receives.get(index) else { return };
            begin(receive.pe, receive.what(), &receive.records);
        }
    }

    pub(super) fn copy_completed<P: Port>(&mut self, core: &mut Core<P>, copied: Copied) {
        let Copied { tag, result } = copied;
        self.copying -= 1;
        core.end_copy(tag);
        match (Token::of(tag), result) {
            (Token::Send(index), result) => {
                let Some(send) = self.sends.get(index) else { return };
                match (send.state, result) {
                    (SendState::Dropped, _) => self.end_send(core, index),
                    (_, Err(error)) => self.fail_send(core, index, error),
                    (_, Ok(())) => {
                        send.state = SendState::Outgoing(0);
                        self.outgoing.push_back(Token::Send(index));
                    }
                }
            }
            (Token::Receive(index), result) => {
                let state = self.receives.get(index).map(|receive| receive.state);
                match (state, result) {
                    (Some(CopyingIn(part)), Ok(())) => self.store_words(core, index, part),
                    // The words are unchanged, so the message does not count as executed.
                    (Some(ReceiveState::Dropped), _) => self.end_receive(core, index),
                    (_, result) => self.finish(core, index, result),
                }
            }
            (Token::Get(_), _) => {}
        }
    }

    fn store_words<P: Port>(&mut self, core: &mut Core<P>, index: u32, part: CopySpan) {
        let Some(receive) = self.receives.get(index) else { return };
        let count = receive.records.len();
        let changed = match part {
            CopySpan::InOrder => Ok(false),
            CopySpan::All => self.change_words(core, index, 0..count, DeferredOrder::Any),
            CopySpan::Section(begin) => return self.end_section(core, index, begin),
        };
        match changed {
            Ok(true) => {
                if let Some(receive) = self.receives.get(index) {
                    receive.state = ReceiveState::Storing;
                }
                // One flush per iteration completes the words of all such receives.
                self.signalled.push(index);
            }
            done => self.finish(core, index, done.map(drop)),
        }
    }

    fn change_words<P: Port>(
        &mut self,
        core: &mut Core<P>,
        index: u32,
        range: Range<usize>,
        order: DeferredOrder,
    ) -> Result<bool, PortError> {
        let mut has_words = false;
        for number in range {
            let record = self.receives.get(index).and_then(|receive| receive.records.get(number));
            let Some((word, atomic)) = record.and_then(|record| record.signal) else { continue };
            let location = core.locate_word(word, &atomic).map_err(error)?;
            // All puts of the section are stored.
            self.apply(core, location, &atomic, order)?;
            has_words = true;
        }
        // These words are flushed with the receive, not with the next executed message. Until here
        // a word that the processor changes completes deferred ones before it.
        self.has_deferred = false;
        Ok(has_words)
    }

    /// Continues after the copies of a section: changes its words, and those of following
    /// sections without puts, until a section has to be copied.
    fn end_section<P: Port>(&mut self, core: &mut Core<P>, index: u32, mut begin: usize) {
        loop {
            let Some(receive) = self.receives.get(index) else { return };
            let count = receive.records.len();
            if begin >= count {
                return self.finish(core, index, Ok(()));
            }
            let range = section_at(&receive.records, begin);
            begin = range.end;
            let changed = self.change_words(core, index, range, DeferredOrder::After);
            // The next section follows these words, so deferred ones are completed first.
            let stored = changed.and_then(|any| if any { self.flush_writes(core) } else { Ok(()) });
            if let Err(error) = stored {
                return self.finish(core, index, Err(error));
            }
            let Some(receive) = self.receives.get(index) else { return };
            if begin < count {
                let next = section_at(&receive.records, begin);
                if receive.records[next].iter().any(|record| record.len > 0) {
                    receive.state = CopyingIn(CopySpan::Section(begin));
                    return self.ready(CopyDirection::In).push_back(Token::Receive(index));
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
        for index in signalled.drain(..) {
            self.finish(core, index, settled.clone());
        }
        self.signalled = signalled;
    }
}
