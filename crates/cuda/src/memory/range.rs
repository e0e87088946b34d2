//! Ranges of memory: their kind, and the allocations of those that only devices reach.

use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;

use thiserror::Error;

use crate::driver::context::{Context, Ordinal};
use crate::driver::error::{CudaError, code, refused};
use crate::driver::library::Driver;
use crate::memory::pointer::{Kind, Pointer};
use engine::port::PortError;

/// A range of memory, by kind.
#[derive(Debug)]
pub enum Memory {
    /// The CPU and the network reach it by its address. [`Kind::Host`], [`Kind::RegisteredHost`] or
    /// [`Kind::HostNuma`]; `Host` if only a part is page-locked.
    Host(Kind),
    /// Managed memory: the CPU reaches it, and so do copies.
    Managed(DeviceRange),
    /// Only devices reach it.
    Device(DeviceRange),
}

/// A range that the driver's copies reach, and the context to copy it in.
///
/// It does not own the memory: if that is freed while in use, copies fail.
#[derive(Debug)]
pub struct DeviceRange {
    context: Arc<Context>,
    kind: Kind,
    owned: bool,
    addr: usize,
    len: usize,
    /// Addresses inside where allocations meet, ascending. A copy must not cross one.
    borders: Box<[usize]>,
    buffers: Box<[u64]>,
}

impl Memory {
    /// Examines `len` bytes at `addr`: kind, device, context, and every allocation.
    ///
    /// Takes some driver calls for each allocation: for registrations, not for each operation.
    /// Retains the primary context of a device only if its memory is found.
    ///
    /// # Errors
    /// The driver's, and ranges of more than one kind or device.
    pub fn examine(driver: &'static Driver, addr: usize, len: usize) -> Result<Self, RangeError> {
        Self::examine_within(driver, addr, len, &|_| None)
    }

    fn examine_within(
        driver: &'static Driver,
        addr: usize,
        len: usize,
        within: &dyn Fn(Ordinal) -> Option<Arc<Context>>,
    ) -> Result<Self, RangeError> {
        let last = match addr.checked_add(len) {
            Some(end) if len > 0 && addr > 0 => end - 1,
            _ => return Err(RangeError::Bounds { addr, len }),
        };
        let first = Pointer::of(driver, addr)?;
        if first.kind.cpu_accessible() && first.kind != Kind::Managed {
            return host(driver, addr, last, first.kind);
        }
        let range = DeviceRange::examine(driver, addr, last, first, within)?;
        let is_managed = range.kind == Kind::Managed;
        Ok(if is_managed { Memory::Managed(range) } else { Memory::Device(range) })
    }

    /// Examines memory as [`Memory::examine`] does, but returns the whole allocation if the bytes
    /// are in one, so that its other bytes need no second call. `within` returns the context of a
    /// device to use for memory that no context owns, so that none is created.
    pub fn examine_around(
        driver: &'static Driver,
        addr: usize,
        len: usize,
        within: &dyn Fn(Ordinal) -> Option<Arc<Context>>,
    ) -> Result<Self, RangeError> {
        let (addr, len) = match Self::examine_within(driver, addr, len, within)? {
            Memory::Device(range) | Memory::Managed(range) if range.borders.is_empty() => {
                let _bound = range.context.bind()?;
                allocation(driver, addr)?
            }
            other => return Ok(other),
        };
        Self::examine_within(driver, addr, len, within)
    }
}

/// Examines a range that starts in host memory, by its two ends. If device memory is in between,
/// the length is wrong, and registering the range fails.
fn host(driver: &Driver, addr: usize, last: usize, first: Kind) -> Result<Memory, RangeError> {
    let then = Pointer::of(driver, last)?.kind;
    if !then.cpu_accessible() || then == Kind::Managed {
        return Err(RangeError::Mixed { addr, first, at: last, then });
    }
    Ok(Memory::Host(if then == first { first } else { Kind::Host }))
}

impl DeviceRange {
    fn examine(
        driver: &'static Driver,
        addr: usize,
        last: usize,
        first: Pointer,
        within: &dyn Fn(Ordinal) -> Option<Arc<Context>>,
    ) -> Result<Self, RangeError> {
        // If the driver names no device (memory of a NUMA node), any serves.
        let device = first.device.unwrap_or(Ordinal(0));
        let owned = !first.context.is_null();
        let context = match within(device).filter(|_| !owned) {
            Some(context) => context,
            None => Context::owner(driver, first.context, device)?,
        };
        let bound = context.bind()?;
        let (mut borders, mut buffers) = (Vec::new(), vec![first.buffer]);
        let mut end = allocation_end(driver, addr)?;
        while end <= last {
            let next = Pointer::of(driver, end)?;
            if next.kind != first.kind {
                let (first, then) = (first.kind, next.kind);
                return Err(RangeError::Mixed { addr, first, at: end, then });
            }
            let then = next.device.unwrap_or(device);
            if then != device {
                return Err(RangeError::Devices { addr, first: device, at: end, then });
            }
            borders.push(end);
            buffers.push(next.buffer);
            end = allocation_end(driver, end)?;
        }
        drop(bound);
        let len = last - addr + 1;
        let (borders, buffers) = (borders.into_boxed_slice(), buffers.into_boxed_slice());
        Ok(Self { context, kind: first.kind, owned, addr, len, borders, buffers })
    }

    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Returns [`Kind::Device`], [`Kind::DevicePool`], [`Kind::Managed`] or
    /// [`Kind::HostNumaDeviceOnly`].
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns true if its context owns it (`cuMemAlloc`, managed memory), not the device (VMM
    /// mappings, pools). Calls of the program that block the context then block its copies.
    pub fn is_owned(&self) -> bool {
        self.owned
    }

    pub fn addr(&self) -> usize {
        self.addr
    }

    /// Returns its length in bytes, at least 1.
    #[allow(clippy::len_without_is_empty, reason = "none is empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if `len` bytes at `addr` are inside, and still of the allocations that were
    /// examined. Takes a driver call for each allocation.
    pub fn is_current(&self, addr: usize, len: usize) -> Result<bool, CudaError> {
        if !self.contains(addr, len) {
            return Ok(false);
        }
        for ((at, _), buffer) in self.pieces(addr, len).zip(&self.buffers[self.border(addr)..]) {
            let pointer = Pointer::of(self.context.driver(), at)?;
            if (pointer.buffer, pointer.kind) != (*buffer, self.kind) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    #[inline]
    pub fn contains(&self, addr: usize, len: usize) -> bool {
        addr.checked_sub(self.addr).is_some_and(|at| fits(at, len, self.len))
    }

    /// Splits `len` bytes at `addr` into pieces of one allocation each, in order.
    #[inline]
    pub fn pieces(&self, addr: usize, len: usize) -> Pieces<'_> {
        Pieces { at: addr, end: addr + len, borders: &self.borders[self.border(addr)..] }
    }

    #[inline]
    pub(crate) fn border(&self, addr: usize) -> usize {
        self.borders.partition_point(|border| *border <= addr)
    }

    /// Returns the allocations of the range, cut to it.
    pub fn allocations(&self) -> Pieces<'_> {
        self.pieces(self.addr, self.len)
    }

    /// Makes CUDA's own copies to this memory synchronous (`CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`), as
    /// required if a NIC writes to it directly. Staged memory does not need it.
    ///
    /// # Errors
    /// As the driver answers. It refuses memory of the VMM interface, which does not need it.
    pub fn set_sync_memops(&self) -> Result<(), CudaError> {
        use cudarc::driver::sys::CUpointer_attribute_enum::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS;
        const CALL: &str = "cuPointerSetAttribute(SYNC_MEMOPS)";
        let driver = self.context.driver();
        let set = driver.api.cuPointerSetAttribute;
        let set = set.ok_or_else(|| driver.lacks(CALL, format!("address {:#x}", self.addr)))?;
        let _bound = self.context.bind()?;
        for (addr, _) in self.allocations() {
            let yes: u32 = 1;
            let attribute = CU_POINTER_ATTRIBUTE_SYNC_MEMOPS;
            // SAFETY: the attribute is an `unsigned`, read during the call.
            let status = unsafe { set((&raw const yes).cast(), attribute, addr as CUdeviceptr) };
            driver.check(CALL, status, || format!("address {addr:#x}"))?;
        }
        Ok(())
    }
}

/// Returns true if `len` bytes at an offset are inside memory of `whole` bytes.
#[inline]
pub(crate) fn fits(offset: usize, len: usize, whole: usize) -> bool {
    whole.checked_sub(offset).is_some_and(|rest| len <= rest)
}

fn allocation_end(driver: &Driver, addr: usize) -> Result<usize, CudaError> {
    allocation(driver, addr).map(|(base, len)| base + len)
}

fn allocation(driver: &Driver, addr: usize) -> Result<(usize, usize), CudaError> {
    const CALL: &str = "cuMemGetAddressRange_v2";
    let (mut base, mut len) = (0, 0);
    // SAFETY: pointers to two numbers; any address is answered.
    let status = unsafe {
        (driver.api.cuMemGetAddressRange_v2)(&raw mut base, &raw mut len, addr as CUdeviceptr)
    };
    let subject = || format!("address {addr:#x}");
    driver.check(CALL, status, subject)?;
    let base = base as usize;
    // The loop over a range relies on progress.
    match base.checked_add(len) {
        Some(end) if (base..end).contains(&addr) => Ok((base, len)),
        _ => Err(driver.error(CALL, code::INVALID_VALUE, subject())),
    }
}

/// Iterator of [`DeviceRange::pieces`]: address and length of each.
#[derive(Clone, Debug)]
pub struct Pieces<'a> {
    at: usize,
    end: usize,
    /// Borders after `at`.
    borders: &'a [usize],
}

impl Iterator for Pieces<'_> {
    type Item = (usize, usize);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.end {
            return None;
        }
        let start = self.at;
        self.at = self.end;
        if let Some((border, behind)) = self.borders.split_first() {
            self.at = self.end.min(*border);
            self.borders = behind;
        }
        Some((start, self.at - start))
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum RangeError {
    #[error(transparent)]
    Cuda(#[from] CudaError),
    #[error(
        "{len} bytes at {addr:#x} are no memory that this process or a copy can reach: freed, or a variable on a \
         kernel's stack, which no other PE can put to or get from"
    )]
    Nowhere { addr: usize, len: usize },
    #[error("the range of {len} bytes at {addr:#x} is empty or leaves the address space")]
    Bounds { addr: usize, len: usize },
    #[error("the range at {addr:#x} is {first} up to {at:#x} and {then} from there")]
    Mixed { addr: usize, first: Kind, at: usize, then: Kind },
    #[error("the range at {addr:#x} is on device {first} up to {at:#x} and on {then} from there")]
    Devices { addr: usize, first: Ordinal, at: usize, then: Ordinal },
}

impl From<RangeError> for PortError {
    fn from(error: RangeError) -> Self {
        match error {
            RangeError::Cuda(error) => error.into(),
            other => refused("examining memory", other.to_string()),
        }
    }
}
