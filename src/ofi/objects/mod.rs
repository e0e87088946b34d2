//! Owners of libfabric's objects (`fid_*` and `fi_info`), each closed when its owner is dropped.
//!
//! An owner keeps what it was made from, so a parent is never closed before its child. What an owner may be
//! asked to do at a time is the caller's promise, stated at each `unsafe fn`.

pub(in crate::ofi) mod address_vector;
pub(in crate::ofi) mod atomic_calls;
pub(in crate::ofi) mod completion_queue;
pub(in crate::ofi) mod contexts;
pub(in crate::ofi) mod cuda_calls;
pub(in crate::ofi) mod domain;
pub(in crate::ofi) mod endpoint;
pub(in crate::ofi) mod fabric;
pub(in crate::ofi) mod info;
pub(in crate::ofi) mod memory_region;
