//! Counters of a lane, written only by the lane.

use crate::ids::Pe;

/// Counters of a rail since start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RailCounters {
    /// Segments that the fabric has taken: those completed and in flight, added when asked for.
    pub posted: u64,
    /// Bytes of those segments.
    pub bytes: u64,
    /// Segments that have completed, with or without an error.
    pub completed: u64,
    /// Posts that the fabric had no capacity for.
    pub again: u64,
    /// Operations that had to wait in their peer's queue, counted on the first rail.
    pub queued: u64,
    /// Segments whose rail was chosen by load.
    pub by_load: u64,
    /// Bytes of segments that were handed to the rail's worker threads.
    pub bulk_bytes: u64,
    /// Recent rate in bytes per second; 0 before the first segment chosen by load.
    pub rate: u64,
    /// Maximum number of segments in flight at a time.
    pub max_in_flight: u32,
    /// Messages and immediate data that no PE of the job has sent.
    pub foreign: u64,
}

/// Bytes of staged operations since start, by how they were transferred.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StagedCounters {
    /// Read or written by this lane through the fabric.
    pub by_fabric: u64,
    /// Sent by this lane in messages, or taken from messages that carry the bytes they announce.
    pub in_messages: u64,
    /// Copied in by this lane from a same-host peer's bounce memory.
    pub shared: u64,
    /// Copied by the CPU between memory of this process and bounce memory.
    pub by_cpu: u64,
}

/// Traffic between a lane and one peer since start, each modulo 2^32.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerCounters {
    pub pe: Pe,
    /// Segments written to it that have completed, with or without an error.
    pub writes: u32,
    /// Segments read from it that have completed, with or without an error.
    pub reads: u32,
    /// Messages that have left for it.
    pub sent: u32,
    /// Messages from it that are executed, up to the first that is not.
    pub received: u32,
}
