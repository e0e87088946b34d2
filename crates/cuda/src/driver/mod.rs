//! The driver's library and its objects: contexts, devices, streams, events, kernels.

pub(crate) mod api;
pub(crate) mod context;
pub(crate) mod device;
pub(crate) mod error;
pub(crate) mod hazards;
pub(crate) mod library;
pub(crate) mod module;
pub(crate) mod stream;
