use std::sync::Arc;

use crate::driver::context::{Context, Ordinal};
use crate::driver::error::CudaError;
use crate::driver::library::Driver;
use crate::memory::pointer::Kind;
use crate::memory::range::{DeviceRange, Memory, RangeError};
use crate::words::word_range::WordRange;

const RANGES: usize = 64;

/// Ranges of device memory that were examined. An address may be reused for another allocation at
/// any time, so each use of an entry compares the driver's numbers of its allocations.
#[derive(Debug)]
pub(crate) struct RangeCache {
    driver: &'static Driver,
    entries: Vec<CacheEntry>,
    clock: u64,
}

#[derive(Debug)]
struct CacheEntry {
    range: Arc<WordRange>,
    used: u64,
}

impl RangeCache {
    pub(crate) fn new(driver: &'static Driver) -> Self {
        Self { driver, entries: Vec::with_capacity(RANGES), clock: 0 }
    }

    /// Returns the range that has `len` bytes at `addr`; None if the CPU reaches them. Makes one
    /// driver call for each allocation of a cached range, else a few, and allocates. `context_of`
    /// returns the context in which memory of a device is staged.
    pub(crate) fn lookup(
        &mut self,
        addr: usize,
        len: usize,
        context_of: &dyn Fn(Ordinal) -> Option<Arc<Context>>,
    ) -> Result<Option<Arc<WordRange>>, RangeError> {
        self.clock += 1;
        if let Some(range) = self.cached(addr, len)? {
            return Ok(Some(range));
        }
        // Overlapping entries are of freed memory: a current one would have been found.
        self.evict_overlapping(addr, len);
        let range = match Memory::examine_around(self.driver, addr, len, context_of)? {
            Memory::Host(Kind::Host) if !is_readable(addr) || !is_readable(addr + (len - 1)) => {
                return Err(RangeError::Nowhere { addr, len });
            }
            Memory::Host(_) => return Ok(None),
            Memory::Device(range) | Memory::Managed(range) => {
                Arc::new(WordRange::unmapped(Arc::new(range)))
            }
        };
        let (start, len) = (range.range().addr(), range.range().len());
        self.evict_overlapping(start, len);
        if self.entries.len() == RANGES {
            let oldest = self.entries.iter().enumerate().min_by_key(|(_, entry)| entry.used);
            if let Some((at, _)) = oldest {
                self.entries.swap_remove(at);
            }
        }
        self.entries.push(CacheEntry { range: Arc::clone(&range), used: self.clock });
        Ok(Some(range))
    }

    fn evict_overlapping(&mut self, addr: usize, len: usize) {
        let of = |range: &DeviceRange| (range.addr(), range.len());
        self.entries.retain(|entry| !overlap(of(entry.range.range()), (addr, len)));
    }

    fn cached(&mut self, addr: usize, len: usize) -> Result<Option<Arc<WordRange>>, CudaError> {
        let has = |entry: &&mut CacheEntry| entry.range.range().contains(addr, len);
        let Some(entry) = self.entries.iter_mut().find(has) else { return Ok(None) };
        if !entry.range.range().is_current(addr, len)? {
            return Ok(None);
        }
        entry.used = self.clock;
        Ok(Some(Arc::clone(&entry.range)))
    }
}

/// Returns true if this process may read the byte at an address. The address of a variable on a
/// kernel's stack, for example, means nothing to the CPU.
fn is_readable(addr: usize) -> bool {
    const NO_WAY: libc::c_int = -1;
    const MASK: usize = 8;
    let mask = addr & !(MASK - 1);
    if mask == 0 {
        // The kernel would take it for no mask, and read nothing.
        return false;
    }
    // SAFETY: the kernel reads eight aligned bytes of the page, if mapped, and changes nothing.
    let code = unsafe {
        let none = std::ptr::null_mut::<u8>();
        libc::syscall(libc::SYS_rt_sigprocmask, NO_WAY, mask as *const u8, none, MASK)
    };
    code == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT)
}

fn overlap(one: (usize, usize), other: (usize, usize)) -> bool {
    one.0 < other.0 + other.1 && other.0 < one.0 + one.1
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;

    #[test]
    fn neighbours_have_no_byte_in_common() {
        for (start, len, is_common) in
            [(50, 50, false), (50, 51, true), (90, 40, true), (107, 9, true), (108, 9, false)]
        {
            assert_eq!(overlap((100, 8), (start, len)), is_common, "{len} from {start}");
            assert_eq!(overlap((start, len), (100, 8)), is_common, "{len} from {start}");
        }
    }

    #[test]
    fn readable_bytes_are_mapped() {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: two pages of this test's, of which the second is closed.
        let page = unsafe {
            let pages = libc::mmap(ptr::null_mut(), 8192, libc::PROT_READ, flags, -1, 0);
            assert_eq!(libc::mprotect(pages.add(4096), 4096, libc::PROT_NONE), 0);
            pages as usize
        };
        let last = [4088, 4095, 4096, 4103, 8191].map(|at| is_readable(page + at));
        assert_eq!(last, [true, true, false, false, false]);
        assert!(is_readable(page) && ![0, 7, 8].iter().any(|addr| is_readable(*addr)));
        // SAFETY: mapped above.
        unsafe { libc::munmap(page as *mut _, 8192) };
    }
}
