//! The mock of NCCL: what it has loaded, its communicators and groups, and its threads.
//!
//! ```text
//! library  the shared library, and one interface for the tables of all versions
//! log      what the plugin says to NCCL's logger
//! group    communicators and their groups, from the first call to the last
//! proxy    NCCL's progress thread, which issues, tests and calls for progress
//! pair     a connection with a little memory, for what is no round
//! ```

pub(crate) mod group;
pub(crate) mod library;
pub(crate) mod log;
pub(crate) mod pair;
pub(crate) mod proxy;
pub(crate) mod wait;
