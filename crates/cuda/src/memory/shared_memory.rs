//! Host memory that processes of one user share; it ends with the last of them.
//!
//! It is a memfd: no name in any file system, nothing to remove. Processes of the same user map it
//! by a copy of its descriptor. It is sealed, so that nobody can truncate it while it is in use.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::ptr;
use std::sync::atomic::AtomicU8;

use engine::port::registration::is_unclosed;
use thiserror::Error;

const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SharingError {
    #[error("{call}: {error}")]
    System { call: &'static str, error: io::Error },
    #[error("its descriptor is not the shared memory that was told of")]
    Other,
}

/// Memory that other processes may also have mapped.
#[derive(Debug)]
pub struct SharedMemory {
    addr: usize,
    len: usize,
}

fn failed(call: &'static str) -> impl FnOnce(io::Error) -> SharingError {
    move |error| SharingError::System { call, error }
}

fn refused(call: &'static str) -> SharingError {
    failed(call)(io::Error::last_os_error())
}

impl SharedMemory {
    /// Creates `len` bytes, a multiple of a page, all zero; pages are allocated when first used.
    pub fn create(len: usize) -> Result<(Self, OwnedFd), SharingError> {
        let (name, flags) =
            (c"nvshmem-libfabric-bounce", libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        // SAFETY: a string that ends with a zero.
        let raw = unsafe { libc::memfd_create(name.as_ptr(), flags) };
        if raw < 0 {
            return Err(refused("memfd_create"));
        }
        // SAFETY: just opened, and owned by nobody else.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(raw) });
        file.set_len(len as u64).map_err(failed("ftruncate"))?;
        // SAFETY: calls with numbers alone, on a descriptor that is open.
        let sealed = unsafe {
            libc::fchmod(raw, 0o600) == 0 && libc::fcntl(raw, libc::F_ADD_SEALS, SEALS) == 0
        };
        if !sealed {
            return Err(refused("fcntl F_ADD_SEALS"));
        }
        let memory = Self::map(&file, len)?;
        Ok((memory, file.into()))
    }

    /// Maps memory of `len` bytes that a process of the same user has created, by its descriptor.
    pub fn of(fd: OwnedFd, len: usize) -> Result<Self, SharingError> {
        let file = File::from(fd);
        // SAFETY: calls with numbers alone, on a descriptor that is open.
        let (seals, user) =
            unsafe { (libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS), libc::geteuid()) };
        // Asked first: of other files fstat may wait for a server.
        if seals < 0 || seals & SEALS != SEALS {
            return Err(SharingError::Other);
        }
        let found = file.metadata().map_err(failed("fstat"))?;
        if found.len() != len as u64 || found.uid() != user {
            return Err(SharingError::Other);
        }
        Self::map(&file, len)
    }

    pub(crate) fn map(file: &impl AsRawFd, len: usize) -> Result<Self, SharingError> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let at = unsafe {
            libc::mmap(ptr::null_mut(), len, access, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        if at == libc::MAP_FAILED {
            return Err(refused("mmap"));
        }
        // SAFETY: just mapped. Children of fork have no use for it.
        let _ = unsafe { libc::madvise(at, len, libc::MADV_DONTFORK) };
        Ok(Self { addr: at as usize, len })
    }

    pub fn addr(&self) -> usize {
        self.addr
    }

    #[allow(clippy::len_without_is_empty, reason = "none is empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns a byte, which other processes may change at any time.
    ///
    /// # Panics
    /// The offset is not inside.
    pub fn byte(&self, at: usize) -> &AtomicU8 {
        assert!(at < self.len, "byte {at} of {}", self.len);
        // SAFETY: mapped as long as `self`; single bytes are accessed only through this function.
        unsafe { AtomicU8::from_ptr((self.addr + at) as *mut u8) }
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        if is_unclosed() {
            // The fabric may still write to it.
            return;
        }
        // SAFETY: mapped by `map`, and unmapped once, here. Copies in flight hold it in an `Arc`.
        let _ = unsafe { libc::munmap(self.addr as *mut _, self.len) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn memory_outlives_creator_and_descriptor() {
        let (memory, fd) = SharedMemory::create(8192).unwrap();
        let seen = SharedMemory::of(fd.try_clone().unwrap(), 8192).unwrap();
        memory.byte(8191).store(7, Ordering::Relaxed);
        assert_eq!(seen.byte(8191).load(Ordering::Relaxed), 7);
        assert_ne!(seen.addr(), memory.addr());
        // SAFETY: a call with numbers alone, after which it cannot be made shorter.
        assert_eq!(unsafe { libc::ftruncate(fd.as_raw_fd(), 4096) }, -1);
        drop((fd, memory));
        assert_eq!(seen.byte(8191).load(Ordering::Relaxed), 7, "gone with the last one");
    }

    #[test]
    fn only_announced_memory_is_mapped() {
        let (_memory, fd) = SharedMemory::create(8192).unwrap();
        SharedMemory::of(fd, 4096).unwrap_err();
        SharedMemory::of(File::open("/dev/zero").unwrap().into(), 8192).unwrap_err();
        // SAFETY: a string that ends with a zero, and a descriptor that was just opened.
        let open = unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"unsealed".as_ptr(), 0)) };
        let open = File::from(open);
        open.set_len(8192).unwrap();
        let error = SharedMemory::of(open.into(), 8192).unwrap_err();
        assert!(error.to_string().contains("not the shared memory"), "{error}");
    }
}
