//! Policy and protocol: lanes, streams, rails, sequences, fences and memory handles.
//!
//! The engine never names a libfabric or a CUDA symbol. It sees the fabric through the traits of
//! [`port`], which have two implementations: the `ofi` layer and the scripted [`fake`] that the
//! tests use. Nothing here is `unsafe`.
#![forbid(unsafe_code)]

pub mod error;
pub mod ids;
pub mod port;
