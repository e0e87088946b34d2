//! A scripted fabric for tests: many PEs in one process, a clock of its own, and every kind of
//! misbehaviour a real fabric has, drawn from a seed so that a failure can be run again.
//!
//! Time moves only when a port is polled or relaxes, so nothing here waits. The fabric checks what
//! it is asked to do (keys, bounds, work-request ids, descriptors, depth) more strictly than any
//! provider.
#![forbid(unsafe_code)]

mod baton;
mod copies;
mod fabric;
mod lane;
mod port;
mod prelude;
mod registration;
mod script;
mod world;

pub use fabric::FakeFabric;
pub use lane::{RAIL, SHARE, lane_config, straight_paths};
pub use port::FakePort;
pub use registration::{FakeMemory, FakeRegion};
pub use script::{CALM, Call, Delivery, Event, PortCall, Script};
pub use world::World;
