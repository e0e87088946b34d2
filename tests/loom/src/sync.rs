//! What the engine's `sync` offers, of loom.

pub(crate) use loom::sync::Mutex;
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
