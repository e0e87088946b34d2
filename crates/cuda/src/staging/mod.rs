//! Staging: copies of device memory that the fabric does not reach, through bounce buffers.

mod in_flight;
mod range_cache;
pub(crate) mod registry;
pub(crate) mod same_host;
pub(crate) mod serving_context;
mod stager;
pub(crate) mod waiting_kernel;
