//! Registered memory: of the host, and of devices that NICs reach by themselves.
//!
//! A region is registered on every rail of both lanes, or on none.

pub(in crate::ofi) mod device_memory;
pub(in crate::ofi) mod direct_policy;
pub(in crate::ofi) mod registration;
