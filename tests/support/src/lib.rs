//! What the test programs of the workspace share: [`built`] files, [`fabric`]s, log lines that
//! are [`heard`], what is [`held`], [`needs`] and the skips that follow, a [`network`] of several
//! hosts, [`seeds`] of [`random`] tests, machines by their [`topology`], [`scratch`] folders.

#![forbid(unsafe_code)]

pub mod built;
pub mod fabric;
pub mod heard;
pub mod held;
pub mod needs;
pub mod network;
pub mod random;
pub mod scratch;
pub mod seeds;
pub mod topology;

/// Whether this run is of the full tier: `NVSHMEM_TEST_FULL` is set, by `make test-full`.
pub fn full() -> bool {
    needs::is_set("NVSHMEM_TEST_FULL")
}
