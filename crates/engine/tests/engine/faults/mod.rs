//! Faults: what users are told, what comes late, and what the log says; and random schedules of
//! them.

mod failures;
#[path = "../../../../../tests/engine/faults/fault.rs"]
mod fault;
mod given_up;
mod late;
mod released;
mod schedules;
mod silent;
mod strangers;
mod warnings;
