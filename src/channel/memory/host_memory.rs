//! Host memory for kernels and NICs: page-locked if the program uses CUDA, else plain pages.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use crate::channel::error::ChannelError;
use crate::channel::memory::SharedBlock;
use cuda::{Context, Driver, PinnedMemory};
use engine::port::registration::is_unclosed;

const PAGE: usize = 4096;

/// Host memory, zeroed, page-aligned.
#[derive(Debug)]
pub(crate) enum HostMemory {
    /// Page-locked, at the same address for kernels.
    Pinned(Arc<PinnedMemory>),
    /// Of a process that does not use CUDA.
    Plain(Pages),
}

impl HostMemory {
    /// At least `len` bytes. Making and freeing it may wait for everything on the device.
    pub(crate) fn new(len: usize) -> Result<Self, ChannelError> {
        let whole = len.max(1).checked_next_multiple_of(PAGE);
        let whole = whole.ok_or(ChannelError::NoMemory { len })?;
        let Some(context) = bound_context()? else {
            return Pages::new(whole).map(Self::Plain).ok_or(ChannelError::NoMemory { len });
        };
        let memory = PinnedMemory::new(&context, whole)?;
        // SAFETY: just allocated with that length, and nobody else has it.
        unsafe { ptr::write_bytes(memory.addr() as *mut u8, 0, memory.len()) };
        Ok(Self::Pinned(memory))
    }
}

impl SharedBlock for HostMemory {
    fn addr(&self) -> usize {
        match self {
            Self::Pinned(memory) => memory.addr(),
            Self::Plain(pages) => pages.at.as_ptr() as usize,
        }
    }
}

pub(crate) fn bound_context() -> Result<Option<Arc<Context>>, ChannelError> {
    match Driver::of_process() {
        Ok(driver) => Ok(Context::current(driver)?),
        Err(_) => Ok(None),
    }
}

#[derive(Debug)]
pub(crate) struct Pages {
    at: NonNull<u8>,
    layout: Layout,
}

// SAFETY: plain memory, which belongs to no thread. Its users say who touches which part.
unsafe impl Send for Pages {}
// SAFETY: the same; this type itself touches it when it is made and freed only.
unsafe impl Sync for Pages {}

impl Pages {
    /// Allocates `len` bytes, a multiple of the page size. None if memory is short.
    fn new(len: usize) -> Option<Self> {
        let layout = Layout::from_size_align(len.max(PAGE), PAGE).ok()?;
        // SAFETY: the layout has a size.
        let at = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { at, layout })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if is_unclosed() {
            // Leaked: the fabric may still write to it.
            return;
        }
        // SAFETY: allocated by `new` with this layout, and freed once, here.
        unsafe { dealloc(self.at.as_ptr(), self.layout) }
    }
}
