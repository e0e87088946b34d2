//! Runs of values: values put one after the other leave as one message.
//!
//! Threads of a kernel put single values (`nvshmem_p`) into neighbouring words of staged memory,
//! and a message costs the same for one word as for a full payload. A value is therefore queued,
//! and values that continue it join it, until the next iteration sends the run. Fences, signals and
//! quiets follow runs as they follow any queued operation.

use std::collections::VecDeque;

use crate::core::Core;
use crate::ids::Pe;
use crate::op::{Op, OpKind, QueueEntry};
use crate::port::Port;
use crate::staging::Staging;
use crate::wire::message::RegionAddr;
use crate::wire::staging::MAX_PAYLOAD;

/// Maximum bytes of queued runs: those of a few warps.
const MAX_BYTES: usize = 8 << 10;

/// Runs of values that are queued, all for one peer.
#[derive(Debug)]
pub(super) struct ValueRuns {
    pe: Pe,
    /// End of the last value.
    end: RegionAddr,
    /// Bytes of the runs, in the order in which the queue has them.
    pub(super) bytes: VecDeque<u8>,
}

impl Default for ValueRuns {
    fn default() -> Self {
        let end = RegionAddr { region: 0, offset: 0 };
        Self { pe: Pe(0), end, bytes: VecDeque::new() }
    }
}

/// Outcome of queueing a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Joined {
    /// It has joined the last run in the queue of its peer.
    Run,
    /// It begins a run, which the caller queues.
    Begun,
    /// Nothing: the runs in the queue of this peer have to be sent first.
    Busy(Pe),
}

impl Staging {
    /// Adds a value to the run that it continues, or begins a run with it.
    pub(crate) fn join_value<P: Port>(
        &mut self,
        core: &mut Core<P>,
        pe: Pe,
        (op, value): (&Op, u64),
        to: RegionAddr,
    ) -> Joined {
        let ValueRuns { pe: queued_for, end, bytes } = &mut self.values;
        if !bytes.is_empty() && core.peers.get(*queued_for).error.is_some() {
            // The queue of the failed peer was dropped, and the runs with it.
            bytes.clear();
        }
        if !bytes.is_empty() && (*queued_for != pe || bytes.len() + op.len > MAX_BYTES) {
            return Joined::Busy(*queued_for);
        }
        let joined = match core.peers.get_mut(pe).queue.back_mut() {
            Some(QueueEntry::Op(run, _))
                if matches!(run.kind, OpKind::Values)
                    && *end == to
                    && run.len + op.len <= MAX_PAYLOAD
                    && run.completion == op.completion =>
            {
                run.len += op.len;
                Joined::Run
            }
            _ => Joined::Begun,
        };
        bytes.extend(&value.to_le_bytes()[..op.len]);
        (*queued_for, *end) = (pe, RegionAddr { offset: to.offset + op.len as u64, ..to });
        joined
    }
}
