use std::sync::Arc;

use crate::driver::context::{Context, Ordinal};
use crate::driver::error::CudaError;
use crate::driver::library::Driver;
use crate::memory::pointer::Kind;
use crate::memory::range::{Memory, RangeError};
use crate::words::word_range::WordRange;

const RANGES: usize = 64;

/// Ranges of device memory that were examined. An address may be reused for another allocation at
/// any time, so each use of an entry compares the driver's numbers of its allocations.
#[derive(Debug)]
pub(crate) struct RangeCache {
    driver: &'static Driver,
    /// The last used first. A look-up that misses allocates in any case.
    entries: Vec<Arc<WordRange>>,
}

impl RangeCache {
    pub(crate) fn new(driver: &'static Driver) -> Self {
        Self { driver, entries: Vec::new() }
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
        if let Some(range) = self.cached(addr, len)? {
            return Ok(Some(range));
        }
        let range = match Memory::examine_around(self.driver, addr, len, context_of)? {
            Memory::Host(Kind::Host) if !is_readable(addr) || !is_readable(addr + (len - 1)) => {
                return Err(RangeError::Nowhere { addr, len });
            }
            Memory::Host(_) => return Ok(None),
            Memory::Device(range) | Memory::Managed(range) => {
                Arc::new(WordRange::unmapped(Arc::new(range)))
            }
        };
        self.entries.insert(0, Arc::clone(&range));
        self.entries.truncate(RANGES);
        Ok(Some(range))
    }

    fn cached(&mut self, addr: usize, len: usize) -> Result<Option<Arc<WordRange>>, CudaError> {
        let has = |entry: &Arc<WordRange>| entry.range().contains(addr, len);
        while let Some(at) = self.entries.iter().position(has) {
            if self.entries[at].range().is_current(addr, len)? {
                self.entries[..=at].rotate_right(1);
                return Ok(self.entries.first().map(Arc::clone));
            }
            // Of freed memory.
            self.entries.remove(at);
        }
        Ok(None)
    }
}

/// Returns true if this process may read the byte at an address. The address of a variable on a
/// kernel's stack, for example, means nothing to the CPU.
fn is_readable(addr: usize) -> bool {
    const NO_WAY: libc::c_int = -1;
    const MASK: usize = 8;
    let mask = addr & !7;
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

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;

    #[test]
    fn readable_bytes_are_mapped() {
        const PAGE: usize = 64 << 10; // as large as those of some kernels for Arm
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: two pages of this test's, of which the second is closed.
        let page = unsafe {
            let pages = libc::mmap(ptr::null_mut(), 2 * PAGE, libc::PROT_READ, flags, -1, 0);
            assert_eq!(libc::mprotect(pages.add(PAGE), PAGE, libc::PROT_NONE), 0);
            pages as usize
        };
        let last = [PAGE - 8, PAGE - 1, PAGE, PAGE + 7, 2 * PAGE - 1];
        let last = last.map(|at| is_readable(page + at));
        assert_eq!(last, [true, true, false, false, false]);
        assert!(is_readable(page) && ![0, 7, 8].iter().any(|addr| is_readable(*addr)));
        // SAFETY: mapped above.
        unsafe { libc::munmap(page as *mut _, 2 * PAGE) };
    }
}
