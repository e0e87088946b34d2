//! The mock of NCCL: what it has loaded, its communicators and groups, and its threads.

pub(crate) mod group;
pub(crate) mod library;
pub(crate) mod log;
pub(crate) mod pair;
pub(crate) mod proxy;
pub(crate) mod wait;
