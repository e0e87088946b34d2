//! What threads of connections for bulk tell the lane: completions, failures, and that there are
//! some.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use libfabric_sys::fi_cq_data_entry;

use engine::port::{Failure, PeerAddr};

/// What the lane is told.
#[derive(Debug)]
pub(super) enum Done {
    Completed(Entry),
    /// A transfer, or the connection as a whole.
    Failed(Failure),
    /// What came of [`What::Reach`](super::connection::What::Reach).
    Reached(PeerAddr, bool),
}

/// A completion: what the lane looks at of an entry of a queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) context: usize,
    pub(super) flags: u64,
    pub(super) data: u64,
}

impl From<&fi_cq_data_entry> for Entry {
    fn from(entry: &fi_cq_data_entry) -> Self {
        Self { context: entry.op_context as usize, flags: entry.flags, data: entry.data }
    }
}

impl From<Entry> for fi_cq_data_entry {
    fn from(Entry { context, flags, data }: Entry) -> Self {
        Self { op_context: context as *mut c_void, flags, len: 0, buf: ptr::null_mut(), data }
    }
}

/// How many completions all threads of a rail have put into their queues: what a poll that finds
/// nothing looks at.
#[derive(Debug, Default)]
pub(super) struct News(AtomicU64);

impl News {
    pub(super) fn tell(&self) {
        self.0.fetch_add(1, Ordering::Release);
    }

    #[inline]
    pub(super) fn told(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}
