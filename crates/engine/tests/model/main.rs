//! The model of `tests/engine/model`, of the new engine.

#![cfg(feature = "model")]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[path = "../../../../tests/engine/model/mod.rs"]
mod model;
