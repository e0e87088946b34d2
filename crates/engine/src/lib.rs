//! Policy and protocol of a lane: how operations become segments on rails, and stay right.
//!
//! The engine names no symbol of libfabric or CUDA, only the traits of [`port`], and no `unsafe`.
//!
//! # Modules
//! Each depends on those before it, but that `core` ends what [`lane::host`] has handed over:
//! 1. [`wire`]: bytes that PEs exchange. [`port`]: interface to a fabric.
//! 2. [`regions`]: registered memory.
//! 3. [`group`]: counts of unfinished work, and order. `op`: operations of callers.
//! 4. `segments`: posted RMA. [`channel`]: reliable messages. [`rails`]: paths, load, counters.
//! 5. `peers`, `core`: configuration, state of each peer; posting, sending, completing, failing.
//! 6. [`signal`]: how signals follow data. `staging`: memory that the fabric does not reach.
//! 7. [`lane`]: submits, queues, and drives all of it in each progress iteration.
//!
//! Terms are those of libfabric, OpenSHMEM and `docs/architecture.md`; decision 64 has the design.
#![forbid(unsafe_code)]

pub mod atomic;
pub mod channel;
mod core;
pub mod error;
pub mod group;
pub mod ids;
pub mod lane;
mod op;
mod peers;
pub mod port;
pub mod rails;
pub mod rate_limit;
pub mod regions;
pub mod request;
mod segments;
pub mod signal;
mod staging;
mod sync;
pub mod thread_wait;
mod watchdog;
pub mod wire;

pub use watchdog::Watchdog;
