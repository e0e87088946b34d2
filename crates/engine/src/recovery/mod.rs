//! Recovery: which paths are in service, and what becomes of what was on one that is not.
//!
//! A *path* is one of our rails towards one peer. One that fails is taken out of service, what was
//! on it goes over others as soon as nothing of it can arrive late, and it comes back when a probe
//! over it is answered. Nothing below knows of this but for the ring of paths that connections take
//! in turn, and for segments that were lost sight of.

pub mod fallback_routes;
pub mod health;
pub(crate) mod incidents;
pub(crate) mod monitor;
pub(crate) mod rail_messages;
pub(crate) mod reissue;
pub(crate) mod resend;
pub(crate) mod reset;

pub(crate) use crate::recovery::health::Recovery;
