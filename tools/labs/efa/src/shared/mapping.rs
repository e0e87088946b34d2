//! A file that is mapped by all processes of a job.

use std::fs::OpenOptions;
use std::io;
use std::marker::PhantomData;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr::NonNull;

/// A shared mapping of a `T`, and of what follows it in the file.
#[derive(Debug)]
pub(crate) struct Mapping<T> {
    at: NonNull<T>,
    bytes: usize,
    shares: PhantomData<T>,
}

/// Types that live in shared memory.
///
/// # Safety
/// Zeros are a value of it, every field that changes while it is shared is an atomic, and it holds
/// no pointer.
pub(crate) unsafe trait Shared {}

// SAFETY: what can change is atomic, as `Shared` demands.
unsafe impl<T: Shared> Send for Mapping<T> {}
// SAFETY: as above.
unsafe impl<T: Shared> Sync for Mapping<T> {}

impl<T: Shared> Mapping<T> {
    /// Maps a file of `T` and `more` bytes, made where it is not there. Processes may do so at the
    /// same time: all give it the same length, and new pages are zeros.
    pub(crate) fn create(path: &Path, more: usize) -> io::Result<Self> {
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        let bytes = size_of::<T>() + more;
        file.set_len(bytes as u64)?;
        Self::map(file.as_raw_fd(), bytes)
    }

    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let bytes = file.metadata()?.len() as usize;
        if bytes < size_of::<T>() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Self::map(file.as_raw_fd(), bytes)
    }

    fn map(file: i32, bytes: usize) -> io::Result<Self> {
        // SAFETY: a fresh mapping of a whole file.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file,
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let at = NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { at, bytes, shares: PhantomData })
    }

    pub(crate) fn entries<E: Shared>(&self) -> &[E] {
        let count = (self.bytes - size_of::<T>()) / size_of::<E>();
        // SAFETY: the mapping has these bytes, zeros are a value, and both types begin at multiples
        // of eight.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr().add(1).cast(), count) }
    }
}

impl<T: Shared> Deref for Mapping<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the mapping is at least that long, and lives as long as this.
        unsafe { self.at.as_ref() }
    }
}

impl<T> Drop for Mapping<T> {
    fn drop(&mut self) {
        // SAFETY: mapped above, and nobody has a reference longer than this lives.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.bytes) };
    }
}
