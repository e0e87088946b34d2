//! The `ofi` layer over real providers, in one process on loopback and shared memory.
//!
//! `OFI_TEST_LIBRARY` names the libfabric to use, since a process can use only one: the suite runs
//! once for each version. All waiting is polling of every port, up to a deadline that only a hang
//! reaches.

mod bulk;
mod device_memory;
mod discovery;
mod host_memory;
mod lifetime;
mod messages;
mod process;
mod topology;
mod transfers;
