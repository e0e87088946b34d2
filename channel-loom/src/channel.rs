//! The transport's sources, with loom's atomics.

#[path = "../../src/channel/descriptor.rs"]
pub mod descriptor;
#[path = "../../src/channel/encoding.rs"]
pub mod encoding;
#[path = "../../src/channel/ring.rs"]
pub mod ring;
#[path = "../../src/channel/slot.rs"]
pub mod slot;

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
}
