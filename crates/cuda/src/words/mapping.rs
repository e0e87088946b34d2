//! Device memory that the CPU reads and writes directly, through a mapping of PCIe's window on it.
//!
//! Such a mapping is good for words. Stores are combined in the CPU until a fence, which follows
//! each here. Loads go all the way to the device.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use crate::memory::range::DeviceRange;
use crate::words::gdrcopy::{Gdrcopy, GdrcopyMapping};
use engine::atomic::Width;

/// A whole range, mapped allocation by allocation.
#[derive(Debug)]
pub(crate) struct Mapped {
    pieces: Box<[Piece]>,
    /// What is mapped. It keeps the memory's context as long as the mappings.
    range: Arc<DeviceRange>,
}

#[derive(Debug)]
struct Piece {
    addr: usize,
    cpu: usize,
    _mapping: GdrcopyMapping,
}

impl Mapped {
    pub(crate) fn by_gdrcopy(
        range: &Arc<DeviceRange>,
        gdrcopy: &'static Gdrcopy,
    ) -> Result<Self, String> {
        let _bound = range.context().bind().map_err(|error| error.to_string())?;
        let piece = |(addr, len)| {
            let mapping = gdrcopy.map(addr, len).map_err(|error| error.to_string())?;
            let cpu = mapping.cpu_addr(addr);
            Ok(Piece { addr, cpu, _mapping: mapping })
        };
        let pieces = range.allocations().map(piece).collect::<Result<_, String>>()?;
        Ok(Self { pieces, range: Arc::clone(range) })
    }

    pub(crate) fn cpu_addr(&self, addr: usize) -> usize {
        let behind = self.pieces.partition_point(|piece| piece.addr <= addr);
        let piece = &self.pieces[behind - 1];
        piece.cpu + (addr - piece.addr)
    }

    /// Loads a word.
    ///
    /// # Safety
    /// The word is in the range, and aligned to its width.
    #[inline]
    pub(crate) unsafe fn load(&self, addr: usize, width: Width) -> u64 {
        let cpu = self.cpu_addr(addr);
        // SAFETY: in the range by the caller's promise, so in a mapping that this value owns; it
        // keeps the alignment. The device and others change the word at any time, so it is atomic.
        unsafe {
            match width {
                Width::Two => AtomicU16::from_ptr(cpu as *mut u16).load(Ordering::Acquire).into(),
                Width::Four => AtomicU32::from_ptr(cpu as *mut u32).load(Ordering::Acquire).into(),
                Width::Eight => AtomicU64::from_ptr(cpu as *mut u64).load(Ordering::Acquire),
            }
        }
    }

    /// Stores a word, and sees to it that it leaves the CPU.
    ///
    /// # Safety
    /// As [`Self::load`].
    #[inline]
    pub(crate) unsafe fn store(&self, addr: usize, width: Width, value: u64) {
        let cpu = self.cpu_addr(addr);
        flush();
        // SAFETY: as in `load`.
        unsafe {
            match width {
                Width::Two => {
                    AtomicU16::from_ptr(cpu as *mut u16).store(value as u16, Ordering::Release)
                }
                Width::Four => {
                    AtomicU32::from_ptr(cpu as *mut u32).store(value as u32, Ordering::Release)
                }
                Width::Eight => {
                    AtomicU64::from_ptr(cpu as *mut u64).store(value, Ordering::Release)
                }
            }
        }
        flush();
    }

    /// Loads bytes, by words where they are aligned: each load is a trip to the device.
    ///
    /// # Safety
    /// The bytes are in the range.
    pub(crate) unsafe fn load_bytes(&self, addr: usize, into: &mut [u8]) {
        let mut rest = into;
        for (at, len) in self.range.pieces(addr, rest.len()) {
            let (piece, behind) = rest.split_at_mut(len);
            rest = behind;
            let mut cpu = self.cpu_addr(at);
            let (head, body) = piece.split_at_mut(to_word(cpu, len));
            let mut words = body.chunks_exact_mut(size_of::<u64>());
            // SAFETY: in one allocation of the range, so in one mapping, by the caller's promise.
            // Words are aligned, since the head ends where one begins. Others change the bytes at
            // any time, so every access is atomic.
            unsafe {
                for byte in head {
                    *byte = AtomicU8::from_ptr(cpu as *mut u8).load(Ordering::Relaxed);
                    cpu += 1;
                }
                for word in words.by_ref() {
                    let value = AtomicU64::from_ptr(cpu as *mut u64).load(Ordering::Relaxed);
                    word.copy_from_slice(&value.to_ne_bytes());
                    cpu += size_of::<u64>();
                }
                for byte in words.into_remainder() {
                    *byte = AtomicU8::from_ptr(cpu as *mut u8).load(Ordering::Relaxed);
                    cpu += 1;
                }
            }
        }
        std::sync::atomic::fence(Ordering::Acquire);
    }

    /// Stores bytes, by words where they are aligned, and sees to it that they leave the CPU:
    /// before anything that is stored later, in this mapping or another.
    ///
    /// # Safety
    /// As [`Self::load_bytes`].
    pub(crate) unsafe fn store_bytes(&self, addr: usize, bytes: &[u8]) {
        flush();
        let mut rest = bytes;
        for (at, len) in self.range.pieces(addr, bytes.len()) {
            let (piece, behind) = rest.split_at(len);
            rest = behind;
            let mut cpu = self.cpu_addr(at);
            let (head, body) = piece.split_at(to_word(cpu, len));
            let words = body.chunks_exact(size_of::<u64>());
            let tail = words.remainder();
            // SAFETY: as in `load_bytes`.
            unsafe {
                for byte in head {
                    AtomicU8::from_ptr(cpu as *mut u8).store(*byte, Ordering::Relaxed);
                    cpu += 1;
                }
                for word in words {
                    let mut value = [0; size_of::<u64>()];
                    value.copy_from_slice(word);
                    let value = u64::from_ne_bytes(value);
                    AtomicU64::from_ptr(cpu as *mut u64).store(value, Ordering::Relaxed);
                    cpu += size_of::<u64>();
                }
                for byte in tail {
                    AtomicU8::from_ptr(cpu as *mut u8).store(*byte, Ordering::Relaxed);
                    cpu += 1;
                }
            }
        }
        flush();
    }
}

/// How many of `len` bytes from an address come before the first whole word.
fn to_word(cpu: usize, len: usize) -> usize {
    (cpu.next_multiple_of(size_of::<u64>()) - cpu).min(len)
}

#[inline]
fn flush() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: part of every x86-64 processor.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier; it touches neither registers nor memory.
    unsafe {
        std::arch::asm!("dsb st", options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    std::sync::atomic::fence(Ordering::SeqCst);
}
