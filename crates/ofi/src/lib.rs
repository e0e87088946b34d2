//! Owners of libfabric objects, and the engine's ports over them.
//!
//! ```text
//! environment variables that providers read when libfabric starts
//! options     options of the search and of opening
//! open        opening both lanes on the devices found; report: their description
//! bulk_plan   number of bulk connections of each rail; affinity: CPUs of their threads
//! memory      registration with all rails
//! data_path   posting and polling: the engine's port
//! discovery   the providers' offers, and the choice among them
//! objects     one owner for each object of libfabric
//! provider    profiles of the providers
//! topology    distances of NICs and GPUs
//! ```
//!
//! From [`Options`] to a port:
//!
//! 1. [`Discovery::run`] loads libfabric, queries the providers in turn and lists the usable
//!    devices, with a [`Refusal`] for each offer that was not taken.
//! 2. [`Discovery::open`] opens the chosen devices: one domain for the host lane and one domain per
//!    rail of the proxy lane, each with one endpoint, one completion queue and one address vector.
//! 3. The caller exchanges the rails' addresses ([`OfiPort::address`]) and hands the peers' to
//!    [`OfiPort::insert`].
//!
//! # Messages
//! A rail of the proxy lane has posted receive buffers, and every rail has send buffers for
//! messages too long for `fi_inject`. The rail owns them, and its port uses them: completions of
//! messages never reach the engine, which only takes arrivals: messages, and the immediate data of
//! peers' writes.
//!
//! # Ownership
//! Every libfabric object has one owner, which closes it when dropped and holds its parent in an
//! `Arc` or as a field dropped later: region, endpoint, queue and vector, domain, fabric. So no
//! order of drops, also out of a half-built state, closes a parent before its child. Dropping a
//! port closes its endpoints and thereby ends operations in flight (but see [`OfiRegion`] for
//! providers that bind regions to endpoints).
//!
//! # Threads
//! Rails may have bulk connections, with a domain and a thread each (`data_path/bulk`), which share
//! only queues with the lane.
//!
//! One thread at a time uses an [`OfiPort`]; any thread may use [`OfiMemory`]. `objects/object.rs`
//! has what `FI_THREAD_DOMAIN` takes.

pub mod affinity;
mod bulk_plan;
mod data_path;
mod discovery;
mod endpoint_files;
mod environment;
mod error;
pub mod fork;
mod memory;
mod objects;
mod open;
mod options;
pub mod posix_signals;
mod provider;
mod report;
pub mod topology;

pub use data_path::port::OfiPort;
pub use discovery::device::Device;
pub use discovery::immediate_data::ImmediateData;
pub use discovery::interface::Interface;
pub use discovery::search::Discovery;
pub use endpoint_files::{SOCKET_PREFIX, free_bytes, namespace, remove_left_behind};
pub use environment::{EnvironmentWish, environment_wishes};
pub use error::{OfiError, Refusal, panic_text};
pub use memory::device_memory::DirectRefusal;
pub use memory::direct_policy::{DeviceMemory, DmaBufPart};
pub use memory::registration::{OfiMemory, OfiRegion};
pub use open::Opened;
pub use options::{BulkChoice, Devices, GpuDirect, MemoryKinds, Options, Threading};
pub use provider::{Provider, Striping};
pub use report::{RailReport, Report};
