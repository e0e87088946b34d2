//! Memory of kernels as the CPU reads and writes it while they run: by its address, or through the
//! machine.

use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use engine::atomic::Width;

use crate::machines::machine::{Machine, MachineError};

/// See the module. Addresses and lengths are checked by who asks.
#[derive(Debug)]
pub(crate) struct Reach<'m> {
    machine: &'m dyn Machine,
    /// What only the machine reaches.
    far: Range<usize>,
}

impl<'m> Reach<'m> {
    pub(crate) fn new(machine: &'m dyn Machine, far: Range<usize>) -> Self {
        Self { machine, far }
    }

    fn is_far(&self, addr: usize) -> bool {
        self.far.contains(&addr)
    }

    /// Copies as a NIC would: words where both are aligned, while kernels may look.
    ///
    /// # Safety
    /// Both ranges are memory of the bed, used atomically while kernels run.
    pub(crate) unsafe fn copy(
        &self,
        from: usize,
        to: usize,
        bytes: u32,
    ) -> Result<(), MachineError> {
        let bytes = bytes as usize;
        // SAFETY: the caller's promise.
        unsafe {
            match (self.is_far(from), self.is_far(to)) {
                (false, false) => copy_near(from, to, bytes),
                (true, false) => {
                    let mut between = vec![0; bytes];
                    self.machine.read(from, &mut between)?;
                    copy_near(between.as_ptr() as usize, to, bytes);
                }
                (false, true) => {
                    let between = vec![0; bytes];
                    copy_near(from, between.as_ptr() as usize, bytes);
                    self.machine.write(to, &between)?;
                }
                (true, true) => {
                    let mut between = vec![0; bytes];
                    self.machine.read(from, &mut between)?;
                    self.machine.write(to, &between)?;
                }
            }
        }
        Ok(())
    }

    /// A word of 4 or 8 bytes.
    ///
    /// # Safety
    /// As for [`Reach::copy`], and it is aligned.
    pub(crate) unsafe fn load(&self, addr: usize, width: Width) -> Result<u64, MachineError> {
        if self.is_far(addr) {
            let mut word = [0; 8];
            self.machine.read(addr, &mut word[..width.bytes()])?;
            return Ok(u64::from_le_bytes(word));
        }
        // SAFETY: the caller's promise.
        Ok(unsafe {
            match width {
                Width::Eight => AtomicU64::from_ptr(addr as *mut u64).load(Ordering::Acquire),
                _ => u64::from(AtomicU32::from_ptr(addr as *mut u32).load(Ordering::Acquire)),
            }
        })
    }

    /// Sets a word of 4 or 8 bytes.
    ///
    /// # Safety
    /// As for [`Reach::load`].
    pub(crate) unsafe fn store(
        &self,
        addr: usize,
        width: Width,
        value: u64,
    ) -> Result<(), MachineError> {
        if self.is_far(addr) {
            return self.machine.write(addr, &value.to_le_bytes()[..width.bytes()]);
        }
        // SAFETY: the caller's promise.
        unsafe {
            match width {
                Width::Eight => {
                    AtomicU64::from_ptr(addr as *mut u64).store(value, Ordering::Release)
                }
                _ => AtomicU32::from_ptr(addr as *mut u32).store(value as u32, Ordering::Release),
            }
        }
        Ok(())
    }
}

/// Copies between memory that the CPU reaches.
///
/// # Safety
/// Both ranges are used atomically while kernels run.
pub(crate) unsafe fn copy_near(from: usize, to: usize, bytes: usize) {
    if (from | to | bytes) % 8 == 0 {
        for offset in (0..bytes).step_by(8) {
            // SAFETY: the caller's promise; aligned.
            unsafe {
                let word = AtomicU64::from_ptr((from + offset) as *mut u64).load(Ordering::Acquire);
                AtomicU64::from_ptr((to + offset) as *mut u64).store(word, Ordering::Release);
            }
        }
        return;
    }
    for offset in 0..bytes {
        // SAFETY: the caller's promise.
        unsafe {
            let byte = AtomicU8::from_ptr((from + offset) as *mut u8).load(Ordering::Acquire);
            AtomicU8::from_ptr((to + offset) as *mut u8).store(byte, Ordering::Release);
        }
    }
}
