//! Runs of values: consecutive values leave as one message.
//!
//! Threads of a kernel put single values (`nvshmem_p`) into neighbouring words of staged memory,
//! and a message costs the same for one word as for a full payload. A value is therefore queued,
//! and values that continue it join it, until the next iteration sends the run. The run is an
//! operation in the queue of its peer: a later fence, signal or quiet follows it as any queued
//! operation.

use crate::core::Core;
use crate::op::{Op, OpKind, QueueEntry};
use crate::port::Port;
use crate::staging::Staging;
use crate::wire::message::RegionAddr;
use crate::wire::staging::MAX_PAYLOAD;

/// Run of values that a lane collects, one at a time.
#[derive(Debug)]
pub(super) struct ValueRun {
    peer: u32,
    /// Address of the next value.
    next: RegionAddr,
    /// Bytes of the run; empty if none is queued.
    bytes: Vec<u8>,
}

impl Default for ValueRun {
    fn default() -> Self {
        let next = RegionAddr { slot: 0, offset: 0 };
        Self { peer: 0, next, bytes: Vec::with_capacity(MAX_PAYLOAD) }
    }
}

impl ValueRun {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Ends the run after it was sent.
    pub(super) fn end(&mut self) {
        self.bytes.clear();
    }
}

/// Outcome of adding a value to a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Joined {
    /// The value has joined the run in the queue of its peer.
    Run,
    /// The value starts a run, which the caller queues.
    Begun,
    /// Not added: a run that the value does not continue is queued for this peer.
    Behind(u32),
    /// Not added: other operations are queued before the value.
    Nothing,
}

impl Staging {
    /// Adds a value to the run that it continues, or starts a run with it.
    pub(crate) fn join_value<P: Port>(
        &mut self,
        core: &mut Core<P>,
        at: u32,
        (op, value): (&Op, u64),
        to: RegionAddr,
    ) -> Joined {
        let ValueRun { peer, next, bytes } = &mut self.values;
        if !bytes.is_empty() && core.peers.get(*peer).error.is_some() {
            // The queue of the failed peer was dropped, and the run with it.
            bytes.clear();
        }
        // The run is last in its queue, or a value would overtake what is queued after it.
        let begins = bytes.is_empty();
        match core.peers.get_mut(at).queue.back_mut() {
            None if begins => {}
            _ if begins => return Joined::Nothing,
            Some(QueueEntry::Op(run, _))
                if (*peer, *next) == (at, to)
                    && bytes.len() + op.len <= MAX_PAYLOAD
                    && matches!(run.kind, OpKind::Values)
                    && run.completion == op.completion =>
            {
                run.len += op.len;
            }
            _ => return Joined::Behind(*peer),
        }
        bytes.extend_from_slice(&value.to_le_bytes()[..op.len]);
        (*peer, *next) = (at, RegionAddr { offset: to.offset + op.len as u64, ..to });
        if begins { Joined::Begun } else { Joined::Run }
    }
}
