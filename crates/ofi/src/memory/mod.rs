//! Registration of host memory, and of device memory for direct access by NICs.

pub(crate) mod device_memory;
pub(crate) mod direct_policy;
pub(crate) mod registration;
