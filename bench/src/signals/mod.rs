//! Puts with signal, fences and fetching atomics: the plugin beside raw libfabric, and beside a
//! reference that orders as the shipped transport does.
//!
//! The reference is driven through the plugin's own interface: put, then quiet for every PE, then
//! the signal as an atomic. So it moves the same bytes by the same code, and what differs is how
//! the signal is kept behind its data.

pub(crate) mod case;
mod command;
pub(crate) mod count;
mod laps;
pub(crate) mod launch;
mod party;
mod peer;
mod places;
pub(crate) mod scenario;
mod source;
