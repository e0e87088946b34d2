//! The engine on the scripted fake fabric: protocol cases that need no NIC and no second process.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod asked;
mod consistency;
mod faults;
mod fences;
mod health;
mod iterations;
mod job;
mod local_memory;
mod order;
mod random;
mod room;
mod signals;
mod staged;
mod stripes;
