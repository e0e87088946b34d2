//! Raw bindings to libfabric from 1.17 on, generated from its headers and checked in.
//!
//! Three things make this crate more than bindgen's output.
//!
//! **Nothing is linked.** [`Library::load`] opens `libfabric.so.1` (or another name or path) at
//! run time, so that a program that uses this crate starts without libfabric and can say what it
//! misses. It is opened once per process and never closed: providers leave threads and exit
//! handlers behind that must keep their code.
//!
//! **The static inline calls are here** as `#[inline]` functions ([`calls`]), because a C header's
//! inline functions exist in no library. They go through the tables of operations that each object
//! carries, as C does. An operation that is missing from its table answers `-FI_ENOSYS`.
//!
//! **The library may be newer than the declarations**, which are those of 1.17, the oldest that is
//! served. Structs of libfabric grow at their end (`fi_mr_attr` had 80 bytes in 1.17 and has 112 in
//! 2.6). What libfabric allocates is only ever read through the fields that all versions have; what
//! the caller allocates and libfabric reads or writes goes into a [`Padded`], which is zeroed and
//! larger than any known version.
//!
//! The names are those of the man pages, <https://ofiwg.github.io/libfabric/>, and so are the rules
//! that the unsafe functions leave to their caller.

mod bindings;
pub mod calls;
mod constants;
mod library;
mod logging;
mod newer;
mod padded;
mod version;

pub use bindings::v1_17::*;
pub use calls::*;
pub use constants::*;
pub use library::{DEFAULT_LIBRARY, Library, LoadError, MINIMUM_VERSION};
pub use logging::*;
pub use newer::{
    FI_MR_DMABUF, FI_OPT_CUDA_API_PERMITTED, FI_OPT_SHARED_MEMORY_PERMITTED, NEWEST_API,
    fi_mr_dmabuf, mr_attr_set_dmabuf,
};
pub use padded::{Padded, Zeroed};
pub use version::Version;
