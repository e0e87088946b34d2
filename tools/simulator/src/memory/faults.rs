//! Faults that a stand-in for CUDA's driver offers beyond a driver: failures and delays on demand.

use std::ffi::c_int;

use crate::error::Result;
use crate::memory::gpu::{Gpu, call};

/// Copies that the device has accepted from this process.
pub const COPIES: u32 = 2;
/// Bytes of page-locked memory in use in this process, those of the simulator among them.
pub const PINNED: u32 = 3;
/// Calls that have given copies, words and events to the device's streams.
pub const CALLS: u32 = 11;

/// Makes this PE's device fail or slow. Only a stand-in can do so: with a real driver all fail.
///
/// What it sets holds for all copies of this process, those of [`crate::Local`] among them.
#[derive(Clone, Copy, Debug)]
pub struct Faults(pub(crate) &'static Gpu);

impl Faults {
    /// After `after` more copies have been executed, one fails on the device with a `CUresult`, and
    /// everything after it.
    pub fn fail_copy(&self, after: u32, result: u32) -> Result<()> {
        let number = self.ordinal();
        // SAFETY: numbers only, of these types in the stand-in; so below.
        unsafe {
            call!(self.0.calls, fake_cuda_fail_copy(number => c_int, after => u32, result => u32))
        }
    }

    /// From now on every call answers with a `CUresult`, as when the device has gone.
    pub fn lose(&self, result: u32) -> Result<()> {
        let number = self.ordinal();
        // SAFETY: see `fail_copy`.
        unsafe { call!(self.0.calls, fake_cuda_lose(number => c_int, result => u32)) }
    }

    /// What the stand-in has counted: [`COPIES`], [`CALLS`] or [`PINNED`].
    pub fn count(&self, what: u32) -> Result<u64> {
        type Count = unsafe extern "C" fn(c_int, u32) -> u64;
        // SAFETY: see `fail_copy`.
        Ok(unsafe { self.0.calls.required::<Count>("fake_cuda_count")?(self.ordinal(), what) })
    }

    fn ordinal(&self) -> c_int {
        self.0.context.device().0
    }
}
