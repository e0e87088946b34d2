//! How far a stream has come: what tells that a thing which was given to it is done.
//!
//! - A *mark*, behind words that are stored: in the same call, the stream sets a word of
//!   page-locked memory to the mark's number. To look is a load of that word, and no call of the
//!   driver.
//! - The *bytes* of a short copy to the host: their place is filled with a pattern before, and
//!   where no word of it has the pattern any more, all have come. Nothing is put into the stream
//!   for that.
//! - An *event* for all else: a call of the driver to record it, and one for each look. Behind a
//!   copy a mark would hold up the copies that follow.
//!
//! What each costs on a GPU is in `docs/gpu.md`.

use std::hint;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::copy::writes::Write;
use crate::driver::stream::Stream;
use crate::memory::pinned_memory::PinnedMemory;
use ::engine::atomic::Width;

/// A word of page-locked memory that a stream sets to the number of each mark that it comes to.
/// Marks are numbered from 1 by themselves, so numbers that are compared differ by no more than the
/// marks under way, and 32 bits tell for ever.
#[derive(Debug)]
pub(crate) struct Mark {
    memory: Arc<PinnedMemory>,
    /// How many were given to the stream.
    given: u32,
}

/// A line of the processor's caches, which the word has for itself.
pub(crate) const BYTES: usize = 64;

const PATIENCE: Duration = Duration::from_millis(200);

impl Mark {
    /// The word at the start of memory of [`BYTES`], if the stream sets it, by trial; or why not.
    pub(crate) fn new(stream: &Stream, memory: Arc<PinnedMemory>) -> Result<Self, String> {
        const TRIED: u32 = u32::MAX;
        let mark = Self { memory, given: 0 };
        let _bound = stream.context().bind().map_err(|error| error.to_string())?;
        mark.word().store(0, Ordering::Relaxed);
        mark.write(TRIED).give(stream).map_err(|error| error.to_string())?;
        let start = Instant::now();
        while mark.word().load(Ordering::Acquire) != TRIED {
            if start.elapsed() > PATIENCE {
                // The stream may set it later all the same.
                std::mem::forget(mark);
                return Err(format!("the device has not set a word of the host in {PATIENCE:?}"));
            }
            hint::spin_loop();
            thread::yield_now();
        }
        mark.word().store(0, Ordering::Relaxed);
        Ok(mark)
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: page-locked memory starts at a page and has these bytes; it lives as long as
        // this. Besides the stream, nobody uses the word but through here.
        unsafe { AtomicU32::from_ptr(self.memory.addr() as *mut u32) }
    }

    fn write(&self, number: u32) -> Write {
        Write { addr: self.memory.addr(), width: Width::Four, value: number.into() }
    }

    /// The store of the next mark, and its number.
    #[inline]
    pub(crate) fn next(&self) -> (Write, u32) {
        let number = self.given.wrapping_add(1);
        (self.write(number), number)
    }

    /// The next mark was given to the stream.
    #[inline]
    pub(crate) fn count(&mut self) {
        self.given = self.given.wrapping_add(1);
    }

    /// Whether the stream has come to a number's mark, which may not be given yet, or a later one.
    #[inline]
    pub(crate) fn reached(&self, number: u32) -> bool {
        has_passed(self.word().load(Ordering::Acquire), number)
    }
}

/// Whether a number is the last mark's or an earlier one's, being at most one more than the last.
#[inline]
fn has_passed(last: u32, number: u32) -> bool {
    (last.wrapping_sub(number) as i32) >= 0
}

/// Bytes of the host that a copy is bringing, which are filled with a pattern until it has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch {
    /// What is before this has come.
    at: usize,
    end: usize,
    pattern: u32,
}

/// Most bytes that are watched of a copy that has the stream to itself: to look at more takes the
/// CPU longer than an event takes the device.
const MAX_WATCHED: usize = 16 * 1024;

/// Most bytes that are watched of a copy behind others. The device takes no time for its event
/// then, and the CPU less than for more bytes.
const MAX_WATCHED_BEHIND: usize = 2 * 1024;

impl Watch {
    /// Fills `len` bytes of the host with a pattern that goes by `number`, for a copy from
    /// `device`, `alone` in its stream or not. None where they are too many, or cannot be watched:
    /// the device stores words of 4 bytes whole only where both sides are aligned to them.
    ///
    /// # Safety
    /// The bytes are page-locked memory. Who uses them otherwise meanwhile, which he should not,
    /// does so by atomic accesses or outside of Rust's sight, as the device does.
    #[inline]
    pub(crate) unsafe fn new(
        (host, device): (usize, usize),
        len: usize,
        number: u64,
        alone: bool,
    ) -> Option<Self> {
        let most = if alone { MAX_WATCHED } else { MAX_WATCHED_BEHIND };
        if len > most || host % 8 != 0 || (device | len) % 4 != 0 {
            return None;
        }
        // Differs from copy to copy, and from common values: bytes equal to it are seen late.
        let pattern = (number as u32).wrapping_mul(0x9e37_79b1) ^ 0x8d3a_51c7;
        let end = host + len;
        for at in (host..end - len % 8).step_by(8) {
            // SAFETY: the caller's promise; the address is aligned to 8.
            unsafe { AtomicU64::from_ptr(at as *mut u64) }.store(twice(pattern), Ordering::Relaxed);
        }
        if len % 8 != 0 {
            // SAFETY: as above, of the last word of 4 bytes.
            unsafe { AtomicU32::from_ptr((end - 4) as *mut u32) }.store(pattern, Ordering::Relaxed);
        }
        Some(Self { at: host, end, pattern })
    }

    /// Whether all bytes have come. If not, it is not known: they may have the pattern themselves.
    ///
    /// # Safety
    /// The bytes are still there, and in no other use.
    #[inline]
    pub(crate) unsafe fn all_here(&mut self) -> bool {
        let both = twice(self.pattern);
        while self.end - self.at >= 8 {
            // SAFETY: the caller's promise; the address is still aligned to 8.
            let differs =
                unsafe { AtomicU64::from_ptr(self.at as *mut u64) }.load(Ordering::Acquire) ^ both;
            if differs as u32 == 0 || differs >> 32 == 0 {
                return false;
            }
            self.at += 8;
        }
        if self.at < self.end {
            // SAFETY: as above, of the last word of 4 bytes.
            let word = unsafe { AtomicU32::from_ptr(self.at as *mut u32) }.load(Ordering::Acquire);
            if word == self.pattern {
                return false;
            }
            self.at = self.end;
        }
        true
    }
}

/// A word of 8 bytes with the pattern in both halves.
fn twice(pattern: u32) -> u64 {
    u64::from(pattern) << 32 | u64::from(pattern)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_compared_beyond_32_bits() {
        for last in [0, 1, i32::MAX as u32 - 1, i32::MAX as u32, 1 << 31, u32::MAX - 1, u32::MAX] {
            for before in 0..4 {
                assert!(has_passed(last, last.wrapping_sub(before)), "{before} before {last}");
                assert!(!has_passed(last, last.wrapping_add(before + 1)), "behind {last}");
            }
        }
    }
}
