//! A recording's file, mapped: what is stored in it is in the file, also when the process is killed
//! the moment after.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// A new file of this user's alone, mapped as words that several threads write.
#[derive(Debug)]
pub(crate) struct MappedFile {
    file: File,
    words: NonNull<AtomicU64>,
    len: usize,
}

// SAFETY: the words are atomic, and the mapping stays until the value is dropped.
unsafe impl Send for MappedFile {}
// SAFETY: as above.
unsafe impl Sync for MappedFile {}

impl MappedFile {
    /// Makes a file of so many bytes, all of them zero, in place of what has the name. Its room is
    /// taken at once: a file system that is full says so here, and not when something is stored.
    pub(crate) fn create(path: &Path, bytes: u64) -> io::Result<Self> {
        // Who has the old file mapped keeps it.
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(path)?;
        let mapped = Self::map(file, bytes);
        if mapped.is_err() {
            // There is nothing in it.
            let _ = fs::remove_file(path);
        }
        mapped
    }

    fn map(file: File, bytes: u64) -> io::Result<Self> {
        let too_large = |_| io::Error::other(format!("{bytes} bytes are too many"));
        let len = usize::try_from(bytes).map_err(too_large)?;
        let offset = libc::off_t::try_from(bytes).map_err(too_large)?;
        // SAFETY: a file of ours that is open.
        let failed = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, offset) };
        if failed != 0 {
            return Err(io::Error::from_raw_os_error(failed));
        }
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping of a file that is as long.
        let at = unsafe {
            libc::mmap(std::ptr::null_mut(), len, protection, flags, file.as_raw_fd(), 0)
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let words = NonNull::new(at.cast()).ok_or_else(|| io::Error::other("mapped at nothing"))?;
        Ok(Self { file, words, len })
    }

    /// All of it.
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: mapped for as long as `self` is, aligned as pages are, zero at first, and written
        // by atomics alone.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr(), self.len / 8) }
    }

    /// Ends it with so many bytes.
    pub(crate) fn close(self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        // SAFETY: what `map` has mapped; nobody has its words any more. It cannot fail for such a
        // range.
        unsafe { libc::munmap(self.words.as_ptr().cast(), self.len) };
    }
}

/// Nanoseconds on one of the system's clocks.
pub(crate) fn now(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a place for the answer; the clocks that are asked for exist.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}
