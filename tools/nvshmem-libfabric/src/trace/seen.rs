//! What a recording itself shows of its transport: signals that left before the data that they tell of.
//!
//! NVSHMEM sends some puts with signal as a put and an atomic with a signal's operation, with nothing between the two, and its
//! transport is to keep them in order. The recorder notes of each such signal whether it had left when the call returned, with
//! puts before it to the same PE still under way: whether it was kept back for them.

use nvshmem_transport_libfabric::job::recording::format::{Caller, Kind, Record, Recording};

use super::job::CallId;

/// A signal that left before data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Early {
    pub(super) signal: CallId,
    /// The last put before it.
    pub(super) data: Option<CallId>,
}

/// The signals of a PE that left before their data had ended.
pub(super) fn early_signals(recording: &Recording) -> Vec<Early> {
    let records = &recording.records;
    let ahead = records.iter().enumerate().filter(|(_, record)| record.ahead && record.status == 0);
    let early = |(at, signal): (usize, &Record)| {
        let put = records[..at].iter().rposition(|record| {
            let puts = matches!(record.kind, Kind::Put | Kind::P | Kind::Part | Kind::PutSignal);
            puts && (record.caller, record.pe) == (Caller::Proxy, signal.pe) && record.bytes > 0
        });
        let call = |at| CallId { pe: recording.pe, at };
        Early { signal: call(at), data: put.map(call) }
    };
    ahead.map(early).collect()
}
