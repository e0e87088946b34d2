//! Memory of a PE, of the host or of a device: made, named, filled and compared.

pub(crate) mod address;
pub(crate) mod device_memory;
pub(crate) mod gpu;
pub(crate) mod local;
pub(crate) mod pattern;
pub(crate) mod spin;
