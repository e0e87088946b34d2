//! Mirrored memory: words that producers use for each operation, near them and with a host copy.
//!
//! A GPU's atomics do not reach host memory over every bus, and each read would cross it. The CPU
//! copies parts of its copy there and back. For CPU threads, host memory is its own copy.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::channel::error::ChannelError;
use crate::channel::memory::SharedBlock;
use crate::channel::memory::host_memory::{HostMemory, bound_context};
use cuda::{Context, CopyEngine, DeviceMemory, Direction, PinnedMemory, Transfer};

const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug)]
struct OnDevice {
    /// Dropped before the memory on both sides: it waits for its copies.
    copies: Mutex<CopyEngine>,
    copy: Arc<PinnedMemory>,
    memory: DeviceMemory,
}

/// Allocates at least `len` bytes, on this thread's current device, if any. May synchronize it.
pub(crate) fn mirrored(len: usize) -> Result<Box<dyn SharedBlock>, ChannelError> {
    match bound_context()? {
        Some(context) => Ok(Box::new(OnDevice::new(&context, len)?)),
        None => Ok(Box::new(HostMemory::new(len)?)),
    }
}

impl OnDevice {
    fn new(context: &Arc<Context>, len: usize) -> Result<Self, ChannelError> {
        let memory = DeviceMemory::new(context, len)?;
        let copy = PinnedMemory::new(context, len)?;
        // SAFETY: just allocated with that length, and nobody else has it.
        unsafe { std::ptr::write_bytes(copy.addr() as *mut u8, 0, len) };
        let copies = Mutex::new(CopyEngine::new(context)?);
        let new = Self { copies, copy, memory };
        new.copy(Direction::ToDevice, 0, len)?;
        Ok(new)
    }
}

impl SharedBlock for OnDevice {
    fn addr(&self) -> usize {
        self.memory.addr()
    }

    fn here(&self) -> usize {
        self.copy.addr()
    }

    fn copy(&self, direction: Direction, offset: usize, len: usize) -> Result<(), ChannelError> {
        let mut copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
        let (range, memory, addr) = (self.memory.range(), &self.copy, self.memory.addr() + offset);
        let transfer = Transfer { direction, range, addr, memory, offset, len };
        copies.start(&transfer).map_err(|error| ChannelError::Device(error.to_string()))?;
        let start = Instant::now();
        loop {
            if let Some(ended) = copies.poll() {
                return ended.map_err(|error| ChannelError::Device(error.to_string()));
            }
            if start.elapsed() > PATIENCE {
                return Err(ChannelError::Late { what: "a copy of the context", waited: PATIENCE });
            }
            thread::yield_now();
        }
    }
}
