//! Striping: large operations over all rails, and which rail others take.
//!
//! Rails are chosen by [`crate::rails::balance`].

pub(crate) mod pool;
