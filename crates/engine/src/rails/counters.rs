//! Counters of a lane. Plain integers: the lane that owns them is the only writer.

use crate::ids::Pe;

/// What a rail has done since start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RailCounters {
    /// Segments the fabric has taken.
    pub posted: u64,
    /// Bytes of those segments.
    pub bytes: u64,
    /// Segments that completed, with or without an error.
    pub completed: u64,
    /// Times the fabric had no room.
    pub again: u64,
    /// Segments that had to wait in the rail's queue.
    pub queued: u64,
    /// Segments that it was given by its load, rather than in turn.
    pub by_load: u64,
    /// Bytes of segments that its connections for bulk have taken.
    pub bulk_bytes: u64,
    /// The rate that it has lately shown, in bytes per second; 0 before the first of those
    /// segments.
    pub rate: u64,
    /// Most segments in flight at a time.
    pub max_in_flight: u32,
    /// Times that a path over it was taken out of service.
    pub failures: u64,
    /// Segments that were posted on it and had to be posted again, on this rail or another.
    pub reissued: u64,
    /// Messages that were sent on it and had to be sent again.
    pub resent: u64,
    /// What came to it, whole or not, and is of no PE of the job: messages and immediate data.
    pub foreign: u64,
}

/// Bytes of staged operations by how they got from one process to the other, since start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StagedCounters {
    /// Read or written by this lane through the fabric.
    pub by_fabric: u64,
    /// Sent by this lane in messages.
    pub in_messages: u64,
    /// Copied in by this lane from bounce memory that the peer shares: no processor has touched
    /// them.
    pub shared: u64,
    /// Copied by the processor between memory of this process and bounce memory.
    pub by_cpu: u64,
}

/// What has gone between a lane and one peer since start, modulo 2^32 each. They are the counts by
/// which the lane knows what is outstanding, so keeping them costs nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerCounters {
    /// The peer.
    pub pe: Pe,
    /// Segments written to it, and messages, which write at the peer as well.
    pub writes: u32,
    /// Segments read from it.
    pub reads: u32,
    /// Numbered messages that have left for it: atomics, signals, requests about staged memory.
    pub sent: u32,
    /// Numbered messages that have arrived from it, up to the first that is missing.
    pub received: u32,
}
