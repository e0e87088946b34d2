//! Owners of libfabric objects, and the engine's ports over them.
//!
//! ```text
//! environment what providers read when libfabric starts
//! options     what is asked for
//! open        both lanes on the devices found; report: what they are
//! bulk_plan   which rails get connections for bulk; affinity: where their threads run
//! memory      registration with all rails
//! data_path   posting and polling: the engine's port
//! discovery   what providers offer, and what is taken
//! objects     one owner for each object of libfabric
//! provider    what is known of each provider
//! topology    how near NICs are to GPUs
//! ```
//!
//! The way from [`Options`] to a port:
//!
//! 1. [`Discovery::run`] loads libfabric, asks the providers in turn and lists the usable devices,
//!    with a [`Refusal`] for each thing that was offered and not taken.
//! 2. [`Discovery::open`] opens the chosen devices: one domain for the host lane and one domain per
//!    rail of the proxy lane, each with one endpoint, one completion queue and one address vector.
//! 3. The caller exchanges the rails' addresses ([`OfiPort::address`]) and hands the peers' to
//!    [`OfiPort::insert`].
//!
//! # Messages
//! A rail of the proxy lane has buffers posted to receive into, and every rail has some to send
//! from what is too long for `fi_inject`. They belong to the rail, and their use to its port:
//! completions of messages never reach the engine, which only takes what has come in: messages, and
//! the immediate data of peers' writes.
//!
//! # Ownership
//! Every libfabric object has one owner that closes it when dropped, and holds what it was made
//! from in an `Arc` or as a field dropped after it: region, endpoint, queue and vector, domain,
//! fabric. So no order of drops, also out of a half-built state, closes a parent before its child.
//! Dropping a port closes its endpoints and thereby ends what is in flight (but see [`OfiRegion`]
//! for providers that bind regions to endpoints).
//!
//! # Threads
//! Rails may have connections for bulk, with a domain and a thread each (`data_path/bulk`). These
//! meet the lane in queues alone.
//!
//! An [`OfiPort`] belongs to one thread at a time. [`OfiMemory`] may be used from any. Where the
//! provider offers only `FI_THREAD_DOMAIN`, both meet on the domain and take its gate, a mutex that
//! does not exist in the other modes (see `objects/object.rs`).

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
pub use discovery::offers::{Offered, offered};
pub use discovery::search::Discovery;
pub use endpoint_files::{free_bytes, pid_namespace, remove_left_behind};
pub use environment::{EnvironmentWish, environment_wishes};
pub use error::{OfiError, Refusal};
pub use memory::device_memory::DirectRefusal;
pub use memory::direct_policy::{DeviceMemory, DmaBufPart};
pub use memory::registration::{OfiMemory, OfiRegion};
pub use open::Opened;
pub use options::{BulkChoice, Devices, GpuDirect, MemoryKinds, Options, Threading};
pub use provider::{Provider, Striping};
pub use report::{RailReport, Report};
