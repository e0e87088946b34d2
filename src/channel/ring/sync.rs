//! The atomics that both ends of a ring use. `tests/loom` replaces them by loom's, and tries
//! every order of loads and stores that the memory model allows on the same source.

pub(crate) use cuda::drain_writes;
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
