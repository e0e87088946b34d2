//! Accesses to words and bytes of host memory on behalf of peers' messages.
//!
//! Atomic operations are the CPU's, so they are atomic relative to those of any thread on the same
//! word, in this process or in another one that maps the memory. Every change of a word is also a
//! release: a reader that acquires it sees all that this thread has stored or acquired.
//!
//! # Safety
//! For all functions here: `addr` is the address of host memory that is mapped for reading and
//! writing during the call, for all named bytes. Others may change the bytes meanwhile, as
//! NVSHMEM's memory model permits; then, as in that model, each byte read or left is undefined. No
//! control flow depends on values that were read.

use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

use engine::atomic::{Atomic, AtomicOp, Width};

/// Executes an atomic operation and returns the word before.
///
/// # Safety
/// The module's promise for the operation's width, to which `addr` is aligned. All others access
/// the word atomically.
#[inline(always)]
pub(crate) unsafe fn apply(addr: usize, atomic: &Atomic) -> u64 {
    macro_rules! on {
        ($word:ty, $bits:ty) => {{
            // SAFETY: mapped and aligned, by the caller's promise.
            let word = unsafe { <$word>::from_ptr(addr as *mut $bits) };
            let operand = atomic.operand as $bits;
            let before: $bits = match atomic.op {
                AtomicOp::Inc | AtomicOp::FetchInc if !atomic.float => word.fetch_add(1, AcqRel),
                AtomicOp::Add | AtomicOp::SignalAdd | AtomicOp::FetchAdd if !atomic.float => {
                    word.fetch_add(operand, AcqRel)
                }
                AtomicOp::Set | AtomicOp::Signal | AtomicOp::SignalSet | AtomicOp::Swap => {
                    word.swap(operand, AcqRel)
                }
                AtomicOp::And | AtomicOp::FetchAnd => word.fetch_and(operand, AcqRel),
                AtomicOp::Or | AtomicOp::FetchOr => word.fetch_or(operand, AcqRel),
                AtomicOp::Xor | AtomicOp::FetchXor => word.fetch_xor(operand, AcqRel),
                AtomicOp::Fetch => word.load(Acquire),
                AtomicOp::CompareSwap => {
                    let (Ok(before) | Err(before)) =
                        word.compare_exchange(atomic.compare as $bits, operand, AcqRel, Acquire);
                    before
                }
                // No CPU adds floating point numbers atomically: a change by others between load
                // and exchange makes the loop start over, so none is lost.
                AtomicOp::Inc
                | AtomicOp::FetchInc
                | AtomicOp::Add
                | AtomicOp::SignalAdd
                | AtomicOp::FetchAdd => {
                    // A copy, so that all other cases can keep the operation in registers.
                    let atomic = *atomic;
                    let sum = |before: $bits| Some(atomic.apply(u64::from(before)) as $bits);
                    let (Ok(before) | Err(before)) = word.fetch_update(AcqRel, Acquire, sum);
                    before
                }
            };
            u64::from(before)
        }};
    }
    // The most common first.
    if atomic.width == Width::Eight {
        return on!(AtomicU64, u64);
    }
    match atomic.width {
        Width::Two => on!(AtomicU16, u16),
        _ => on!(AtomicU32, u32),
    }
}

/// # Safety
/// The module's promise for `into.len()` bytes.
#[inline]
pub(crate) unsafe fn load(addr: usize, into: &mut [u8]) {
    if let Ok(word) = <&mut [u8; 8]>::try_from(&mut *into) {
        // The most common length, without a call.
        // SAFETY: mapped, by the caller's promise.
        *word = unsafe { ptr::read_unaligned(addr as *const [u8; 8]) };
        return;
    }
    // SAFETY: by contract.
    unsafe { load_any(addr, into) };
}

/// Loads any length. Out of line, so that callers that load a word keep everything in registers.
///
/// # Safety
/// As [`load`].
#[cold]
#[inline(never)]
unsafe fn load_any(addr: usize, into: &mut [u8]) {
    // SAFETY: mapped, by the caller's promise; `into` is exclusively borrowed, so they do not
    // overlap.
    unsafe { ptr::copy_nonoverlapping(addr as *const u8, into.as_mut_ptr(), into.len()) };
}

/// # Safety
/// The module's promise for `bytes.len()` bytes.
#[inline]
pub(crate) unsafe fn store(addr: usize, bytes: &[u8]) {
    if let Ok(word) = <&[u8; 8]>::try_from(bytes) {
        // SAFETY: mapped, by the caller's promise.
        unsafe { ptr::write_unaligned(addr as *mut [u8; 8], *word) };
        return;
    }
    // SAFETY: mapped, by the caller's promise; `bytes` is a buffer of ours, outside of it.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), addr as *mut u8, bytes.len()) };
}

/// Stores a flag: whoever sees it also sees this thread's earlier stores.
///
/// # Safety
/// The module's promise for 8 bytes; `addr` is aligned to 8, and all others access the flag
/// atomically.
#[inline]
pub(crate) unsafe fn store_flag(addr: usize, flag: u64) {
    // SAFETY: mapped and aligned, by the caller's promise.
    unsafe { AtomicU64::from_ptr(addr as *mut u64) }.store(flag, Release);
}
