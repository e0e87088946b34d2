//! Pages of memory, and places in it.
//!
//! Pages are a file in memory, mapped once for the copy engine and once for the program. Work under
//! way keeps its pages alive: a program that frees too early is wrong without being undefined.

use std::fs::OpenOptions;
use std::io::{Seek, SeekFrom};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;

use crate::state::context::Context;
use crate::state::memory::Mapping;
use crate::state::status::{INVALID_VALUE, OUT_OF_MEMORY, Status};

#[derive(Debug)]
pub(crate) struct Pages {
    file: OwnedFd,
    pub(crate) alias: usize,
    len: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// `cuMemAlloc`.
    Device,
    /// `cuMemMap` of memory on a device.
    VmmDevice,
    /// `cuMemMap` of memory on a NUMA node.
    VmmHost,
    /// `cuMemAllocAsync`: of no context.
    Pool,
    /// `cuMemAllocManaged`.
    Managed,
    /// `cuMemHostAlloc`.
    Pinned,
    /// `cuMemHostRegister`.
    Registered,
}

#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) alias: usize,
    /// None for memory that the driver does not know.
    pub(crate) kind: Option<Kind>,
    pub(crate) context: Option<&'static Context>,
    _pages: Option<Arc<Pages>>,
}

/// The pages of a device. Memory on it begins and ends with them.
pub(crate) const DEVICE_PAGE: usize = 64 << 10;

impl Place {
    pub(crate) fn unknown(alias: usize) -> Self {
        Self { alias, kind: None, context: None, _pages: None }
    }

    pub(crate) fn within(mapping: Mapping, offset: usize) -> Self {
        let Mapping { alias, kind, context, pages, .. } = mapping;
        Self { alias: alias + offset, kind: Some(kind), context, _pages: pages }
    }

    pub(crate) fn known(&self) -> bool {
        self.kind.is_some()
    }

    pub(crate) fn on_device(&self) -> bool {
        matches!(self.kind, Some(Kind::Device | Kind::VmmDevice | Kind::Pool))
    }

    pub(crate) fn owner(&self) -> Option<&'static Context> {
        self.context.filter(|_| matches!(self.kind, Some(Kind::Device | Kind::Managed)))
    }
}

impl Pages {
    pub(crate) fn new(len: usize) -> Result<Arc<Self>, Status> {
        // SAFETY: the name is a string; the result is looked at.
        let raw = unsafe { libc::memfd_create(c"fake-cuda".as_ptr(), libc::MFD_CLOEXEC) };
        if raw < 0 {
            return Err(OUT_OF_MEMORY);
        }
        // SAFETY: just opened, and nobody else has it.
        let file = unsafe { OwnedFd::from_raw_fd(raw) };
        // SAFETY: a file of ours.
        if unsafe { libc::ftruncate(file.as_raw_fd(), len as libc::off_t) } != 0 {
            return Err(OUT_OF_MEMORY);
        }
        let alias = map(ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, Some(&file))?;
        Ok(Arc::new(Self { file, alias, len }))
    }

    pub(crate) fn soil(&self) {
        const PAGE: usize = 4096;
        for at in [self.alias, self.alias + self.len - PAGE.min(self.len)] {
            // SAFETY: mapped in `new`, and whole pages.
            unsafe { ptr::write_bytes(at as *mut u8, 0x5a, PAGE.min(self.len)) };
        }
    }

    /// Maps them for the program, at `at` unless that is null.
    pub(crate) fn show(&self, at: usize, cpu: bool) -> Result<usize, Status> {
        let access = if cpu { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_NONE };
        map(at as *mut _, self.len, access, Some(&self.file))
    }

    pub(crate) fn open_at(&self, offset: usize) -> Result<OwnedFd, Status> {
        // A duplicate would share its place in the file.
        let name = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let open = || {
            let mut file = OpenOptions::new().read(true).write(true).open(name)?;
            file.seek(SeekFrom::Start(offset as u64))?;
            std::io::Result::Ok(file.into())
        };
        open().map_err(|_| OUT_OF_MEMORY)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, and nothing refers to it any more: who does holds an `Arc`.
        unsafe { libc::munmap(self.alias as *mut _, self.len) };
    }
}

pub(crate) fn map(
    at: *mut libc::c_void,
    len: usize,
    access: i32,
    file: Option<&OwnedFd>,
) -> Result<usize, Status> {
    let fixed = if at.is_null() { 0 } else { libc::MAP_FIXED };
    let kind = match file {
        Some(_) => libc::MAP_SHARED,
        None => libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
    };
    let raw = file.map_or(-1, AsRawFd::as_raw_fd);
    // SAFETY: a fixed address comes only from a range that this driver has reserved.
    let mapped = unsafe { libc::mmap(at, len, access, kind | fixed, raw, 0) };
    if mapped == libc::MAP_FAILED { Err(OUT_OF_MEMORY) } else { Ok(mapped as usize) }
}

/// # Safety
/// The program has no use for them any more.
pub(crate) unsafe fn unmap(base: usize, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { libc::munmap(base as *mut _, len) };
}

pub(crate) fn reserve(len: usize, alignment: usize) -> Result<usize, Status> {
    let taken = len.checked_add(alignment).ok_or(INVALID_VALUE)?;
    let raw = map(ptr::null_mut(), taken, libc::PROT_NONE, None)?;
    let base = raw.next_multiple_of(alignment);
    // SAFETY: the two ends of what was just mapped; nobody has their addresses.
    unsafe {
        if base > raw {
            unmap(raw, base - raw);
        }
        unmap(base + len, raw + taken - (base + len));
    }
    Ok(base)
}

pub(crate) fn round_up(len: usize) -> Result<usize, Status> {
    match len.checked_next_multiple_of(DEVICE_PAGE) {
        Some(0) | None => Err(INVALID_VALUE),
        Some(len) => Ok(len),
    }
}
