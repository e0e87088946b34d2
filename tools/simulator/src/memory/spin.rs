//! A kernel that stays on the device until it is told to end, as kernels of NVSHMEM's users do
//! while they wait for one another.

use std::time::Duration;

use cuda::{PinnedMemory, WaitingKernel};

use crate::error::{Result, error};
use crate::memory::gpu::{Gpu, device};

/// Bytes of the words' memory.
const WORDS: usize = 4096;

/// A kernel that spins on a stream of its own, which waits for no other. Dropping this ends the
/// kernel. Memory is not given back, and [`crate::Host::finalize`] does not return, while a kernel
/// runs: the driver waits for it.
#[derive(Debug)]
pub(crate) struct Spinner(WaitingKernel);

impl Spinner {
    pub(crate) fn start(gpu: &'static Gpu, deadline: Duration) -> Result<Spinner> {
        let memory = PinnedMemory::new(&gpu.context, WORDS).map_err(device)?;
        WaitingKernel::start(&gpu.context, memory, deadline).map(Spinner).map_err(device)
    }

    /// Ends it. An error when it had ended before, or the device fails.
    pub(crate) fn stop(self) -> Result<()> {
        match self.0.has_ended().map_err(device)? {
            true => Err(error!("device: the kernel had ended before it was told to")),
            false => Ok(()),
        }
    }
}
