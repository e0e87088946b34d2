//! Device memory as a dma-buf: a file descriptor through which other drivers reach it.

use std::ffi::c_int;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use cudarc::driver::sys::{CUdeviceptr, CUmemRangeHandleType_enum as handle_type};

use crate::driver::error::{CudaError, code};
use crate::memory::range::DeviceRange;
use crate::memory::shared_memory::SharedMemory;

/// `CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE`, of CUDA 12.8 and newer: the mapping for devices
/// on the PCIe bus, also where the processor reaches the memory by another way (Grace's C2C).
const BY_PCIE: u64 = 1;

/// A dma-buf of a part of a range. Dropping it closes the descriptor; importers keep the memory.
#[derive(Debug)]
pub struct DmaBuf {
    fd: OwnedFd,
    offset: usize,
}

impl DmaBuf {
    /// Exports the whole pages around `len` bytes at `addr` of a range, which start at
    /// [`Self::offset`]. Not every driver exports several allocations as one: see
    /// [`DeviceRange::allocations`].
    ///
    /// # Errors
    /// The driver's, for example if the device has no dma-buf, or the driver lacks the function.
    pub fn export(range: &DeviceRange, addr: usize, len: usize) -> Result<Self, CudaError> {
        Self::export_as(range, addr, len, BY_PCIE)
    }

    /// Maps bytes of one allocation for the CPU. Returns the CPU's address of the first one, and
    /// the mapping, which keeps the memory: the driver asks for no order of its end and that of the
    /// allocation. Without [`dma_buf_mmap`](crate::Attributes::dma_buf_mmap) it is refused.
    pub(crate) fn map(
        range: &DeviceRange,
        addr: usize,
        len: usize,
    ) -> Result<(usize, SharedMemory), String> {
        // By no flag the mapping is write-combined on x86 and cached on Grace.
        let exported = Self::export_as(range, addr, len, 0).map_err(|error| error.to_string())?;
        let mapping = SharedMemory::map(&exported.fd, exported.offset + len);
        let mapping = mapping.map_err(|error| error.to_string())?;
        Ok((mapping.addr() + exported.offset, mapping))
    }

    fn export_as(
        range: &DeviceRange,
        addr: usize,
        len: usize,
        flags: u64,
    ) -> Result<Self, CudaError> {
        const CALL: &str = "cuMemGetHandleForAddressRange";
        let context = range.context();
        let driver = context.driver();
        let subject = || format!("{len} bytes at {addr:#x} of {context}");
        let get = driver.api.cuMemGetHandleForAddressRange;
        let get = get.ok_or_else(|| driver.lacks(CALL, subject()))?;
        // SAFETY: takes a number and returns one.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        if !range.contains(addr, len) || len == 0 {
            return Err(driver.error(CALL, code::INVALID_VALUE, subject()));
        }
        let start = addr - addr % page;
        let offset = addr - start;
        let whole = (offset + len).next_multiple_of(page);
        let mut fd: c_int = -1;
        let _bound = context.bind()?;
        let kind = handle_type::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
        let mut export = |flags| {
            // SAFETY: for this type of handle the pointer is to an `int`.
            unsafe { get((&raw mut fd).cast(), start as CUdeviceptr, whole, kind, flags) }
        };
        let status = match export(flags) {
            // Older drivers know no flags, and some devices have only the default mapping.
            code::INVALID_VALUE | code::NOT_SUPPORTED if flags != 0 => export(0),
            status => status,
        };
        driver.check(CALL, status, subject)?;
        // SAFETY: the driver has opened it for us; nobody else closes it.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd) }, offset })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Returns the offset of the exported bytes in the dma-buf.
    pub fn offset(&self) -> usize {
        self.offset
    }
}
