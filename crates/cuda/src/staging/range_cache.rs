//! Ranges that nobody has registered: looked at when they are used, and kept for the next time.

use std::sync::Arc;

use crate::driver::context::{Context, Ordinal};
use crate::driver::error::CudaError;
use crate::driver::library::Driver;
use crate::memory::pointer::Kind;
use crate::memory::range::{DeviceRange, Memory, RangeError};
use crate::words::word_range::WordRange;

const RANGES: usize = 64;

/// Ranges of device memory that were looked at. Addresses may be used again for other allocations
/// at any time, so what was kept is checked at each use, by the driver's numbers of allocations.
#[derive(Debug)]
pub(crate) struct RangeCache {
    driver: &'static Driver,
    kept: Vec<Kept>,
    clock: u64,
}

#[derive(Debug)]
struct Kept {
    range: Arc<WordRange>,
    used: u64,
}

impl RangeCache {
    pub(crate) fn new(driver: &'static Driver) -> Self {
        Self { driver, kept: Vec::with_capacity(RANGES), clock: 0 }
    }

    /// The range that `len` bytes from `addr` are in; none if the CPU reaches them. One call of the
    /// driver for each allocation where they were met before, else a few, and an allocation.
    /// `within`: the context that memory of a device is staged in.
    pub(crate) fn look(
        &mut self,
        addr: usize,
        len: usize,
        within: &dyn Fn(Ordinal) -> Option<Arc<Context>>,
    ) -> Result<Option<Arc<WordRange>>, RangeError> {
        self.clock += 1;
        if let Some(range) = self.kept(addr, len)? {
            return Ok(Some(range));
        }
        // What is in the way was freed: the same memory would have been found.
        self.kept.retain(|kept| !overlaps(kept.range.range(), addr, len));
        let range = match Memory::examine_around(self.driver, addr, len, within)? {
            Memory::Host(Kind::Host) if !is_readable(addr) || !is_readable(addr + (len - 1)) => {
                return Err(RangeError::Nowhere { addr, len });
            }
            Memory::Host(_) => return Ok(None),
            Memory::Device(range) | Memory::Managed(range) => {
                Arc::new(WordRange::unmapped(Arc::new(range)))
            }
        };
        let (start, len) = (range.range().addr(), range.range().len());
        self.kept.retain(|kept| !overlaps(kept.range.range(), start, len));
        if self.kept.len() == RANGES {
            let oldest = self.kept.iter().enumerate().min_by_key(|(_, kept)| kept.used);
            if let Some((at, _)) = oldest {
                self.kept.swap_remove(at);
            }
        }
        self.kept.push(Kept { range: Arc::clone(&range), used: self.clock });
        Ok(Some(range))
    }

    fn kept(&mut self, addr: usize, len: usize) -> Result<Option<Arc<WordRange>>, CudaError> {
        let has = |kept: &&mut Kept| kept.range.range().contains(addr, len);
        let Some(kept) = self.kept.iter_mut().find(has) else { return Ok(None) };
        if !kept.range.range().is_current(addr, len)? {
            return Ok(None);
        }
        kept.used = self.clock;
        Ok(Some(Arc::clone(&kept.range)))
    }
}

/// Whether this process may read the byte at an address. A variable on a kernel's stack has an
/// address that means nothing to the processor.
fn is_readable(addr: usize) -> bool {
    const NO_WAY: libc::c_int = -1;
    const MASK: usize = 8;
    let mask = addr & !(MASK - 1);
    if mask == 0 {
        // Here the kernel would take it for no mask, and read nothing.
        return false;
    }
    // SAFETY: the kernel reads eight aligned bytes of this page, if there, and changes nothing.
    let code = unsafe {
        let none = std::ptr::null_mut::<u8>();
        libc::syscall(libc::SYS_rt_sigprocmask, NO_WAY, mask as *const u8, none, MASK)
    };
    code == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT)
}

fn overlaps(range: &DeviceRange, addr: usize, len: usize) -> bool {
    range.addr() < addr + len && addr < range.addr() + range.len()
}
