//! Symmetric memory that a channel allocates, on the host or on the calling thread's device.

use crate::channel::error::ChannelError;
use crate::channel::memory::SharedBlock;
use crate::channel::memory::host_memory::{HostMemory, bound_context};
use cuda::{DeviceHeap, Driver};

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum MemoryLocation {
    /// Memory of the host, which the CPU reaches; page-locked where the process uses CUDA.
    #[default]
    Host,
    /// Memory of the calling thread's current device, which the CPU does not reach.
    Device,
}

/// Allocates at least `len` bytes. Allocation and free may synchronize the device.
pub(crate) fn symmetric(
    location: MemoryLocation,
    len: usize,
) -> Result<Box<dyn SharedBlock>, ChannelError> {
    match location {
        MemoryLocation::Host => Ok(Box::new(HostMemory::new(len)?)),
        MemoryLocation::Device => Ok(Box::new(on_device(len)?)),
    }
}

/// The CPU does not reach it.
impl SharedBlock for DeviceHeap {
    fn addr(&self) -> usize {
        self.addr()
    }
}

fn on_device(len: usize) -> Result<DeviceHeap, ChannelError> {
    let why = match (bound_context(), Driver::of_process()) {
        (Ok(Some(context)), _) => return Ok(DeviceHeap::new(&context, len)?),
        (Err(failed), _) => return Err(failed),
        (Ok(None), Err(none)) => none.to_string(),
        (Ok(None), Ok(_)) => String::from(
            "no context of a device is current on the thread that asks (cudaSetDevice and cudaFree(0), or cuCtxSetCurrent, \
             make one current)",
        ),
    };
    Err(ChannelError::NoDevice { len, why })
}
