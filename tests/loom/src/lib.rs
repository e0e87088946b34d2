//! What threads hand to each other, the same sources as in the transport, on loom's atomics: the
//! consumer's end of a ring, operations of user threads, the table of regions.
//!
//! loom runs each test with every order of the threads and every value that a load may return in
//! C++'s memory model, as far as the bound on preemptions goes. The producers here are a model of
//! the device header, with orderings as weak as `include/nvshmem_libfabric_ring.h` allows.
//!
//! A crate of its own, so that loom's atomics are in no other, and no other has to be built again.
#![cfg(test)]
#![allow(dead_code, unreachable_pub, reason = "not all of the shared sources is for these tests")]

// The ring names the engine, of which these parts are here.
extern crate self as engine;

// The parts of the engine that descriptors are made of, and those that threads hand over by.
#[path = "../../../crates/engine/src/atomic.rs"]
pub mod atomic;
#[path = "../../../crates/engine/src/ids.rs"]
pub mod ids;
#[path = "../../../crates/engine/src/lane/host/outstanding.rs"]
pub mod outstanding;
#[path = "../../../crates/engine/src/regions/versioned_cell.rs"]
pub mod versioned_cell;

mod channel;
mod handover;
mod producer;
mod sync;
mod tests;

use loom::model::Builder;

const PREEMPTIONS: usize = 3;

/// Runs a test in every way. At most two of its threads may wait by polling: among three, two could
/// poll for ever while the third has its turn to come.
fn check(test: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(test);
}
