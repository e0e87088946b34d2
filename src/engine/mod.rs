//! Policy and protocol: lanes, streams, rails, sequences, fences and memory handles.
//!
//! The engine never names a libfabric or a CUDA symbol. It sees the fabric through the traits of
//! [`port`], which have two implementations: the `ofi` layer and the scripted [`fake`] that the
//! tests use. Nothing here is `unsafe`.
#![forbid(unsafe_code)]

pub mod atomic;
pub mod atomics;
pub mod error;
pub mod fake;
pub mod ids;
pub mod lane;
mod messages;
pub mod port;
pub mod recovery;
pub mod request;
pub mod signal;
mod staging;
pub mod state;
pub mod striping;
pub mod wire;

pub use lane::watchdog::Watchdog;
pub use state::operation::OpId;
