//! Starts programs of NVSHMEM and NCCL on this machine's GPUs with every PE's traffic going through
//! the transport that is tested, and prints what became of each, with its figures.
//!
//! [`launch`] starts PEs of any NVSHMEM program, without MPI and without a process manager.

pub mod case;
pub mod counters;
pub mod installation;
pub mod launch;
pub mod library;
pub mod mps;
pub mod options;
pub mod programs;
pub mod run;
