//! Owners of libfabric's objects (`fid_*` and `fi_info`), each closed when its owner is dropped.
//!
//! An owner keeps what it was made from, so a parent is never closed before its child. What an
//! owner may be asked to do at a time is the caller's promise, stated at each `unsafe fn`.

pub(crate) mod contexts;
pub(crate) mod domain;
pub(crate) mod endpoint;
pub(crate) mod fabric;
pub(crate) mod info;
pub(crate) mod memory_region;
pub(crate) mod object;
pub(crate) mod provider_log;

#[cfg(test)]
pub(crate) mod tables;
