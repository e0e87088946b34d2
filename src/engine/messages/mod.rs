//! Messages between proxy lanes, on their way out.
//!
//! What comes in is carried out by the lane, which knows whom it is for.

pub(in crate::engine) mod answers;
pub(in crate::engine) mod control;
pub(in crate::engine) mod requests;
