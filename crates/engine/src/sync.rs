//! Atomics and locks of what threads hand to each other. `tests/loom` puts loom's in their place
//! and tries every order of loads and stores that the memory model allows, on the same sources.

pub(crate) use std::sync::Mutex;
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
