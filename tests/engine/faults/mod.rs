//! Faults: what users are told, what comes late, and what the log says; and random schedules of
//! them.

mod failures;
mod fault;
mod given_up;
mod late;
mod released;
mod schedules;
mod silent;
mod strangers;
mod warnings;
