//! A dma-buf of a device's memory, as the NIC has it: pages that it reads and writes whatever the
//! process may do.

use std::ffi::c_void;
use std::ptr;
use std::sync::Once;

use super::wire::Wire;
use crate::config::Config;

const PAGE: u64 = 4096;

/// A part of a dma-buf, mapped for the NIC.
#[derive(Debug)]
pub(crate) struct DmaBuf {
    at: *mut c_void,
    bytes: usize,
    pub(crate) address: u64,
}

impl DmaBuf {
    /// Maps `length` bytes from `offset` on, or gives an error number. The dma-buf begins where the
    /// descriptor is in its file, as the stand-in for the driver has it.
    pub(crate) fn map(file: i32, offset: u64, length: usize) -> Result<Self, i32> {
        // SAFETY: it asks only.
        let start = unsafe { libc::lseek(file, 0, libc::SEEK_CUR) };
        let start = u64::try_from(start).map_err(|_| libc::EBADF)?;
        let offset = start.checked_add(offset).ok_or(libc::EINVAL)?;
        let from = offset / PAGE * PAGE;
        let end = offset.checked_add(length as u64).ok_or(libc::EINVAL)?;
        // SAFETY: zeros are a value of it.
        let mut about: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel checks the descriptor.
        if unsafe { libc::fstat(file, &raw mut about) } != 0 {
            return Err(libc::EBADF);
        }
        if length == 0 || end > about.st_size as u64 {
            return Err(libc::EINVAL);
        }
        let bytes = (end - from) as usize;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping, of what the file has.
        let at = unsafe {
            let (file, from) = (file, from as libc::off_t);
            libc::mmap(ptr::null_mut(), bytes, rights, libc::MAP_SHARED, file, from)
        };
        if at == libc::MAP_FAILED {
            return Err(libc::EBADF);
        }
        Ok(Self { at, bytes, address: at as u64 + (offset - from) })
    }
}

impl Drop for DmaBuf {
    fn drop(&mut self) {
        // SAFETY: mapped above; its region is gone, and who comes late finds no memory.
        unsafe { libc::munmap(self.at, self.bytes) };
    }
}

pub(crate) fn heed_flushes() {
    type AtFlush = unsafe extern "C" fn(unsafe extern "C" fn());
    static ONCE: Once = Once::new();
    // SAFETY: it loads nothing; the function is as the stand-in for the driver has it.
    ONCE.call_once(|| unsafe {
        let flags = libc::RTLD_NOLOAD | libc::RTLD_LAZY;
        let driver = libc::dlopen(c"libcuda.so.1".as_ptr(), flags);
        let call = if driver.is_null() {
            ptr::null_mut()
        } else {
            libc::dlsym(driver, c"fake_cuda_at_flush".as_ptr())
        };
        if !call.is_null() {
            std::mem::transmute::<*mut c_void, AtFlush>(call)(flush);
        }
    });
}

unsafe extern "C" fn flush() {
    if let Some(config) = Config::get() {
        Wire::get(config).flush_writes(config);
    }
}
