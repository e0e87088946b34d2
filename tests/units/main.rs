//! Parts that need no fabric: what is installed, a process' log.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod install;
mod logging;
