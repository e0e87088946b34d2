//! Memory that a channel shares with kernels.
//!
//! What producers change fast is near them, on the device where there is one; all else is host memory.

pub(in crate::channel) mod host_memory;
pub(in crate::channel) mod mirrored_memory;
pub(in crate::channel) mod shared;
