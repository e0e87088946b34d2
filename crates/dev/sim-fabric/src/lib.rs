//! A scripted fabric, on which tests run the engine.
#![forbid(unsafe_code)]

mod fake;

pub use fake::*;
