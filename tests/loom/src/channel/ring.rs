//! The transport's sources, with loom's atomics.

#[path = "../../../../src/channel/ring/consumer_end.rs"]
mod consumer_end;
#[path = "../../../../src/channel/ring/descriptor.rs"]
pub mod descriptor;
#[path = "../../../../src/channel/ring/encoding.rs"]
pub mod encoding;
#[path = "../../../../src/channel/ring/region_entry.rs"]
pub mod region_entry;
#[path = "../../../../src/channel/ring/slot.rs"]
pub mod slot;

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

    /// No memory here combines writes.
    pub(crate) fn drain_writes() {}
}

pub use consumer_end::{PublishedIn, Ring, RingMemory, State};
