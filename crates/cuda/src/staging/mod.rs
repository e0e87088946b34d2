//! Staging: device memory out of the fabric's reach, moved through bounce buffers of the host.
//!
//! Any thread registers; only the proxy thread moves. One lock, held briefly, is between them.

mod flight;
mod range_cache;
pub(crate) mod registry;
pub(crate) mod same_host;
pub(crate) mod serving_context;
mod stager;
