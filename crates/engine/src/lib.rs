//! Policy and protocol of a lane: how operations become segments on rails, and stay right.
//!
//! The engine never names a libfabric or a CUDA symbol. It sees the fabric through the traits of
//! [`port`], which have two implementations: the crate `ofi`, and the scripted fabric of tests in
//! `crates/dev/sim-fabric`. Nothing here is `unsafe`.
//!
//! # Rooms
//! Each knows those before it, and nothing of those after it:
//! 1. [`ids`], [`atomic`]: names, and operations on words.
//! 2. [`port`]: what is asked of a fabric. [`wire`]: what PEs send one another. [`error`],
//!    [`request`].
//! 3. [`rails`]: which paths there are, and which is next. [`state`]: what a lane knows. Neither
//!    posts.
//! 4. [`posting`]: the core of a lane, which posts, queues, holds, completes and ends segments, and
//!    sends messages. Its state is private to its three parts.
//! 5. [`signal`], [`striping`], `staging`, [`recovery`]: mechanisms, each with its own
//!    state, on the core. What one of them has to see to, the core raises as an event.
//! 6. [`lane`]: holds the mechanisms, and drives them in each progress iteration.
//!
//! # Words
//! Those of libfabric and of OpenSHMEM mean what they mean there. Ours are:
//! - *lane*: one thread's way into the fabric; the proxy lane has all rails, the host lane of user
//!   threads one.
//! - *rail*: a domain with its endpoint, completion queue and address vector: one NIC. *path*: a
//!   rail towards a peer.
//! - *operation*: one NVSHMEM operation. *segment*: one operation of the fabric, which it is cut
//!   into.
//! - *connection*: everything a lane sends to one peer. *channel*: the reliable messages between
//!   the two.
//! - *work-request id*: names a segment to the fabric. *request id*: names one to a peer.
//! - *fence*: writes behind it are *held* until those before it are delivered; each has an *epoch*.
//! - *window*: how many numbered messages may be unacknowledged. *control*: acknowledgements, and
//!   what asks for them.
//! - *eager*, *counted*, *chained*: how a signal follows its data: in one message, by immediate
//!   data that the target counts, or behind the completions of its puts.
//! - *pool*: operations that wait for rails. *stripe*: a segment of one, on the rail that its load
//!   chose.
//! - *pending*: operations that wait for their peer alone, within whose *quota* there is no place.
//! - *staged*: memory that the fabric does not reach. *fragment*: what of it passes through
//!   one *bounce buffer*.
//! - *in doubt*: a segment on a path that has failed, until it is *reissued*. *generation* of a
//!   rail: how often it was reset. *orphan*: what the fabric may still do for a peer that was
//!   declared failed.
//! - *batch*: operations whose end is asked for together. *burst*: puts that share a doorbell.
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate self as engine;

pub mod atomic;
pub mod error;
#[cfg(test)]
#[allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    reason = "unit tests use a part of what tests/engine does"
)]
#[path = "../../dev/sim-fabric/src/fake/mod.rs"]
mod fake;
pub mod ids;
pub mod lane;
pub mod patience;
pub mod port;
pub mod posting;
pub mod rails;
pub mod rate_limit;
pub mod recovery;
pub mod request;
pub mod signal;
mod staging;
pub mod state;
pub mod striping;
mod sync;
pub mod wire;

pub use posting::failures::watchdog::Watchdog;
pub use state::operation::OpId;
