//! A stand-in for NVSHMEM's host library.
