//! NCCL's RMA interface: tables of functions by which NCCL's device API (GIN) and its host calls
//! put, get and signal over our rails.
//!
//! ```text
//! tables     one table per version of the interface
//! entries    the functions in them, which check their arguments
//! older      those of v14, which wrap them
//! plugin     state of the process: settings, and the devices that NCCL is offered
//! listener   a socket for the other ranks of a group
//! group      connected ranks, a job of its own, with its lane
//! memory     memory that a group has registered, by NCCL's handles
//! requests   operations that NCCL has started and not seen complete
//! helper     the thread that makes progress while NCCL's does not
//! log        a logger that writes to NCCL's log
//! ```
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
//! Functions on a group may come from several threads at once: a lock is between them.
//!
//! # Order
//! Puts and gets are unordered. A signal, weak or strong, is ordered after all earlier puts and
//! signals to the same rank of the group, whatever their context, which is more than NCCL requires.
//! The target keeps that order, so a signal waits for no round trip, except after puts without a
//! signal to memory that NICs write directly.

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
