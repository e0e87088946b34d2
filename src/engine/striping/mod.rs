//! Striping: which rails an operation goes by, and large ones over all of them.

pub mod balance;
pub(in crate::engine) mod load;
pub(in crate::engine) mod pool;
