//! Published memory: words that the proxy thread writes and producers poll. In device memory if the
//! CPU can map it, so that polls do not cross the bus; else on the host.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use log::info;

use crate::channel::error::ChannelError;
use crate::channel::memory::SharedBlock;
use crate::channel::memory::host_memory::{HostMemory, bound_context};
use crate::channel::ring::PublishedIn;
use crate::logging;
use cuda::{Context, DeviceMemory, WordRange, Words, WordsOptions, drain_writes};

#[derive(Debug)]
struct MappedMemory {
    here: usize,
    /// Dropped before the memory.
    _range: WordRange,
    memory: DeviceMemory,
}

/// Allocates at least `len` bytes, on this thread's current device, if any. May synchronize it.
pub(crate) fn published(
    len: usize,
    words: &WordsOptions,
) -> Result<Box<dyn SharedBlock>, ChannelError> {
    if let Some(context) = bound_context()? {
        match MappedMemory::new(&context, len, words) {
            Ok(mapped) => {
                info!(target: logging::PROXY, "kernels look at what is done in memory of {context}");
                return Ok(Box::new(mapped));
            }
            Err(reason) => info!(
                target: logging::PROXY,
                "kernels look at what is done in page-locked memory of the host: no window on memory of {context}: {reason}"
            ),
        }
    }
    Ok(Box::new(HostMemory::new(len)?))
}

impl SharedBlock for MappedMemory {
    fn addr(&self) -> usize {
        self.memory.addr()
    }

    fn here(&self) -> usize {
        self.here
    }

    fn published_in(&self) -> PublishedIn {
        PublishedIn::WriteCombined
    }
}

impl MappedMemory {
    fn new(context: &Arc<Context>, len: usize, words: &WordsOptions) -> Result<Self, String> {
        let none = || String::from("its words are reached by the driver's streams");
        if words.gdrcopy.is_none() && !words.dma_buf {
            return Err(none());
        }
        let mapper = Words::new(context, words).map_err(|error| error.to_string())?.mapper();
        let len = len.next_multiple_of(size_of::<u64>());
        let memory = DeviceMemory::new(context, len).map_err(|error| error.to_string())?;
        let range = mapper.open(Arc::clone(memory.range()), None);
        let here = range.cpu_addr(memory.addr()).ok_or_else(none)?;
        for at in (0..len).step_by(size_of::<u64>()) {
            let word = (here + at) as *mut u64;
            // SAFETY: an aligned word of memory that was just made, in the mapping of all of it.
            unsafe { AtomicU64::from_ptr(word) }.store(0, Ordering::Relaxed);
        }
        drain_writes();
        Ok(Self { here, _range: range, memory })
    }
}
