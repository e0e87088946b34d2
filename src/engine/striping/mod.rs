//! Striping: large operations over all rails, and which rail others take.
//!
//! Rails are chosen by [`crate::engine::rails::balance`].

pub(in crate::engine) mod pinned;
pub(in crate::engine) mod pool;
