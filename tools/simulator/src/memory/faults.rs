//! What a stand-in for CUDA's driver offers beyond a driver: a loss on demand, and counts.

use std::ffi::c_int;

use crate::error::Result;
use crate::memory::gpu::{Gpu, call};

/// What only a stand-in can do: with a real driver all of it fails. It concerns all copies of this
/// process, those of [`crate::Local`] among them.
#[derive(Clone, Copy, Debug)]
pub struct Faults(pub(crate) &'static Gpu);

impl Faults {
    /// From now on every call answers with a `CUresult`, as when the device has gone.
    pub fn lose(&self, result: u32) -> Result<()> {
        // SAFETY: numbers only, of these types in the stand-in.
        unsafe { call!(self.0.calls, fake_cuda_lose(self.ordinal() => c_int, result => u32)) }
    }

    /// Calls that have given copies, words and events to the device's streams.
    pub fn calls(&self) -> Result<u64> {
        const CALLS: u32 = 11;
        type Count = unsafe extern "C" fn(c_int, u32) -> u64;
        // SAFETY: as above.
        Ok(unsafe { self.0.calls.required::<Count>("fake_cuda_count")?(self.ordinal(), CALLS) })
    }

    fn ordinal(&self) -> c_int {
        self.0.context.device().0
    }
}
