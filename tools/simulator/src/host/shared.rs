//! The state of a PE's host that its kinds of threads share, and what each of them is in.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::Result;
use crate::host::regions::Regions;
use crate::host::transport::Transport;
use crate::memory::gpu::Gpu;
use crate::memory::local::Mapping;

/// What the user's threads and the proxy thread share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) transport: Transport,
    pub(crate) regions: Regions,
    pub(crate) n_pes: u32,
    pub(crate) me: u32,
    /// What the user's thread and the proxy thread are in: see [`Doing`].
    pub(super) doing: [AtomicU64; 2],
    /// Memory that ends where a page ends, with a page behind it that faults.
    pub(super) edge: Mutex<Mapping>,
    /// None in a PE of host memory.
    pub(crate) gpu: Option<&'static Gpu>,
}

impl Shared {
    pub(crate) fn new(
        transport: Transport,
        regions: Regions,
        me: u32,
        n_pes: u32,
        gpu: Option<&'static Gpu>,
    ) -> Result<Shared> {
        let edge = Mapping::new(2 * PAGE as u64, 4096)?;
        edge.forbid(PAGE)?;
        let doing = [AtomicU64::new(0), AtomicU64::new(0)];
        Ok(Shared { transport, regions, n_pes, me, doing, edge: Mutex::new(edge), gpu })
    }

    /// What a kind of thread is in, for messages about a thread that does not come back.
    pub(crate) fn doing(&self, thread: Thread) -> String {
        let word = self.doing[thread as usize].load(Ordering::Relaxed);
        let (call, pe) = ((word >> 32) as usize, word as u32);
        match CALLS.get(call) {
            Some(name) if call > 0 => format!("in {name} for PE {pe}"),
            _ => "in no call of the plugin".to_string(),
        }
    }
}

pub(super) const PAGE: usize = 4096;

/// Names of what a thread can be in; the index is a [`Doing`].
const CALLS: [&str; 9] =
    ["nothing", "put", "get", "p", "amo", "put_signal", "fence", "quiet", "enforce_cst"];

#[derive(Clone, Copy)]
pub(crate) enum Doing {
    Nothing,
    Put,
    Get,
    P,
    Amo,
    PutSignal,
    Fence,
    Quiet,
    EnforceCst,
}

/// Which kind of thread calls the plugin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Thread {
    /// One of the user's, through NVSHMEM's host interface: queue pair 0.
    User,
    /// NVSHMEM's proxy thread, for the device: another queue pair.
    Proxy,
}
