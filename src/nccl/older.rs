//! The functions of v14, which have no flags: they wrap those of the newest version.
//!
//! The safety of all of it rests on the rules that are numbered in [`crate::nccl`]'s documentation.

use std::ffi::{c_int, c_void};

use crate::nccl::abi::Status;

use super::entries;

macro_rules! without_flags {
    ($($name:ident($($argument:ident: $type:ty),* $(,)?);)+) => {$(
        /// # Safety
        /// That of the function of this name in [`entries`].
        pub(super) unsafe extern "C" fn $name(
            $($argument: $type,)*
            request: *mut *mut c_void,
        ) -> Status {
            // SAFETY: this function's contract.
            unsafe { entries::$name($($argument,)* 0, request) }
        }
    )+};
}

without_flags! {
    iput(
        contexts: *mut c_void, context: c_int, source_offset: u64, source: *mut c_void,
        size: usize, target_offset: u64, target: *mut c_void, rank: u32,
    );
    iput_signal(
        contexts: *mut c_void, context: c_int, source_offset: u64, source: *mut c_void,
        size: usize, target_offset: u64, target: *mut c_void, rank: u32,
        signal_offset: u64, signal: *mut c_void, value: u64, operation: u32, strong: bool,
    );
    iget(
        contexts: *mut c_void, context: c_int, remote_offset: u64, remote: *mut c_void,
        size: usize, local_offset: u64, local: *mut c_void, rank: u32,
    );
}
