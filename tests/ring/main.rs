//! The rings of the device channel: their bits, and both ends.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod bed;
mod descriptors;
mod producers;
mod regions;
mod support;
mod torn;
mod words;
