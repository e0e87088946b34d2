//! Checks the device channel: kernels, or CPU threads with the same source, at one end
//! of its rings, and the consumer at the other. There is no fabric in between, but for `job`: this
//! process stands in for the peers.
//!
//! ```text
//! machines    where kernels run and their memory is: gpu, host
//! bed         a context with its rings and heaps; peers: what takes operations and executes them
//! checks      every kernel, against what must be in memory after it, as models say
//! job         PEs with channels, and a fabric between
//! ```

pub mod bed;
pub mod checks;
pub mod image;
pub mod job;
pub mod machines;
pub mod models;
pub mod peers;
