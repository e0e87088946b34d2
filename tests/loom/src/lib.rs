//! The consumer's end of a ring, the same source as in the transport, on loom's atomics.
//!
//! loom runs each test again and again, with every order of the threads and every value that a load may
//! return in C++'s memory model, as far as the bound on preemptions goes. The producers here are a
//! model of the device header: they do what `include/nvshmem_libfabric_ring.h` asks, with orderings as weak as it
//! allows.
//!
//! A crate of its own, so that loom's atomics are in no other, and no other has to be built again.
#![cfg(test)]
#![allow(dead_code, unreachable_pub, reason = "not all of the shared sources is for these tests")]

mod channel;
mod engine;
mod producer;
mod tests;
