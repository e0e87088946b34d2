//! Parts of the plugin that need no fabric: what is installed, the rings of the device channel, and
//! the log as a process writes it.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod install;
mod logging;
mod ring;
