//! Ports: the traits through which the engine uses a fabric, memory and time.
//!
//! A [`Port`] belongs to one lane: [`DataPath`] posts operations on rails and polls their
//! completions, [`Messaging`] sends messages, [`LocalMemory`] accesses this process' memory, and
//! [`Clock`] tells the time. One thread at a time uses a port. [`MemoryPort`] registers memory for
//! all lanes of the process; any thread may call it, also while a lane is posting.

pub mod clock;
pub mod copies;
pub mod data_path;
pub mod local_memory;
pub mod messaging;
pub mod outcome;
pub mod packet;
pub mod registration;

pub use crate::port::clock::Clock;
pub use crate::port::data_path::{
    Completions, DataPath, Desc, Direction, Local, Operation, POLL_BATCH, PeerAddr, RailLimits,
    Transfer, dispatch_completions,
};
pub use crate::port::local_memory::LocalMemory;
pub use crate::port::messaging::{Incoming, Messaging};
pub use crate::port::outcome::{Failure, Polled, PortError, Posted};
pub use crate::port::packet::{LongPacket, Packet, Tail};
pub use crate::port::registration::{Access, Addressing, MemoryPort, Registered};

/// Everything one lane needs of its fabric.
pub trait Port: Messaging + LocalMemory + Clock {}

impl<P: Messaging + LocalMemory + Clock> Port for P {}
