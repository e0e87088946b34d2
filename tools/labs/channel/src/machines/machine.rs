//! The machine that kernels run on, and memory that they and the CPU have.

use std::any::Any;
use std::fmt::Debug;

use channel_producer::KernelArgs;
use thiserror::Error;

/// Why something could not be run, in words.
#[derive(Debug, Error)]
#[error("{0}")]
pub(crate) struct MachineError(pub String);

/// Memory. What it is made of stays as long as this does.
#[derive(Debug)]
pub(crate) struct Memory {
    /// Where it is, for kernels and, if it is host memory, for the CPU.
    pub(crate) addr: usize,
    pub(crate) len: usize,
    _owner: Box<dyn Any>,
}

impl Memory {
    pub(crate) fn new(addr: usize, len: usize, owner: Box<dyn Any>) -> Self {
        Self { addr, len, _owner: owner }
    }
}

pub(crate) trait Running: Debug {
    fn is_done(&mut self) -> Result<bool, MachineError>;
}

pub(crate) trait Machine: Debug {
    fn name(&self) -> String;

    /// Zeroed memory that both the CPU and kernels read and write.
    fn shared(&self, len: usize) -> Result<Memory, MachineError>;

    /// Memory for kernels alone, where they are fast, with this in it.
    fn fast(&self, content: &[u8]) -> Result<Memory, MachineError>;

    /// Zeroed memory on the device, where the CPU does not reach it but through [`Machine::read`]
    /// and [`Machine::write`].
    fn device(&self, len: usize) -> Result<Memory, MachineError>;

    /// Copies out of memory on the device. What kernels have written before is there.
    fn read(&self, addr: usize, into: &mut [u8]) -> Result<(), MachineError>;

    /// Copies into memory on the device. Kernels see it before whatever is written to any of their
    /// memory later; words of 8 bytes and less that are aligned they see whole.
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
    ) -> Result<Box<dyn Running>, MachineError>;

    /// Runs something on this thread with the machine's device as the one that the thread uses.
    fn with_device(
        &self,
        run: &mut dyn FnMut() -> Result<(), MachineError>,
    ) -> Result<(), MachineError>;

    /// Threads of a warp: how many members a unit of that form has.
    fn warp(&self) -> u32;

    /// Blocks and threads of a block for checks.
    fn shape(&self) -> (u32, u32);
}
