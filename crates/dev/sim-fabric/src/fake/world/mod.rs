//! The world behind a fake fabric's lock: its state, and what happens in it as the clock moves.

mod clock;
mod copies;
pub(super) mod error;
mod faults;
pub(super) mod flights;
pub(super) mod letters;
mod links;
mod mail;
pub(super) mod memory;
mod operations;
pub(super) mod state;
