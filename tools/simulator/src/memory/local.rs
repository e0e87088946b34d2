//! Memory of a PE that the plugin may read and write behind Rust's back.
//!
//! It is reached through raw pointers only: a reference would promise the compiler that nobody else
//! writes. What the other side has written may be read after whatever tells that it is there: a
//! quiet, a barrier, or a flag read with [`Local::load_acquire`]. Device memory is never touched by
//! the CPU: every access is a copy of the driver's that has ended on return.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Result, error};
use crate::memory::device_memory::{DeviceMemory, MemoryKind};
use crate::memory::gpu::{Cut, Gpu};
use crate::memory::pattern::Pattern;

/// Memory, zeroed, given back when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    pub(crate) start: *mut u8,
    len: usize,
    owner: Owner,
}

#[derive(Debug)]
enum Owner {
    /// Anonymous pages, of which the memory is a part.
    Pages { base: *mut c_void, whole: usize },
    /// The driver.
    Device(DeviceMemory),
}

// SAFETY: a mapping is an address range; it belongs to no thread.
unsafe impl Send for Mapping {}
// SAFETY: all access goes through raw pointers, under the rule in the module's text.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of anonymous pages, aligned to `align` (a power of two) and at least
    /// to 4096.
    pub(crate) fn new(len: u64, align: u64) -> Result<Mapping> {
        let align = align.max(4096);
        let whole = len.max(1).checked_next_multiple_of(4096);
        let whole = whole.and_then(|len| len.checked_add(align)).unwrap_or(u64::MAX) as usize;
        // SAFETY: a new mapping at an address of the kernel's choice touches no other.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                whole,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            let e = std::io::Error::last_os_error();
            return Err(error!("cannot map {len} bytes: {e}"));
        }
        let start = base.cast::<u8>();
        // Inside the mapping, with `len` bytes behind it. What is beside it is never touched.
        let start = start.wrapping_add(start.align_offset(align as usize));
        Ok(Mapping { start, len: whole - align as usize, owner: Owner::Pages { base, whole } })
    }

    pub(crate) fn of_kind(
        kind: MemoryKind,
        len: u64,
        gpu: Option<&'static Gpu>,
    ) -> Result<Mapping> {
        match (kind, gpu) {
            (MemoryKind::Host, _) => Mapping::new(len, 4096),
            (_, None) => Err(error!("a PE of host memory has none of {kind}")),
            (_, Some(gpu)) => {
                Ok(Mapping::of_device(DeviceMemory::allocate(gpu, len.max(1) as usize)?))
            }
        }
    }

    pub(crate) fn of_device(memory: DeviceMemory) -> Mapping {
        let start = std::ptr::with_exposed_provenance_mut(memory.base);
        Mapping { start, len: memory.len, owner: Owner::Device(memory) }
    }

    /// Makes the bytes from `offset` on, both whole pages, fault when touched.
    pub(crate) fn forbid(&self, offset: usize) -> Result<()> {
        let (start, len) = (self.start.wrapping_add(offset).cast(), self.len - offset);
        // SAFETY: the range is within this mapping, and no reference into it exists.
        match unsafe { libc::mprotect(start, len, libc::PROT_NONE) } {
            0 => Ok(()),
            _ => Err(error!("cannot protect memory: {}", std::io::Error::last_os_error())),
        }
    }

    pub(crate) fn len(&self) -> u64 {
        self.len as u64
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let Owner::Pages { base, whole } = self.owner else { return };
        // SAFETY: the mapping was made with this length, and its users are gone.
        unsafe { libc::munmap(base, whole) };
    }
}

/// A piece of memory of this PE: part of its heap, of a registered buffer or of plain memory.
/// Access fails as the device does, and for what is not all inside.
///
/// It borrows what it is part of, so it cannot outlive it.
#[derive(Clone, Copy, Debug)]
pub struct Local<'a> {
    start: *mut u8,
    len: u64,
    /// None for memory that the CPU reads and writes.
    via: Option<(&'static Gpu, Cut)>,
    _memory: PhantomData<&'a Mapping>,
}

// SAFETY: as for Mapping, which it is a part of.
unsafe impl Send for Local<'_> {}
// SAFETY: as for Mapping, which it is a part of.
unsafe impl Sync for Local<'_> {}

/// Bytes at a time in memory of the host: fits the first cache, so the copy that keeps references
/// away from shared memory costs little. A multiple of 8.
const BLOCK: usize = 4096;

impl<'a> Local<'a> {
    pub(crate) fn of(mapping: &'a Mapping, offset: u64, len: u64) -> Result<Local<'a>> {
        let via = match &mapping.owner {
            Owner::Device(memory) => Some((memory.gpu, memory.cut())),
            Owner::Pages { .. } => None,
        };
        Local { start: mapping.start, len: mapping.len(), via, _memory: PhantomData }
            .part(offset, len)
    }

    /// # Safety
    /// The mapping lives for `'b`.
    pub(crate) unsafe fn lengthen<'b>(self) -> Local<'b> {
        Local { start: self.start, len: self.len, via: self.via, _memory: PhantomData }
    }

    pub fn part(self, offset: u64, len: u64) -> Result<Local<'a>> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => {
                // Inside the mapping or at its end. `wrapping_add` makes no promise, as the memory
                // may be none of this machine's.
                let start = self.start.wrapping_add(offset as usize);
                Ok(Local { start, len, ..self })
            }
            _ => Err(error!("bytes {offset} to {offset}+{len} of a memory of {} bytes", self.len)),
        }
    }

    #[allow(clippy::len_without_is_empty, reason = "nobody asks")]
    pub fn len(self) -> u64 {
        self.len
    }

    pub fn as_ptr(self) -> *mut u8 {
        self.start
    }

    pub fn fill(self, pattern: Pattern, position: u64) -> Result<()> {
        self.blocks(true, |at, block| pattern.fill(position + at, block))
    }

    /// The error tells where the first block is that differs from the pattern from `position` on.
    pub fn verify(self, pattern: Pattern, position: u64) -> Result<()> {
        let mut compared = Ok(());
        self.blocks(false, |at, block| {
            if compared.is_ok() {
                let verified = pattern.verify(position + at, block);
                compared = verified.map_err(|error| error!("behind {at} bytes: {error}"));
            }
        })?;
        compared
    }

    pub fn set(self, byte: u8) -> Result<()> {
        self.blocks(true, |_, block| block.fill(byte))
    }

    pub fn to_vec(self) -> Result<Vec<u8>> {
        let mut out = Vec::with_capacity(self.len as usize);
        self.blocks(false, |_, block| out.extend_from_slice(block))?;
        Ok(out)
    }

    pub fn write(self, bytes: &[u8]) -> Result<()> {
        self.part(0, bytes.len() as u64)?.blocks(true, |at, block| {
            block.copy_from_slice(&bytes[at as usize..][..block.len()]);
        })
    }

    /// The first eight bytes, aligned to 8, as a number that another PE may be writing. What was
    /// written before that number is seen after this.
    #[inline]
    pub fn load_acquire(self) -> Result<u64> {
        let there = self.word()?;
        if self.via.is_none() {
            return Ok(there.load(Ordering::Acquire));
        }
        Ok(word(&self.part(0, 8)?.to_vec()?))
    }

    /// Writes the first eight bytes, aligned to 8, at once, after everything written before.
    #[inline]
    pub fn store_release(self, value: u64) -> Result<()> {
        let word = self.word()?;
        if self.via.is_some() {
            return self.write(&value.to_le_bytes());
        }
        word.store(value, Ordering::Release);
        Ok(())
    }

    fn word(&self) -> Result<&AtomicU64> {
        if self.len < 8 || self.start as usize % 8 != 0 {
            return Err(error!("a word is eight bytes at a multiple of eight"));
        }
        // SAFETY: the word is inside the mapping, aligned, and only touched atomically here or by
        // the plugin.
        Ok(unsafe { AtomicU64::from_ptr(self.start.cast()) })
    }

    /// Gives all bytes to `each`, in blocks in order, with their offsets: to be seen, or made anew.
    fn blocks(self, writes: bool, mut each: impl FnMut(u64, &mut [u8])) -> Result<()> {
        if let Some((gpu, cut)) = self.via {
            return gpu.copy(self.start as usize, self.len as usize, cut, writes, each);
        }
        let mut block = [0; BLOCK];
        for at in (0..self.len).step_by(BLOCK) {
            let block = &mut block[..(self.len - at).min(BLOCK as u64) as usize];
            let start = self.start.wrapping_add(at as usize);
            if writes {
                each(at, block);
                // SAFETY: these bytes are inside the mapping, and the block is elsewhere.
                unsafe { start.copy_from_nonoverlapping(block.as_ptr(), block.len()) };
            } else {
                // SAFETY: as above.
                unsafe { start.copy_to_nonoverlapping(block.as_mut_ptr(), block.len()) };
                each(at, block);
            }
        }
        Ok(())
    }
}

pub(crate) fn word(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}
