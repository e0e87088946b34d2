//! A scripted fabric, on which tests run the engine.
//!
//! The engine's own unit tests compile [`fake`] a second time, as a module of theirs: a test build
//! of a crate is another crate than the one that this one is linked with.
#![forbid(unsafe_code)]

mod fake;

pub use fake::*;
