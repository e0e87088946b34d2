//! Messages between proxy lanes: those that leave, those that come in, and what they ask for.

pub(in crate::engine) mod incoming;
pub(in crate::engine) mod notes;
pub(in crate::engine) mod outgoing;
pub(in crate::engine) mod words;
