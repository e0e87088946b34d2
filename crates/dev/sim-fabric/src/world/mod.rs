//! The world behind a fake fabric's lock: its state, and what happens in it as the clock moves.

mod clock;
mod copies;
mod faults;
pub(super) mod flights;
pub(super) mod letters;
mod links;
mod mail;
pub(super) mod memory;
mod operations;
pub(super) mod state;

use engine::port::PortError;

/// An error as the fake fabric gives it.
pub(crate) fn fault(call: &'static str, code: i32, text: &str) -> PortError {
    PortError { call, code, text: text.to_owned() }
}
