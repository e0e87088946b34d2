//! Recovery: which paths are in service, and what becomes of what was on one that is not.

pub mod detours;
pub(in crate::engine) mod failures;
pub mod health;
pub(in crate::engine) mod monitor;
pub(in crate::engine) mod rail_messages;
pub(in crate::engine) mod reissue;
pub(in crate::engine) mod resend;
pub(in crate::engine) mod reset;
