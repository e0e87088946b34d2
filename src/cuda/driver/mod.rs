//! The driver's library and its objects: contexts, devices, streams, events, kernels.
//!
//! Each call binds the context that it needs and restores what was bound before.

pub(in crate::cuda) mod api;
pub(in crate::cuda) mod context;
pub(in crate::cuda) mod device;
pub(in crate::cuda) mod error;
pub(in crate::cuda) mod hazards;
pub(in crate::cuda) mod library;
pub(in crate::cuda) mod module;
pub(in crate::cuda) mod stream;
