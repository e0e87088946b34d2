//! Memory that a channel shares with kernels.
//!
//! What producers change fast is near them, on the device where there is one; all else is host memory.

pub(crate) mod host_memory;
pub(crate) mod mirrored_memory;
pub(crate) mod shared;
