//! Mirrored memory: on the device where there is one, near the producers, with its copy on the
//! host. It holds what they change fast, and what they read for each operation.
//!
//! Kernels have it on their device: the atomics of a GPU do not reach the host's memory over every
//! bus, and each read would cross it. The CPU has a copy of it, and moves parts of that there and
//! back. CPU threads have it in host memory, which is its own copy.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::channel::error::ChannelError;
use crate::channel::memory::host_memory::{HostMemory, bound_context};
use cuda::{Context, CopyEngine, DeviceMemory, Direction, PinnedMemory, Transfer};

const PATIENCE: Duration = Duration::from_secs(30);

/// See the module. Zeroed when it is made.
#[derive(Debug)]
pub(crate) enum MirroredMemory {
    /// For CPU threads.
    Host(HostMemory),
    /// For kernels of a device.
    Device(Box<OnDevice>),
}

/// A piece of device memory and its copy.
#[derive(Debug)]
pub(crate) struct OnDevice {
    /// Dropped before the memory on both sides: it waits for its copies.
    copies: Mutex<CopyEngine>,
    copy: Arc<PinnedMemory>,
    memory: DeviceMemory,
}

impl MirroredMemory {
    /// At least `len` bytes, on the device that this thread uses if it uses one. May wait for
    /// everything on the device.
    pub(crate) fn new(len: usize) -> Result<Self, ChannelError> {
        match bound_context()? {
            Some(context) => Ok(Self::Device(Box::new(OnDevice::new(&context, len)?))),
            None => Ok(Self::Host(HostMemory::new(len)?)),
        }
    }

    /// The first byte, for producers.
    pub(crate) fn addr(&self) -> usize {
        match self {
            Self::Host(memory) => memory.addr(),
            Self::Device(there) => there.memory.addr(),
        }
    }

    /// The first byte of what the CPU reads and writes.
    pub(crate) fn here(&self) -> usize {
        match self {
            Self::Host(memory) => memory.addr(),
            Self::Device(there) => there.copy.addr(),
        }
    }

    /// Lets producers have what the CPU has written to these bytes. They have it when this returns.
    ///
    /// # Errors
    /// As the device answers.
    pub(crate) fn push(&self, offset: usize, len: usize) -> Result<(), ChannelError> {
        self.copy(Direction::ToDevice, offset, len)
    }

    /// Lets the CPU have what producers have written to these bytes.
    ///
    /// # Errors
    /// As the device answers.
    pub(crate) fn pull(&self, offset: usize, len: usize) -> Result<(), ChannelError> {
        self.copy(Direction::FromDevice, offset, len)
    }

    fn copy(&self, direction: Direction, offset: usize, len: usize) -> Result<(), ChannelError> {
        match self {
            Self::Host(_) => Ok(()),
            Self::Device(there) => there.copy(direction, offset, len),
        }
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

    fn copy(&self, direction: Direction, offset: usize, len: usize) -> Result<(), ChannelError> {
        let failed = |error: String| ChannelError::Device(error);
        let mut copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
        let (range, memory, addr) = (self.memory.range(), &self.copy, self.memory.addr() + offset);
        let transfer = Transfer { direction, range, addr, memory, offset, len };
        copies.start(&transfer).map_err(|error| failed(error.to_string()))?;
        let start = Instant::now();
        loop {
            if let Some(ended) = copies.poll() {
                return ended.map_err(|error| failed(error.to_string()));
            }
            if start.elapsed() > PATIENCE {
                return Err(ChannelError::Late { what: "a copy of the context", waited: PATIENCE });
            }
            thread::yield_now();
        }
    }
}
