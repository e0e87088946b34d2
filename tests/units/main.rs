//! Parts of the plugin that need no fabric: the rings of the device channel, and the log as a
//! process writes it.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod logging;
mod ring;
