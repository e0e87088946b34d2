//! Policy and protocol: lanes, streams, rails, sequences, fences and memory handles.
//!
//! The engine never names a libfabric or a CUDA symbol. It sees the fabric through the traits of
//! [`port`], which have two implementations: the `ofi` layer and the scripted [`fake`] that the
//! tests use. Nothing here is `unsafe`.
#![forbid(unsafe_code)]

pub mod applier;
pub mod atomic;
pub mod balance;
pub mod batch;
mod bulk;
mod burst;
mod chunks;
pub mod consistency;
pub mod copies;
pub mod counted;
pub mod counters;
mod counts;
pub mod detours;
mod drain;
pub mod error;
pub mod exchange;
mod exposures;
pub mod fabric_atomic;
mod failures;
pub mod fake;
mod for_peers;
pub mod handle;
pub mod handover;
mod heal;
pub mod health;
pub mod host_lane;
pub mod ids;
mod incoming;
pub mod lane;
mod leftovers;
mod limbo;
mod link;
mod looks;
pub mod message;
mod messages;
pub mod native;
mod notes;
mod operation;
pub mod pairing;
pub mod paths;
mod pieces;
pub mod port;
mod rail;
mod rail_reset;
pub mod rails_wire;
pub mod regions;
mod resend;
mod segment;
pub mod short;
mod staged_requests;
pub mod staged_wire;
mod staging;
mod stream;
mod submit;
mod users;
mod watchdog;
mod weigh;
pub mod window;
pub mod wire;
mod words;

pub use operation::OpId;
pub use watchdog::Watchdog;
