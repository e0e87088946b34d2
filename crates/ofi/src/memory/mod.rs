//! Registered memory: of the host, and of devices that NICs reach by themselves.
//!
//! A region is registered on every rail of both lanes, or on none.

pub(crate) mod device_memory;
pub(crate) mod direct_policy;
pub(crate) mod registration;
