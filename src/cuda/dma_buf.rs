//! Device memory as a dma-buf: a file descriptor by which other drivers reach it.

use std::ffi::c_int;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use cudarc::driver::sys::{CUdeviceptr, CUmemRangeHandleType_enum as handle_type};

use super::error::CudaError;
use super::range::DeviceRange;

/// A dma-buf of a range. Dropping it closes the descriptor; who has mapped or registered it keeps
/// the memory.
#[derive(Debug)]
pub struct DmaBuf {
    fd: OwnedFd,
    offset: usize,
    len: usize,
}

impl DmaBuf {
    /// Exports a range. Pages are exported whole: [`Self::offset`] says where the range starts.
    ///
    /// # Errors
    /// As the driver answers, for one when the device has no dma-buf or the range several
    /// allocations, and when the driver lacks the function.
    pub fn export(range: &DeviceRange) -> Result<Self, CudaError> {
        const CALL: &str = "cuMemGetHandleForAddressRange";
        let context = range.context();
        let driver = context.driver();
        let subject = || format!("{} bytes at {:#x} of {context}", range.len(), range.addr());
        let get = driver.api.cuMemGetHandleForAddressRange;
        let get = get.ok_or_else(|| driver.lacks(CALL, subject()))?;
        let page = page_size();
        let start = range.addr() - range.addr() % page;
        let offset = range.addr() - start;
        let len = (offset + range.len()).next_multiple_of(page);
        let mut fd: c_int = -1;
        let _bound = context.bind()?;
        let kind = handle_type::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
        // SAFETY: for this type of handle the place is that of an `int`.
        let status = unsafe { get((&raw mut fd).cast(), start as CUdeviceptr, len, kind, 0) };
        driver.check(CALL, status, subject)?;
        // SAFETY: the driver has opened it for us; nobody else closes it.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd) }, offset, len })
    }

    /// The descriptor.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Where the range starts in it, in bytes.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Its length in bytes: whole pages.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

fn page_size() -> usize {
    // SAFETY: takes a number and returns one.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096)
}
