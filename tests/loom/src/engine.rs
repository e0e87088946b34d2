//! The parts of the engine that descriptors are made of, and those that threads hand over by.

#[path = "../../../src/engine/atomic.rs"]
pub mod atomic;
#[path = "../../../src/engine/ids.rs"]
pub mod ids;
#[path = "../../../src/engine/lane/user_threads/outstanding.rs"]
pub mod outstanding;
#[path = "../../../src/engine/state/regions/published.rs"]
pub mod published;

mod sync {
    pub(in crate::engine) use loom::sync::Mutex;
    pub(in crate::engine) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
}

mod handed_over;
