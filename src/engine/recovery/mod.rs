//! Recovery: which paths are in service, and what becomes of what was on one that is not.
//!
//! A *path* is one of our rails towards one peer. One that fails is taken out of service, what was on it goes over
//! others as soon as nothing of it can arrive late, and it comes back when a probe over it is answered. Nothing
//! below knows of this but for the ring of paths that streams take in turn, and for segments that were lost
//! sight of.

pub mod detours;
pub mod health;
pub(in crate::engine) mod incidents;
pub(in crate::engine) mod monitor;
pub(in crate::engine) mod rail_messages;
pub(in crate::engine) mod reissue;
pub(in crate::engine) mod resend;
pub(in crate::engine) mod reset;

pub(in crate::engine) use crate::engine::recovery::health::Recovery;
