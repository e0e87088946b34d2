//! Kinds of memory that a process has, on which depends what libfabric is asked for.

/// What memory the process has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryKinds {
    /// Host memory only: nothing is asked of libfabric for devices.
    Host,
    /// Perhaps also memory of CUDA devices.
    HostAndDevices,
}
