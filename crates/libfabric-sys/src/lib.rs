//! Raw bindings to libfabric from 1.17 on, generated from its headers and checked in.
//!
//! Three things make this crate more than bindgen's output.
//!
//! **Nothing is linked.** [`Library::load`] opens the library at run time, so that a program starts
//! without libfabric and can say what it misses. It is never closed: providers leave threads and
//! exit handlers behind that must keep their code.
//!
//! **The static inline calls are here** ([`calls`]): inline functions exist in no library.
//!
//! **The library may be newer than the declarations**, which are those of 1.17, the oldest served.
//! Structs grow at their end (`fi_mr_attr` had 80 bytes in 1.17 and has 112 in 2.6). What libfabric
//! allocates is read only through fields that all versions have; what the caller allocates goes
//! into a [`Padded`].
//!
//! Names, and the rules that unsafe functions leave to their caller, are those of the man pages,
//! <https://ofiwg.github.io/libfabric/>.

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
