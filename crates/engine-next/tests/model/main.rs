//! The model of `tests/model`, of the new engine.

#![allow(unexpected_cfgs, reason = "the first engine alone has audits")]

extern crate engine_next as engine;

#[path = "../../../../tests/engine/model/mod.rs"]
mod model;
