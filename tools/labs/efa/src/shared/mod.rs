//! Memory that the processes of a job share: NICs, receive queues and completion queues, as files
//! that each maps.
//!
//! Every structure here is valid as zeros, which a new file has, and holds numbers alone: no
//! pointers.

pub(crate) mod completions;
mod lock;
mod mapping;
pub(crate) mod nic;
pub(crate) mod posted;
pub(crate) mod receives;

pub(crate) use lock::SharedLock;
pub(crate) use mapping::Mapping;
