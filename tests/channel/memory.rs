//! Memory of a PE's kernels, as the channel knows it.

use nvshmem_transport_libfabric::channel::{Channel, MemoryLocation};
use test_jobs::memory::{Heap, Kind, MEMORY, Memory, device};

use test_jobs::Place;

/// Starts CUDA before the channel is made, unless memory is mixed: then it is loaded later.
pub(crate) fn load_early() {
    if std::env::var(MEMORY).is_ok_and(|kind| kind != "mixed") {
        device();
    }
}

/// Memory that all PEs reach, and its owner if that is not the channel.
pub(crate) fn symmetric(channel: &Channel, place: &Place, len: usize) -> (Heap, Option<Memory>) {
    match Kind::of_pe(place.me as usize) {
        Kind::Host => (on_host(channel, len), None),
        Kind::Device => (on_device(channel, len), None),
        Kind::Own => {
            let memory = Memory::new(Kind::Own, len);
            // SAFETY: freed behind its release.
            unsafe { channel.register_symmetric(memory.at(0), len).unwrap() };
            (*memory, Some(memory))
        }
    }
}

pub(crate) fn on_host(channel: &Channel, len: usize) -> Heap {
    Heap::of(channel.allocate_symmetric(len).unwrap(), len)
}

pub(crate) fn on_device(channel: &Channel, len: usize) -> Heap {
    let _bound = device().bind();
    let addr = channel.allocate_symmetric_on(MemoryLocation::Device, len).unwrap();
    Heap::of_device(addr, len)
}

/// Zeroed memory of this PE for its kernels: of the device unless this PE has all on the host.
pub(crate) fn local(channel: &Channel, place: &Place, len: usize) -> Memory {
    let memory = match Kind::of_pe(place.me as usize) {
        Kind::Host => Memory::new(Kind::Host, len),
        Kind::Device | Kind::Own => Memory::new(Kind::Own, len),
    };
    // SAFETY: freed behind its release.
    unsafe { channel.register_local(memory.at(0), len).unwrap() };
    memory
}
