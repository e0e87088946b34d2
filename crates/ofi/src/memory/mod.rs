//! Registration of host memory, and of device memory for direct access by NICs.
//!
//! A region is registered on every rail of both lanes, or on none.

pub(crate) mod device_memory;
pub(crate) mod direct_policy;
pub(crate) mod registration;
