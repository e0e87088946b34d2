//! Staging: memory that the fabric does not reach, through chunks that it does.

pub(in crate::engine) mod chunks;
pub(in crate::engine) mod errands;
pub(in crate::engine) mod exposures;
pub(in crate::engine) mod pieces;
pub(in crate::engine) mod state;
pub(in crate::engine) mod submit;
