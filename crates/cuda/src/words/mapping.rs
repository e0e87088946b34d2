//! CPU mappings of device memory, through the GPU's PCIe BAR.
//!
//! Such a mapping is good for words. The CPU combines stores until a fence, which follows each one
//! here. Loads go to the device.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use crate::memory::dma_buf::DmaBuf;
use crate::memory::range::DeviceRange;
use crate::words::deferred::aligned_parts;
use crate::words::gdrcopy::Gdrcopy;

/// Means of mapping device memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Window {
    Gdrcopy(&'static Gdrcopy),
    /// The driver's own: it maps its dma-bufs.
    DmaBuf,
}

/// CPU mapping of a whole range, by allocation.
#[derive(Debug)]
pub(crate) struct RangeMapping {
    pieces: Box<[AllocationMapping]>,
    /// The mapped memory, which keeps its context alive as long as the mappings.
    _range: Arc<DeviceRange>,
}

#[derive(Debug)]
struct AllocationMapping {
    addr: usize,
    cpu: usize,
    /// Unmaps when dropped.
    _mapping: Box<dyn fmt::Debug + Send + Sync>,
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gdrcopy(gdrcopy) => gdrcopy.fmt(f),
            Self::DmaBuf => f.write_str("dma-bufs"),
        }
    }
}

impl RangeMapping {
    pub(crate) fn new(range: &Arc<DeviceRange>, window: Window) -> Result<Self, String> {
        let _bound = range.context().bind().map_err(|error| error.to_string())?;
        let piece = |(addr, len)| {
            let (cpu, mapping): (_, Box<dyn fmt::Debug + Send + Sync>) = match window {
                Window::Gdrcopy(gdrcopy) => {
                    let mapping = gdrcopy.map(addr, len).map_err(|error| error.to_string())?;
                    (mapping.cpu_addr(addr), Box::new(mapping))
                }
                Window::DmaBuf => {
                    let (cpu, mapping) = DmaBuf::map(range, addr, len)?;
                    (cpu, Box::new(mapping))
                }
            };
            Ok(AllocationMapping { addr, cpu, _mapping: mapping })
        };
        let pieces = range.allocations().map(piece).collect::<Result<_, String>>()?;
        Ok(Self { pieces, _range: Arc::clone(range) })
    }

    pub(crate) fn cpu_addr(&self, addr: usize) -> usize {
        let behind = self.pieces.partition_point(|piece| piece.addr <= addr);
        let piece = &self.pieces[behind - 1];
        piece.cpu + (addr - piece.addr)
    }

    /// Loads bytes: aligned words whole, each by a round trip to the device.
    ///
    /// # Safety
    /// The bytes are in the range.
    pub(crate) unsafe fn load(&self, addr: usize, into: &mut [u8]) {
        for (at, len) in aligned_parts(addr, into.len()) {
            let cpu = self.cpu_addr(addr + at);
            // SAFETY: the part is in one allocation of the range, and so in a mapping of `self`,
            // which preserves alignment. The device and others change the bytes at any time, so
            // accesses are atomic.
            let value = unsafe {
                match len {
                    2 => AtomicU16::from_ptr(cpu as *mut u16).load(Ordering::Acquire).into(),
                    4 => AtomicU32::from_ptr(cpu as *mut u32).load(Ordering::Acquire).into(),
                    8 => AtomicU64::from_ptr(cpu as *mut u64).load(Ordering::Acquire),
                    _ => AtomicU8::from_ptr(cpu as *mut u8).load(Ordering::Acquire).into(),
                }
            };
            let len = usize::from(len);
            into[at..at + len].copy_from_slice(&value.to_le_bytes()[..len]);
        }
    }

    /// Stores bytes, aligned words whole, and drains them from the CPU before any later store, to
    /// this mapping or another.
    ///
    /// # Safety
    /// As [`Self::load`].
    pub(crate) unsafe fn store(&self, addr: usize, bytes: &[u8]) {
        drain_writes();
        for (at, len) in aligned_parts(addr, bytes.len()) {
            let cpu = self.cpu_addr(addr + at);
            let mut value = [0; 8];
            value[..len.into()].copy_from_slice(&bytes[at..at + usize::from(len)]);
            let value = u64::from_le_bytes(value);
            // SAFETY: as in `load`.
            unsafe {
                match len {
                    2 => {
                        AtomicU16::from_ptr(cpu as *mut u16).store(value as u16, Ordering::Release);
                    }
                    4 => {
                        AtomicU32::from_ptr(cpu as *mut u32).store(value as u32, Ordering::Release);
                    }
                    8 => AtomicU64::from_ptr(cpu as *mut u64).store(value, Ordering::Release),
                    _ => AtomicU8::from_ptr(cpu as *mut u8).store(value as u8, Ordering::Release),
                }
            }
        }
        drain_writes();
    }
}

/// Orders earlier stores before later ones, also to write-combining memory, which a release does
/// not order, and drains combined stores.
#[inline(always)]
pub fn drain_writes() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has the instruction, which touches no memory of its own.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier, for all domains, as the device is not in the inner one.
    unsafe {
        std::arch::asm!("dsb st", options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    std::sync::atomic::fence(Ordering::SeqCst);
}
