//! The engine in one process: on the scripted fake fabric, which needs no NIC; its wire format
//! under arbitrary bytes (`wire`); every order of events of small programs (`model`, with the
//! feature of this name); and what lanes allocate (`memory`).

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod asked;
mod contention;
mod corners;
mod faults;
mod forge;
mod iterations;
mod job;
mod local_memory;
mod memory;
#[cfg(feature = "model")]
mod model;
mod prelude;
mod programs;
mod race;
mod signals;
mod staged;
mod stripes;
mod wire;
