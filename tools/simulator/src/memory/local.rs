//! Memory of a PE that the plugin may read and write behind Rust's back.
//!
//! It is reached through raw pointers only: a reference would promise the compiler that nobody else
//! writes. What the other side has written may be read after whatever tells that it is there: a
//! quiet, a barrier, or a flag read with [`Local::load_acquire`]. Device memory is never touched by
//! the CPU: every access is a copy of the driver's that has ended on return.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};
use crate::memory::device_memory::{DeviceMemory, MemoryKind};
use crate::memory::gpu::{Cut, Gpu};
use crate::memory::pattern::{Mismatch, Pattern};

/// Memory, zeroed, given back when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: *mut u8,
    len: usize,
    owner: Owner,
}

/// Where memory comes from, and so where it goes.
#[derive(Debug)]
enum Owner {
    /// Anonymous pages.
    Pages,
    /// Anonymous pages that the driver has locked.
    Locked(&'static Gpu),
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
        let too_large = || Error::Usage(format!("{len} bytes are more than can be mapped"));
        let align = usize::try_from(align).map_err(|_| too_large())?.max(4096);
        let len = usize::try_from(len.max(1)).map_err(|_| too_large())?;
        let len = len.checked_next_multiple_of(4096).ok_or_else(too_large)?;
        let whole = len.checked_add(align).ok_or_else(too_large)?;
        // SAFETY: a new mapping at an address of the kernel's choice touches no other.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                whole,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            let e = std::io::Error::last_os_error();
            return Err(Error::Usage(format!("cannot map {len} bytes: {e}")));
        }
        let start = start.cast::<u8>();
        let skip = start.align_offset(align);
        // SAFETY: both ranges are parts of the mapping just made that nobody has seen: what is
        // before the aligned start, and what is after the end. Empty ones are not unmapped.
        unsafe {
            if skip > 0 {
                libc::munmap(start.cast(), skip);
            }
            if align > skip {
                libc::munmap(start.add(skip + len).cast(), align - skip);
            }
            Ok(Mapping { start: start.add(skip), len, owner: Owner::Pages })
        }
    }

    /// Memory for a buffer of a kind that has one address and one allocation.
    pub(crate) fn of_kind(
        kind: MemoryKind,
        len: u64,
        gpu: Option<&'static Gpu>,
    ) -> Result<Mapping> {
        match (kind, gpu) {
            (MemoryKind::Host, _) => Mapping::new(len, 4096),
            (_, None) => Err(Error::Usage(format!("a PE of host memory has none of {kind}"))),
            (MemoryKind::Device | MemoryKind::Managed, Some(gpu)) => {
                Ok(Mapping::of_device(DeviceMemory::allocate(gpu, kind, len.max(1) as usize)?))
            }
            (kind, _) => Err(Error::Usage(format!("no buffer is of {kind} memory"))),
        }
    }

    /// Memory of the driver's.
    pub(crate) fn of_device(memory: DeviceMemory) -> Mapping {
        let start = std::ptr::with_exposed_provenance_mut(memory.base());
        Mapping { start, len: memory.len(), owner: Owner::Device(memory) }
    }

    /// Has the driver lock anonymous pages, as NVSHMEM does with a user's buffer of host memory
    /// before it is registered.
    pub(crate) fn lock(&mut self, gpu: &'static Gpu) -> Result<()> {
        if let Owner::Pages = self.owner {
            let (start, len) = (self.start.cast(), self.len);
            // SAFETY: pages of this mapping, which are unlocked before they are unmapped.
            gpu.bound(|gpu| unsafe { gpu.driver.register_host(start, len, 0) })?;
            self.owner = Owner::Locked(gpu);
        }
        Ok(())
    }

    /// How the bytes are reached, if not by the CPU.
    fn via(&self) -> Option<Via> {
        match &self.owner {
            Owner::Pages | Owner::Locked(_) => None,
            Owner::Device(memory) => Some(Via { gpu: memory.gpu(), cut: memory.cut() }),
        }
    }

    /// Makes the bytes from `offset` on, both whole pages, fault when touched.
    pub(crate) fn forbid(&self, offset: usize) -> Result<()> {
        let len = self.len.checked_sub(offset).filter(|_| offset % 4096 == 0);
        let len = len.ok_or_else(|| Error::Usage(format!("no page begins at {offset}")))?;
        // SAFETY: the range is within this mapping, and no reference into it exists.
        let status = unsafe { libc::mprotect(self.start.add(offset).cast(), len, libc::PROT_NONE) };
        if status != 0 {
            let e = std::io::Error::last_os_error();
            return Err(Error::Usage(format!("cannot protect memory: {e}")));
        }
        Ok(())
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.start
    }

    pub(crate) fn len(&self) -> u64 {
        self.len as u64
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        match &self.owner {
            Owner::Device(_) => return,
            Owner::Locked(gpu) => {
                let start = self.start.cast();
                // SAFETY: locked by this driver, and its users are gone.
                let unlocked = gpu.bound(|gpu| unsafe { gpu.driver.unregister_host(start) });
                if let Err(error) = unlocked {
                    eprintln!("nvshmem-sim: unlocking a buffer: {error}");
                }
            }
            Owner::Pages => {}
        }
        // SAFETY: the mapping was made with this length, and its users are gone.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}

/// The way to memory that the CPU does not touch.
#[derive(Clone, Copy, Debug)]
struct Via {
    gpu: &'static Gpu,
    cut: Cut,
}

/// A piece of memory of this PE: part of its heap, of a registered buffer or of plain memory.
///
/// It borrows what it is part of, so it cannot outlive it.
#[derive(Clone, Copy, Debug)]
pub struct Local<'a> {
    start: *mut u8,
    len: u64,
    /// None for memory that the CPU reads and writes.
    via: Option<Via>,
    _memory: std::marker::PhantomData<&'a Mapping>,
}

// SAFETY: as for Mapping, which it is a part of.
unsafe impl Send for Local<'_> {}
// SAFETY: as for Mapping, which it is a part of.
unsafe impl Sync for Local<'_> {}

impl<'a> Local<'a> {
    pub(crate) fn of(mapping: &'a Mapping, offset: u64, len: u64) -> Result<Local<'a>> {
        let (start, via) = (mapping.start, mapping.via());
        Local { start, len: mapping.len(), via, _memory: std::marker::PhantomData }
            .part(offset, len)
    }

    /// The same memory, borrowed for longer.
    ///
    /// # Safety
    /// The mapping lives for `'b`.
    pub(crate) unsafe fn lengthen<'b>(self) -> Local<'b> {
        Local { start: self.start, len: self.len, via: self.via, _memory: std::marker::PhantomData }
    }

    /// `len` bytes of it, from `offset` on.
    ///
    /// # Errors
    /// They are not all inside.
    pub fn part(self, offset: u64, len: u64) -> Result<Local<'a>> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => {
                // Inside the mapping or at its end. `wrapping_add` makes no promise, as the memory
                // may be none of this machine's.
                let start = self.start.wrapping_add(offset as usize);
                Ok(Local { start, len, ..self })
            }
            _ => Err(Error::Usage(format!(
                "bytes {offset} to {offset}+{len} of a memory of {} bytes",
                self.len
            ))),
        }
    }

    /// Number of bytes.
    pub fn len(self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Address of the first byte.
    pub fn as_ptr(self) -> *mut u8 {
        self.start
    }

    /// Writes the pattern's bytes from `position` on.
    ///
    /// # Errors
    /// The device's.
    pub fn fill(self, pattern: Pattern, position: u64) -> Result<()> {
        if let Some(Via { gpu, cut }) = self.via {
            return gpu.write(self.start as usize, self.len as usize, cut, |at, block| {
                pattern.fill(position + at as u64, block);
            });
        }
        self.in_blocks(|at, start, len| {
            let mut block = [0; BLOCK];
            pattern.fill(position + at, &mut block[..len]);
            // SAFETY: `start` is `len` bytes inside the mapping, and the block is elsewhere.
            unsafe { start.copy_from_nonoverlapping(block.as_ptr(), len) };
        });
        Ok(())
    }

    /// Compares with the pattern's bytes from `position` on.
    ///
    /// # Errors
    /// Where the first difference is, and how many there are; or the device's.
    pub fn verify(self, pattern: Pattern, position: u64) -> Result<()> {
        if self.via.is_some() {
            return pattern.verify(position, &self.to_vec()?).map_err(Error::from);
        }
        let mut all: Option<Mismatch> = None;
        self.in_blocks(|at, start, len| {
            let mut block = [0; BLOCK];
            // SAFETY: `start` is `len` bytes inside the mapping, and the block is elsewhere.
            unsafe { start.copy_to_nonoverlapping(block.as_mut_ptr(), len) };
            if let Err(mut mismatch) = pattern.verify(position + at, &block[..len]) {
                mismatch.offset += at;
                match &mut all {
                    Some(all) => all.wrong += mismatch.wrong,
                    None => all = Some(mismatch),
                }
            }
        });
        match all {
            None => Ok(()),
            Some(mismatch) => Err(Mismatch { len: self.len, ..mismatch }.into()),
        }
    }

    /// Sets every byte.
    ///
    /// # Errors
    /// The device's.
    pub fn set(self, byte: u8) -> Result<()> {
        if let Some(Via { gpu, cut }) = self.via {
            let (start, len) = (self.start as usize, self.len as usize);
            return gpu.write(start, len, cut, |_, block| block.fill(byte));
        }
        // SAFETY: the whole of it is inside the mapping.
        unsafe { self.start.write_bytes(byte, self.len as usize) };
        Ok(())
    }

    /// Copies all bytes out.
    ///
    /// # Errors
    /// The device's.
    pub fn to_vec(self) -> Result<Vec<u8>> {
        let mut out = vec![0; self.len as usize];
        match self.via {
            Some(Via { gpu, cut }) => gpu.read(self.start as usize, &mut out, cut)?,
            // SAFETY: the vector is as long, and elsewhere.
            None => unsafe { self.start.copy_to_nonoverlapping(out.as_mut_ptr(), out.len()) },
        }
        Ok(out)
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// There are more than fit, or the device's.
    pub fn write(self, bytes: &[u8]) -> Result<()> {
        let to = self.part(0, bytes.len() as u64)?;
        if let Some(Via { gpu, cut }) = to.via {
            return gpu.write(to.start as usize, bytes.len(), cut, |at, block| {
                block.copy_from_slice(&bytes[at..at + block.len()]);
            });
        }
        // SAFETY: `to` is as long as `bytes`, which are elsewhere: Rust memory is in no mapping.
        unsafe { to.start.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// The first eight bytes, aligned to 8, as a number that another PE may be writing. What was
    /// written before that number is seen after this.
    ///
    /// # Errors
    /// Not eight bytes, not aligned, or the device's.
    #[inline]
    pub fn load_acquire(self) -> Result<u64> {
        self.check_word()?;
        match self.via {
            None => Ok(self.word().load(Ordering::Acquire)),
            Some(Via { gpu, cut }) => {
                let mut word = [0; 8];
                gpu.read(self.start as usize, &mut word, cut)?;
                Ok(u64::from_le_bytes(word))
            }
        }
    }

    /// Writes the first eight bytes, aligned to 8, at once, after everything written before.
    ///
    /// # Errors
    /// Not eight bytes, not aligned, or the device's.
    #[inline]
    pub fn store_release(self, value: u64) -> Result<()> {
        self.check_word()?;
        match self.via {
            None => {
                self.word().store(value, Ordering::Release);
                Ok(())
            }
            Some(_) => self.write(&value.to_le_bytes()),
        }
    }

    fn check_word(&self) -> Result<()> {
        if self.len < 8 || self.start as usize % 8 != 0 {
            return Err(Error::Usage("a word is eight bytes at a multiple of eight".into()));
        }
        Ok(())
    }

    /// The word of memory that the CPU reaches, once it was checked.
    fn word(&self) -> &AtomicU64 {
        // SAFETY: the word is inside the mapping, aligned, and only touched atomically here or by
        // the plugin.
        unsafe { AtomicU64::from_ptr(self.start.cast()) }
    }

    fn in_blocks(self, mut f: impl FnMut(u64, *mut u8, usize)) {
        let mut at = 0;
        while at < self.len {
            let len = (self.len - at).min(BLOCK as u64);
            // SAFETY: `at` is below the length of this part of the mapping.
            f(at, unsafe { self.start.add(at as usize) }, len as usize);
            at += len;
        }
    }
}

/// Bytes at a time in [`Local::fill`] and [`Local::verify`]: fits the first cache, so the copy
/// that keeps references away from shared memory costs little. A multiple of 8.
const BLOCK: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_is_aligned_and_zero() {
        for align in [4096, 1 << 16, 1 << 21] {
            let mapping = Mapping::new(10_000, align).unwrap();
            assert_eq!(mapping.start() as u64 % align, 0);
            assert_eq!(mapping.len(), 12288);
            let all = Local::of(&mapping, 0, 12288).unwrap().to_vec().unwrap();
            assert!(all.iter().all(|b| *b == 0));
        }
    }

    #[test]
    fn parts_stay_inside() {
        let mapping = Mapping::new(4096, 4096).unwrap();
        let all = Local::of(&mapping, 0, 4096).unwrap();
        assert!(all.part(4096, 0).is_ok());
        assert!(all.part(4096, 1).is_err() && all.part(1, 4096).is_err());
        assert!(all.part(u64::MAX, 2).is_err());
        assert!(all.part(8, 8).unwrap().part(0, 9).is_err());
    }

    #[test]
    fn a_pattern_is_verified_across_blocks() {
        let mapping = Mapping::new(3 * BLOCK as u64, 4096).unwrap();
        let part = Local::of(&mapping, 5, 2 * BLOCK as u64 + 11).unwrap();
        let pattern = Pattern::new(3);
        part.fill(pattern, 77).unwrap();
        part.verify(pattern, 77).unwrap();
        let at = BLOCK as u64 + 3;
        part.part(at, 1).unwrap().set(!pattern.byte(77 + at)).unwrap();
        let Err(Error::Mismatch(found)) = part.verify(pattern, 77) else { panic!("not found") };
        assert_eq!((found.offset, found.wrong, found.len), (at, 1, part.len()));
    }
}
