//! Detection of a stream's progress.
//!
//! - A *counter*, after stored words: the call that stores them also sets a word of page-locked
//!   memory to the batch's number. A poll is a load of that word, without a call of the driver.
//! - The *destination* of a short copy to the host: it is filled with a pattern before, and the
//!   copy is done when no word has the pattern any more. Nothing is added to the stream.
//! - An *event* for all else: a call of the driver to record it, and one for each poll. After a
//!   copy, a counter would delay the copies that follow.
//!
//! `docs/gpu.md` has what each costs on a GPU.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::copy::writes::WordWrite;
use crate::driver::stream::{Stream, wait_for};
use crate::memory::pinned_memory::PinnedMemory;
use ::engine::atomic::Width;

/// A word of page-locked memory that a stream sets to ascending values, from 1. Compared values
/// differ by at most the number of batches in flight, so 32 bits may wrap.
#[derive(Debug)]
pub(crate) struct ProgressCounter {
    memory: Arc<PinnedMemory>,
    /// Last value submitted to the stream.
    issued: u32,
}

/// A cache line, which holds nothing but the counter.
pub(crate) const BYTES: usize = 64;

/// A busy machine may start the stream late, and without the counter polls call the driver.
const PATIENCE: Duration = Duration::from_secs(1);

impl ProgressCounter {
    /// Makes a counter of the first word of `memory`, which has [`BYTES`].
    ///
    /// # Errors
    /// The reason why a trial shows that the stream cannot set the word.
    pub(crate) fn new(stream: &Stream, memory: Arc<PinnedMemory>) -> Result<Self, String> {
        const TRIED: u32 = u32::MAX;
        let counter = Self { memory, issued: 0 };
        let _bound = stream.context().bind().map_err(|error| error.to_string())?;
        counter.word().store(0, Ordering::Relaxed);
        counter.write(TRIED).submit(stream).map_err(|error| error.to_string())?;
        if !wait_for(PATIENCE, || counter.word().load(Ordering::Acquire) == TRIED) {
            // The stream may still set it later.
            std::mem::forget(counter);
            return Err(format!("the device has not set a word of the host in {PATIENCE:?}"));
        }
        counter.word().store(0, Ordering::Relaxed);
        Ok(counter)
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: page-locked memory is page-aligned, has these bytes and lives as long as `self`.
        // Only the stream and this function's callers use the word.
        unsafe { AtomicU32::from_ptr(self.memory.addr() as *mut u32) }
    }

    pub(crate) fn write(&self, number: u32) -> WordWrite {
        WordWrite { addr: self.memory.addr(), width: Width::Four, value: number.into() }
    }

    #[inline]
    pub(crate) fn next(&self) -> (WordWrite, u32) {
        let number = self.issued.wrapping_add(1);
        (self.write(number), number)
    }

    /// Call when the store of the next value was submitted.
    #[inline]
    pub(crate) fn advance(&mut self) {
        self.issued = self.issued.wrapping_add(1);
    }

    #[inline]
    pub(crate) fn value(&self) -> u32 {
        self.word().load(Ordering::Acquire)
    }

    /// Returns true if the stream has reached a value, which may not be submitted yet.
    #[inline]
    pub(crate) fn reached(&self, number: u32) -> bool {
        has_passed(self.value(), number)
    }
}

/// Returns true if `number` is at most `last`, modulo 2^32.
#[inline]
pub(crate) fn has_passed(last: u32, number: u32) -> bool {
    (last.wrapping_sub(number) as i32) >= 0
}

/// Destination of a copy to the host, filled with a pattern that the copy overwrites.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PatternWatch {
    /// Bytes before this address have arrived.
    at: usize,
    end: usize,
    pattern: u32,
}

/// Maximum bytes watched if the stream is otherwise idle: to poll more takes the CPU longer than an
/// event takes the device.
const MAX_WATCHED: usize = 16_384;

/// Maximum bytes watched of a copy that follows others. Its event then takes the device no time,
/// and the CPU less than polling more bytes.
const MAX_WATCHED_BEHIND: usize = 2048;

impl PatternWatch {
    /// Fills `len` bytes at `host` with a pattern derived from `number`, for a copy from `device`,
    /// `alone` in its stream or not. None if they are too many, or not aligned to 4 bytes on both
    /// sides: only then the device stores words of 4 bytes whole.
    ///
    /// # Safety
    /// The bytes are page-locked memory. Any other use of them meanwhile is by atomic accesses, or
    /// invisible to Rust as the device's are.
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
        // Differs between copies, and from common values: bytes equal to it are detected late.
        let pattern = (number as u32).wrapping_mul(0x9e37_79b1).wrapping_add(0x8d3a_51c7);
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

    /// Returns true if all bytes have arrived. False is no proof: they may equal the pattern.
    ///
    /// # Safety
    /// The bytes are still mapped, and in no other use.
    #[inline]
    pub(crate) unsafe fn has_arrived(&mut self) -> bool {
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

fn twice(pattern: u32) -> u64 {
    u64::from(pattern) * 0x1_0000_0001
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watched_bytes_come_word_by_word() {
        let mut memory = vec![0_u64; MAX_WATCHED / 8 + 1];
        let host = memory.as_mut_ptr() as usize;
        // SAFETY: bytes of the memory, of this thread alone.
        let watch = |at, device, len, alone| unsafe {
            PatternWatch::new((host + at, device), len, 7, alone)
        };
        for (at, device, len, alone, is_watched) in [
            (0, 0, 8, true, true),
            (8, 4, 12, true, true),
            (4, 0, 8, true, false),
            (0, 2, 8, true, false),
            (0, 0, 6, true, false),
            (0, 2, 6, true, false),
            (0, 0, MAX_WATCHED, true, true),
            (0, 0, MAX_WATCHED + 4, true, false),
            (0, 0, MAX_WATCHED_BEHIND, false, true),
            (0, 0, MAX_WATCHED_BEHIND + 4, false, false),
        ] {
            let watched = watch(at, device, len, alone).is_some();
            assert_eq!(watched, is_watched, "{len} bytes at {at}, {device}");
        }
        for words in 1..6 {
            let behind = (host + 4 * words) as *mut u32;
            // SAFETY: as above.
            unsafe { behind.write(5) };
            let mut watch = watch(0, 0, 4 * words, true).expect("watched");
            // The word behind the copy is left alone, and may hold the pattern.
            // SAFETY: as above.
            assert_eq!(unsafe { behind.replace(watch.pattern) }, 5);
            for word in (0..words).rev() {
                // SAFETY: as above.
                unsafe {
                    assert!(!watch.has_arrived(), "word {word} of {words} is missing");
                    ((host + 4 * word) as *mut u32).write(word as u32);
                }
            }
            // SAFETY: as above.
            assert!(unsafe { watch.has_arrived() });
        }
        let filled = [0, 1, 2].map(|number| {
            // SAFETY: as above.
            unsafe {
                PatternWatch::new((host, 0), 8, number, true);
                (host as *const u64).read()
            }
        });
        assert!(filled.iter().all(|both| *both != 0 && *both as u32 == (both >> 32) as u32));
        assert_ne!(filled[1], filled[2], "each copy has its own pattern");
    }

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
