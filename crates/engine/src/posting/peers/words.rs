//! Runs of words: values that are put one behind the other leave as one message.
//!
//! A message with a value waits for the next iteration, in its rail's queue. A value that goes
//! right behind it, and is ordered alike, joins it until then. So what a kernel has queued word by
//! word leaves together, and a single word no later than the iteration that follows.

use crate::error::EngineError;
use crate::ids::{Pe, WrId};
use crate::port::Port;
use crate::posting::Core;
use crate::posting::peers::Peers;
use crate::state::batch::Batch;
use crate::state::operation::OpId;
use crate::state::segment::WriteClass;
use crate::wire::message::{Body, Spot};
use crate::wire::staged::{MAX_PAYLOAD, Staged};

/// The run that words may join.
#[derive(Debug)]
pub(super) struct Run {
    /// The message's slot and its segment; none while there is no run.
    message: Option<(u32, WrId)>,
    pe: Pe,
    to: Spot,
    order: Order,
    len: usize,
    bytes: [u8; MAX_PAYLOAD],
}

/// How a put is ordered among others to its peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Order {
    epoch: u32,
    class: WriteClass,
    batch: Batch,
}

impl Order {
    pub(crate) fn differs_by_fences(&self, other: &Self) -> bool {
        (self.class, self.batch) == (other.class, other.batch)
    }

    pub(crate) fn is_of(&self, class: WriteClass, batch: Batch) -> bool {
        (self.class, self.batch) == (class, batch)
    }
}

impl Run {
    pub(super) fn none() -> Box<Self> {
        let order = Order { epoch: 0, class: WriteClass::Word, batch: Batch::NONE };
        let to = Spot { slot: 0, offset: 0 };
        Box::new(Self { message: None, pe: Pe(0), to, order, len: 0, bytes: [0; MAX_PAYLOAD] })
    }
}

impl Peers {
    /// A message leaves, or never will: nothing joins it any more.
    #[inline]
    pub(super) fn end_run(&mut self, slot: u32) {
        if self.run.message.is_some_and(|(open, _)| open == slot) {
            self.run.message = None;
        }
    }
}

impl<P: Port> Core<P> {
    pub(crate) fn order(&mut self, pe: Pe) -> Option<Order> {
        let batch = self.transmit.batches().current();
        let connection = self.peers.find(pe)?;
        Some(Order { epoch: connection.epoch(), class: connection.put_class(), batch })
    }

    pub(crate) fn try_word(&mut self, pe: Pe, to: Spot, value: &[u8]) -> Result<bool, EngineError> {
        if self.joins_run(pe, to, value) {
            return Ok(true);
        }
        let body = Body::Staged(Staged::Put { to, payload: value });
        let Some(wr_id) = self.take_plain_message(pe, OpId::NONE, value.len(), body)? else {
            return Ok(false);
        };
        if self.starts_at_once(wr_id) {
            let segment = self.transmit.segment(wr_id);
            let (rail, message) = (segment.rail, segment.message());
            if let (Some(slot), Some(order)) = (message, self.order(pe)) {
                let run = &mut *self.peers.run;
                (run.message, run.pe, run.to, run.order) = (Some((slot, wr_id)), pe, to, order);
                run.len = value.len();
                run.bytes[..value.len()].copy_from_slice(value);
            }
            self.transmit.queue(wr_id, rail);
        }
        self.peers.check(pe)?;
        Ok(true)
    }

    fn joins_run(&mut self, pe: Pe, to: Spot, value: &[u8]) -> bool {
        let Run { message: Some((slot, wr_id)), pe: of, to: first, order, len, .. } =
            *self.peers.run
        else {
            return false;
        };
        let next = Spot { offset: first.offset + len as u64, ..first };
        let fits = (of, next) == (pe, to) && len + value.len() <= MAX_PAYLOAD;
        if !fits || self.order(pe) != Some(order) {
            return false;
        }
        let end = len + value.len();
        let run = &mut *self.peers.run;
        run.bytes[len..end].copy_from_slice(value);
        run.len = end;
        let bytes = run.bytes;
        self.peers
            .encode_into(slot, Body::Staged(Staged::Put { to: first, payload: &bytes[..end] }));
        self.transmit.segment_mut(wr_id).set_len(end);
        true
    }
}
