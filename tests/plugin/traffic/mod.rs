//! Scenarios that the PEs of a job run.

pub(crate) mod atomics;
pub(crate) mod operations;
pub(crate) mod order;
pub(crate) mod resident;
pub(crate) mod signals;
pub(crate) mod storm;
