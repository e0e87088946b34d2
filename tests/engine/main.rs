//! The engine in one process: on the scripted fake fabric, which needs no NIC; its wire format
//! under arbitrary bytes (`wire`); every order of events of small programs (`model`); and what
//! lanes allocate (`memory`).

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod asked;
mod consistency;
mod differing;
mod faults;
mod fences;
mod health;
mod iterations;
mod job;
mod local_memory;
mod memory;
mod model;
mod order;
mod random;
mod room;
mod signals;
mod staged;
mod stripes;
mod wire;
