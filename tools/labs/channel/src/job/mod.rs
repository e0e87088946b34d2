//! The whole way: kernels of several PEs, each in a process of its own, with their channels and a
//! fabric between.
//!
//! ```text
//! launch    starts the processes
//! pe        a PE: its channel, its heap, kernels on them
//! checks    every kernel against its model
//! measures  how fast what gets there
//! experts   tokens to experts and back
//! ```
//!
//! Several PEs may be on one GPU. Then their kernels take turns, unless CUDA's multi-process
//! service runs, and no time means anything.

pub mod checks;
pub mod experts;
pub mod launch;
pub mod measures;
pub mod pe;
