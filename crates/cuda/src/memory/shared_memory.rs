//! Host memory that processes of one user share; it ends with the last of them.
//!
//! It is a memfd: no name in any file system, nothing to remove. Processes of the same user open it
//! through `/proc`, by process and descriptor number, until the creator closes the descriptor once
//! all have opened it. It is sealed, so that nobody can truncate it while it is in use.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::ptr;
use std::sync::atomic::AtomicU8;

use engine::port::registration::is_unclosed;
use thiserror::Error;

const NAME: &str = "nvshmem-libfabric-bounce";

const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// Reason why memory of another process is not shared.
#[derive(Debug, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the texts of errors say it")]
pub enum SharingError {
    #[error("{call}: {error}")]
    System { call: &'static str, error: io::Error },
    #[error("{what} is not the shared memory that was told of")]
    Other { what: String },
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
    /// Other processes may open the memory as long as the descriptor is open.
    ///
    /// # Errors
    /// The system's.
    pub fn create(len: usize) -> Result<(Self, OwnedFd), SharingError> {
        let name = CString::new(NAME).unwrap_or_default();
        // SAFETY: a string that ends with a zero.
        let raw = unsafe {
            libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING)
        };
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

    /// Opens memory of `len` bytes that process `pid`, of the same user, has created as `fd`.
    ///
    /// # Errors
    /// The system's; `EACCES` and `ENOENT` if the process is another user's, or in another
    /// namespace.
    pub fn open(pid: u32, fd: RawFd, len: usize) -> Result<Self, SharingError> {
        let path = format!("/proc/{pid}/fd/{fd}");
        // Checked first: opening another kind of file may wait, or have an effect.
        let target = std::fs::read_link(&path).map_err(failed("readlink of a descriptor"))?;
        let other = || SharingError::Other { what: format!("{path} ({})", target.display()) };
        if !target.to_string_lossy().starts_with(&format!("/memfd:{NAME}")) {
            return Err(other());
        }
        let mut options = File::options();
        options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
        let file = options.open(&path).map_err(failed("opening a descriptor"))?;
        let (raw, found) = (file.as_raw_fd(), file.metadata().map_err(failed("fstat"))?);
        // SAFETY: calls with numbers alone, on a descriptor that is open.
        let (seals, user) = unsafe { (libc::fcntl(raw, libc::F_GET_SEALS), libc::geteuid()) };
        let is_it = found.is_file()
            && found.len() == len as u64
            && found.uid() == user
            && seals >= 0
            && seals & SEALS == SEALS;
        if !is_it {
            return Err(other());
        }
        Self::map(&file, len)
    }

    fn map(file: &File, len: usize) -> Result<Self, SharingError> {
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

    /// Returns its address in this process.
    pub fn addr(&self) -> usize {
        self.addr
    }

    /// Returns its length in bytes.
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
    fn memory_is_shared_until_descriptor_closes() {
        let (memory, fd) = SharedMemory::create(8192).unwrap();
        let (me, raw) = (std::process::id(), fd.as_raw_fd());
        let seen = SharedMemory::open(me, raw, 8192).unwrap();
        memory.byte(8191).store(7, Ordering::Relaxed);
        assert_eq!(seen.byte(8191).load(Ordering::Relaxed), 7);
        assert_ne!(seen.addr(), memory.addr());
        // SAFETY: a call with numbers alone, after which it cannot be made shorter.
        assert_eq!(unsafe { libc::ftruncate(raw, 4096) }, -1);
        drop(fd);
        SharedMemory::open(me, raw, 8192).unwrap_err();
        drop(memory);
        assert_eq!(seen.byte(8191).load(Ordering::Relaxed), 7, "gone with the last one");
    }

    #[test]
    fn only_announced_memory_is_opened() {
        let (_memory, fd) = SharedMemory::create(8192).unwrap();
        let me = std::process::id();
        SharedMemory::open(me, fd.as_raw_fd(), 4096).unwrap_err();
        let file = File::open("/dev/zero").unwrap();
        let error = SharedMemory::open(me, file.as_raw_fd(), 8192).unwrap_err();
        assert!(error.to_string().contains("/dev/zero"), "{error}");
        // A memfd of that name which is not sealed.
        let name = CString::new(NAME).unwrap();
        // SAFETY: a string that ends with a zero, and a descriptor that was just opened.
        let open = unsafe { OwnedFd::from_raw_fd(libc::memfd_create(name.as_ptr(), 0)) };
        let open = File::from(open);
        open.set_len(8192).unwrap();
        let error = SharedMemory::open(me, open.as_raw_fd(), 8192).unwrap_err();
        assert!(error.to_string().contains("not the shared memory"), "{error}");
    }
}
