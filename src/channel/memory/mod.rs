//! Memory that a channel shares with kernels.
//!
//! What producers change fast is near them, on the device where there is one; all else of the
//! channel's own is host memory. Symmetric memory is where the user wants it.

pub(crate) mod host_memory;
pub(crate) mod mirrored_memory;
pub(crate) mod published_memory;
pub(crate) mod shared;
pub(crate) mod symmetric_memory;
