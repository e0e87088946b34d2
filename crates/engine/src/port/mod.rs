//! Ports: what the engine asks of a fabric, of memory and of time.
//!
//! A [`Port`] is what one lane has, by use: [`DataPath`] posts operations on rails and polls their
//! completions, [`Messaging`] sends messages, [`LocalMemory`] touches this process' memory, and
//! [`Clock`] tells the time. One thread at a time uses a port. [`MemoryPort`] registers memory for
//! all lanes of the process and may be called from any thread, also while a lane is posting.
//!
//! A *segment* is one operation of the fabric; an NVSHMEM operation is cut into one or more.

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
    Completions, Context, DataPath, Desc, Direction, Local, Operation, POLL_BATCH, PeerAddr,
    RailLimits, Transfer, hand_over,
};
pub use crate::port::local_memory::LocalMemory;
pub use crate::port::messaging::{Incoming, Messaging};
pub use crate::port::outcome::{Failure, Polled, PortError, Posted};
pub use crate::port::packet::{LongPacket, Packet, Tail};
pub use crate::port::registration::{Access, Addressing, MemoryPort, Registered};

/// All that one lane asks of its fabric.
///
/// # Threads
/// One at a time; the lane owns the port.
pub trait Port: Messaging + LocalMemory + Clock {}

impl<P: Messaging + LocalMemory + Clock> Port for P {}
