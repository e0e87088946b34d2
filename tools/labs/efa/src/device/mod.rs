//! The device: NICs of this process, their queues, and the wire between them and those of others.

mod completion_queue;
mod dma_buf;
mod exclusive;
mod nic;
mod peers;
mod queue_pair;
mod random;
mod wire;

pub(crate) use completion_queue::Cq;
pub(crate) use nic::{Ah, Device, Memory, Mr, Nic, Pd, deregister};
pub(crate) use queue_pair::Qp;
