//! Messages between proxy lanes, on their way out.
//!
//! What comes in is executed by the lane, which knows whom it is for.

pub(crate) mod answers;
pub(crate) mod control;
pub(crate) mod requests;
