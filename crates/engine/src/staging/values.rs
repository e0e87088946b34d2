//! Runs of values: values put one behind the other leave as one message.
//!
//! Threads of a kernel put single values (`nvshmem_p`) into neighbouring words of staged memory, and
//! a message costs the same for one word as for a full payload. A value that continues the last one
//! sent is therefore queued, as the first of a run, which values right behind it join until the next
//! iteration sends it. The run is an operation in the queue of its peer: what follows, a fence, a
//! signal or a quiet, is ordered behind it as behind any queued operation.

use crate::core::Core;
use crate::op::{Op, OpKind, QueueEntry};
use crate::port::Port;
use crate::staging::Staging;
use crate::wire::message::RegionAddr;
use crate::wire::staging::MAX_PAYLOAD;

/// The run that a lane collects; one at a time.
#[derive(Debug)]
pub(super) struct ValueRun {
    /// Peer, and address behind the last value sent or joined.
    end: Option<(u32, RegionAddr)>,
    /// Bytes of the run in the queue of that peer; empty if none is queued.
    bytes: Vec<u8>,
}

impl Default for ValueRun {
    fn default() -> Self {
        Self { end: None, bytes: Vec::with_capacity(MAX_PAYLOAD) }
    }
}

impl ValueRun {
    /// Takes the bytes of the queued run.
    pub(super) fn send(&mut self, payload: &mut [u8]) {
        payload.copy_from_slice(&self.bytes);
    }

    /// Notes that values up to an address were sent.
    pub(super) fn note_sent(&mut self, at: u32, end: RegionAddr, is_run: bool) {
        if is_run {
            self.bytes.clear();
        }
        if self.bytes.is_empty() {
            self.end = Some((at, end));
        }
    }
}

/// What has become of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Joined {
    /// Nothing: it continues neither the run nor the last value sent.
    Nothing,
    /// Nothing: the run that it continues is full.
    Full,
    /// It begins a run, which the caller queues.
    Begun,
    /// It has joined the run in the queue.
    Queued,
}

impl Staging {
    /// Adds a value to the run in its peer's queue, or begins a run with it, if it continues the
    /// run or the last value sent.
    pub(crate) fn join_value<P: Port>(
        &mut self,
        core: &mut Core<P>,
        at: u32,
        (op, value): (&Op, u64),
        to: RegionAddr,
    ) -> Joined {
        let ValueRun { end, bytes } = &mut self.values;
        let Some((peer, next)) = *end else { return Joined::Nothing };
        if core.peers.get(peer).error.is_some() {
            // The queue was dropped, and the run with it.
            bytes.clear();
        }
        if (peer, next) != (at, to) {
            return Joined::Nothing;
        }
        if bytes.len() + op.len > MAX_PAYLOAD {
            return Joined::Full;
        }
        let begins = bytes.is_empty();
        match core.peers.get_mut(at).queue.back_mut() {
            None if begins => {}
            Some(QueueEntry::Op(run, _))
                if matches!(run.kind, OpKind::Values) && run.completion == op.completion =>
            {
                run.len += op.len;
            }
            _ => return Joined::Nothing,
        }
        bytes.extend_from_slice(&value.to_le_bytes()[..op.len]);
        *end = Some((at, RegionAddr { offset: to.offset + op.len as u64, ..to }));
        if begins { Joined::Begun } else { Joined::Queued }
    }
}
