//! Faults: what users are told, what comes late, and what the log says.

mod failures;
mod late;
mod warnings;
