//! Faults that a stand-in for CUDA's driver offers beyond a driver: failures and delays on demand.

use std::ffi::c_int;

use crate::error::{Error, Result};
use crate::memory::gpu::Gpu;

/// Makes this PE's device fail or slow. Only of a stand-in that can do so.
///
/// What it sets holds for all copies of this process, those of [`crate::Local`] among them.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    gpu: &'static Gpu,
}

impl Faults {
    pub(crate) fn of(gpu: &'static Gpu) -> Faults {
        Faults { gpu }
    }

    /// Whether the driver can do what the other functions ask.
    pub fn offered(&self) -> bool {
        // SAFETY: only looked up.
        unsafe { self.gpu.driver.optional::<usize>("fake_cuda_fail_copy") }.is_some()
    }

    /// After `after` more copies have been executed, one fails on the device with a `CUresult`, and
    /// everything after it.
    ///
    /// # Errors
    /// The driver is a real one.
    pub fn fail_copy(&self, after: u32, result: u32) -> Result<()> {
        self.call_u32("fake_cuda_fail_copy", after, result)
    }

    /// After `after` more copies have been accepted, one is refused with a `CUresult`.
    ///
    /// # Errors
    /// The driver is a real one.
    pub fn fail_submit(&self, after: u32, result: u32) -> Result<()> {
        self.call_u32("fake_cuda_fail_submit", after, result)
    }

    /// From now on every call answers with a `CUresult`, as when the device has gone.
    ///
    /// # Errors
    /// The driver is a real one.
    pub fn lose(&self, result: u32) -> Result<()> {
        type Function = unsafe extern "C" fn(c_int, u32) -> u32;
        let name = "fake_cuda_lose";
        let f: Function = self.look_up(name)?;
        // SAFETY: numbers only.
        self.gpu.driver.check(name, unsafe { f(self.gpu.ordinal, result) })
    }

    /// Bytes of page-locked memory in use in this process, those of the simulator among them.
    ///
    /// # Errors
    /// The driver is a real one.
    pub fn pinned_in_use(&self) -> Result<u64> {
        self.count(3)
    }

    /// Copies that the device has accepted from this process.
    ///
    /// # Errors
    /// The driver is a real one.
    pub fn copies(&self) -> Result<u64> {
        self.count(2)
    }

    /// Calls that have given copies, words and events to the device's streams.
    ///
    /// # Errors
    /// The driver is a real one.
    pub fn calls(&self) -> Result<u64> {
        self.count(11)
    }

    fn count(&self, what: u32) -> Result<u64> {
        type Function = unsafe extern "C" fn(c_int, u32) -> u64;
        let f: Function = self.look_up("fake_cuda_count")?;
        // SAFETY: numbers only.
        Ok(unsafe { f(self.gpu.ordinal, what) })
    }

    fn call_u32(&self, name: &str, first: u32, second: u32) -> Result<()> {
        type Function = unsafe extern "C" fn(c_int, u32, u32) -> u32;
        let f: Function = self.look_up(name)?;
        // SAFETY: numbers only.
        self.gpu.driver.check(name, unsafe { f(self.gpu.ordinal, first, second) })
    }

    fn look_up<F: Copy>(&self, name: &str) -> Result<F> {
        // SAFETY: the callers name the types that the stand-in has.
        let found = unsafe { self.gpu.driver.optional(name) };
        found.ok_or_else(|| Error::Usage(format!("{} has no {name}", self.gpu.describe())))
    }
}
