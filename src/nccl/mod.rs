//! NCCL's RMA interface: tables of functions by which NCCL's device API (GIN) and its host calls
//! put, get and signal over our rails.
//!
//! ```text
//! tables     one table per version of the interface
//! entries    the functions in them, which check what they are given
//! older      those of v14, which wrap them
//! plugin     what a process has once: settings, and the devices that NCCL is offered
//! listener   what other ranks of a group connect to
//! group      ranks that are connected, a job of its own, with its lane
//! memory     memory that a group has registered, by the handles that NCCL is given
//! requests   operations that NCCL has started and not seen done
//! helper     the thread that makes progress while NCCL's does not
//! log        NCCL's logger, which is ours here
//! ```
//!
//! # What the host promises, on which the `unsafe` here rests
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
//! Functions on a group may come from several threads at once: a lock is between them.
//!
//! # Order
//! Puts and gets are in no order. A signal, weak or strong, comes behind all puts and signals that
//! were started before to the same rank of the group, whatever their context, which is more than
//! NCCL asks. Its target keeps that order, so it waits for no round trip, but behind puts without a
//! signal to memory that NICs write themselves.

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
