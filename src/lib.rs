//! NVSHMEM's remote transport over libfabric.
//!
//! Built as a shared library, it is what NVSHMEM loads for `NVSHMEM_REMOTE_TRANSPORT=libfabric`;
//! its one exported symbol is `nvshmemt_init`. The layers, each seeing only those below:
//!
//! ```text
//! abi       NVSHMEM's C interface, one table of functions per layout
//! job       rails opened, PEs connected, memory registered
//! engine    lanes, streams, rails, memory: policy and protocol
//! ofi       owners of libfabric objects; implements the engine's ports
//! cuda      the CUDA driver, found at run time: kinds of memory, copies, words in device memory
//! channel   rings that kernels put operations into, and the thread that takes them out
//! topology  how near NICs are to GPUs
//! ```

pub mod abi;
pub mod channel;
pub mod cuda;
pub mod engine;
pub mod job;
pub mod logging;
pub mod ofi;
pub mod settings;
pub mod topology;
