//! NCCL's RMA interface: tables of functions by which NCCL's device API (GIN) and its host calls
//! put, get and signal over our rails.
//!
//! # Guarantees of the host, on which `unsafe` code here relies
//! NCCL 2.30.7 to 2.32 keep these rules (`src/rma`, `src/gin` and `src/plugin` of its sources).
//!
//! 1. A listening, a group and a block of contexts are pointers that `listen`, `connect` and
//!    `createContext` gave out and that `closeListen`, `closeColl` and `destroyContext` have not
//!    had. The blocks of a group end before the group. No other function uses what one of these
//!    three has, at the same time or later.
//! 2. Other pointers are valid for the call. `ctx` is an exception: `connect` may be given that of
//!    another plugin, so nobody looks at it.
//! 3. Registered memory stays valid until it is deregistered, and memory of operations until they
//!    are done.
//!
//! Functions on a group may come from several threads at once: a lock is between them, which most
//! tests of requests do not take.
//!
//! # Order
//! Puts and gets are unordered. Signals keep more order than NCCL requires: see `docs/nccl.md`.

pub mod abi;
mod entries;
mod error;
mod group;
mod listener;
mod log;
mod memory;
mod older;
mod plugin;
mod requests;
pub mod tables;
