//! Owners of libfabric's objects (`fid_*` and `fi_info`), each closed when its owner is dropped.
//!
//! Each `unsafe fn` states which calls the caller must not make at the same time.

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
