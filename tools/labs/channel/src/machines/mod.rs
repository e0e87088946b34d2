//! Where kernels run: a GPU, or this process' threads in its place.

pub(crate) mod gpu;
pub(crate) mod host;

use std::any::Any;
use std::fmt::Debug;

use channel_producer::KernelArgs;
use thiserror::Error;

/// Why something could not be run, in words.
#[derive(Debug, Error)]
#[error("{0}")]
pub(crate) struct MachineError(pub String);

/// Memory that both the CPU and kernels read and write. What it is made of stays as long as this
/// does.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) addr: usize,
    pub(crate) len: usize,
    _owner: Box<dyn Any>,
}

impl Memory {
    pub(crate) fn new(addr: usize, len: usize, owner: Box<dyn Any>) -> Self {
        Self { addr, len, _owner: owner }
    }
}

/// Returns whether a kernel has ended.
pub(crate) type HasEnded = Box<dyn FnMut() -> Result<bool, MachineError>>;

pub(crate) trait Machine: Debug {
    fn name(&self) -> String;

    /// Allocates zeroed memory.
    fn shared(&self, len: usize) -> Result<Memory, MachineError>;

    /// Copies out of memory on the device. What kernels have written before is there.
    fn read(&self, addr: usize, into: &mut [u8]) -> Result<(), MachineError>;

    /// Copies into memory on the device.
    fn write(&self, addr: usize, from: &[u8]) -> Result<(), MachineError>;

    /// Starts a kernel of `blocks` blocks of `threads` threads.
    ///
    /// # Safety
    /// What the arguments point to stays until the kernel has ended.
    unsafe fn launch(
        &self,
        kernel: &str,
        args: KernelArgs,
        blocks: u32,
        threads: u32,
    ) -> Result<HasEnded, MachineError>;

    /// Calls `run` on this thread, with the machine's device as the one that the thread uses.
    fn with_device(
        &self,
        run: &mut dyn FnMut() -> Result<(), MachineError>,
    ) -> Result<(), MachineError>;

    /// Number of threads of a warp.
    fn warp(&self) -> u32;

    /// Blocks, and threads of a block, for checks.
    fn shape(&self) -> (u32, u32);
}
