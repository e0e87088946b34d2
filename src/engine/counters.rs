//! Counters of a rail. Plain integers: the lane that owns them is the only writer.

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
    /// Most segments in flight at a time.
    pub max_in_flight: u32,
}
