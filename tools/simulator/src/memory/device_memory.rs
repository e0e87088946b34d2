//! Memory that a PE has from CUDA's driver, of each kind that NVSHMEM's heap or a user's buffer is.

use std::fmt;

use crate::error::Result;
use crate::memory::gpu::{Cut, Gpu, call};

/// What a PE's symmetric heap is made of.
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, Debug, Default, serde::Serialize, serde::Deserialize,
)]
pub enum MemoryKind {
    /// Memory of the host, which the CPU reads and writes. CUDA is not loaded.
    #[default]
    Host,
    /// One allocation of device memory by `cuMemAlloc`, as NVSHMEM's static heap.
    Device,
    /// Addresses that are reserved, and an allocation of the VMM interface behind each chunk, as
    /// NVSHMEM's dynamic heap. Chunks are multiples of 2 MiB.
    DeviceVmm,
}

impl MemoryKind {
    /// What buffers beside a heap of it are.
    pub fn of_buffers(self) -> MemoryKind {
        if self == MemoryKind::DeviceVmm { MemoryKind::Device } else { self }
    }
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format!("{self:?}").to_lowercase())
    }
}

/// A user's buffer that is mapped into the heap, as its last chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub enum UserMapped {
    Device,
    /// Memory of the host's NUMA node 0, which the device uses as well.
    HostNuma,
}

/// The host's NUMA node 0, as a `CUmemLocation`: its kind and number.
const NUMA_NODE: u64 = 3;

/// Memory of the driver's, given back when dropped.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    pub(crate) gpu: &'static Gpu,
    pub(crate) base: usize,
    pub(crate) len: usize,
    step: usize,
    /// Bytes of reserved addresses that are mapped; none for memory that was allocated.
    mapped: Option<usize>,
}

impl DeviceMemory {
    pub(crate) fn allocate(gpu: &'static Gpu, len: usize) -> Result<Self> {
        let mut base = 0;
        // SAFETY: a place for the address; an `int` that outlives the call.
        gpu.bound(|calls| unsafe {
            call!(calls, cuMemAlloc_v2(&raw mut base => *mut usize, len => usize))?;
            // NVSHMEM sets SYNC_MEMOPS (6) on its static heap.
            let on: i32 = 1;
            call!(calls, cuPointerSetAttribute(&raw const on => *const i32, 6 => u32, base => usize))
        })?;
        DeviceMemory { gpu, base, len, step: len, mapped: None }.zeroed()
    }

    /// Memory of the VMM interface, zeroed: allocations of `step` bytes, one mapped behind the
    /// other. `last` is of what the last one is.
    pub(crate) fn map(
        gpu: &'static Gpu,
        len: usize,
        step: usize,
        last: Option<UserMapped>,
    ) -> Result<Self> {
        let mut memory = Self::reserve(gpu, len, step)?;
        for at in (0..len).step_by(step) {
            let is_host = last == Some(UserMapped::HostNuma) && at + step == len;
            // `CUmemAllocationProp`: pinned memory there.
            let properties = [1, if is_host { NUMA_NODE } else { memory.location() }, 0, 0];
            let mut handle = 0;
            // SAFETY: a place for the handle, and properties that outlive the call.
            gpu.bound(|calls| unsafe {
                call!(calls, cuMemCreate(
                    &raw mut handle => *mut usize, step => usize,
                    &raw const properties => *const [u64; 4], 0 => u64))
            })?;
            memory.map_next(handle, is_host)?;
        }
        memory.zeroed()
    }

    /// The last allocation of this memory, mapped a second time: the user's own address of it.
    pub(crate) fn last_again(&self, is_host: bool) -> Result<Self> {
        let mut again = Self::reserve(self.gpu, self.step, self.step)?;
        let (mut handle, last) = (0, self.base + self.len - self.step);
        // SAFETY: a place for the handle of what is mapped there.
        self.gpu.bound(|calls| unsafe {
            call!(calls, cuMemRetainAllocationHandle(&raw mut handle => *mut usize, last => usize))
        })?;
        again.map_next(handle, is_host)?;
        Ok(again)
    }

    fn reserve(gpu: &'static Gpu, len: usize, step: usize) -> Result<Self> {
        let mut base = 0;
        // SAFETY: a place for the address.
        gpu.bound(|calls| unsafe {
            call!(calls, cuMemAddressReserve(
                &raw mut base => *mut usize, len => usize, step => usize, 0 => usize, 0 => u64))
        })?;
        Ok(DeviceMemory { gpu, base, len, step, mapped: Some(0) })
    }

    /// Maps an allocation behind those that are mapped. It lives for as long as it is mapped.
    fn map_next(&mut self, handle: usize, is_host: bool) -> Result<()> {
        let (step, mapped) = (self.step, self.mapped.unwrap_or(0));
        let at = self.base + mapped;
        // SAFETY: addresses of this reservation that are not in use, and a handle of ours.
        self.gpu.bound(|calls| unsafe {
            let mapped = call!(calls, cuMemMap(
                at => usize, step => usize, 0 => usize, handle => usize, 0 => u64));
            call!(calls, cuMemRelease(handle => usize)).and(mapped)
        })?;
        // Before anything else can fail: a drop unmaps what is mapped.
        self.mapped = Some(mapped + step);
        // `CUmemAccessDesc`: a place, and that it reads and writes.
        let access =
            [self.location(), NUMA_NODE].map(|place| [place as u32, (place >> 32) as u32, 3]);
        let count = if is_host { 2 } else { 1 };
        // SAFETY: an array of at least `count`, for what was just mapped.
        self.gpu.bound(|calls| unsafe {
            call!(calls, cuMemSetAccess(
                at => usize, step => usize, access.as_ptr() => *const [u32; 3], count => usize))
        })
    }

    /// The device, as a [`NUMA_NODE`] is written.
    fn location(&self) -> u64 {
        1 | (self.gpu.context.device().0 as u64) << 32
    }

    fn zeroed(self) -> Result<Self> {
        self.gpu.copy(self.base, self.len, self.cut(), true, |_, block| block.fill(0))?;
        Ok(self)
    }

    pub(crate) fn cut(&self) -> Cut {
        Cut { base: self.base, step: self.step }
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: memory that this owns, and that nobody uses any more.
        let given_back = self.gpu.bound(|calls| unsafe {
            let Some(mapped) = self.mapped else {
                return call!(calls, cuMemFree_v2(self.base => usize));
            };
            for at in (self.base..self.base + mapped).step_by(self.step) {
                call!(calls, cuMemUnmap(at => usize, self.step => usize))?;
            }
            call!(calls, cuMemAddressFree(self.base => usize, self.len => usize))
        });
        if let Err(error) = given_back {
            // Also after the plugin's end, and after the test has broken the device on purpose.
            eprintln!("nvshmem-sim: giving device memory back: {error}");
        }
    }
}
