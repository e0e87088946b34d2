//! The model of `tests/engine/model`, of the new engine.

#![cfg(feature = "model")]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
#![allow(unexpected_cfgs, reason = "the first engine alone has audits")]

extern crate engine_next as engine;

#[path = "../../../../tests/engine/model/mod.rs"]
mod model;
