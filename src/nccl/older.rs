//! The functions of the versions before 15, which have no flags: they wrap those of the newest.
//!
//! The safety of all of it rests on the rules that are numbered in [`crate::nccl`]'s documentation.

use std::ffi::{c_int, c_void};

use crate::nccl::abi::Status;

use super::entries;

/// # Safety
/// As [`entries::iput`].
pub(super) unsafe extern "C" fn iput(
    contexts: *mut c_void,
    context: c_int,
    source_offset: u64,
    source: *mut c_void,
    size: usize,
    target_offset: u64,
    target: *mut c_void,
    rank: u32,
    request: *mut *mut c_void,
) -> Status {
    // SAFETY: as for this function.
    unsafe {
        entries::iput(
            contexts,
            context,
            source_offset,
            source,
            size,
            target_offset,
            target,
            rank,
            0,
            request,
        )
    }
}

/// # Safety
/// As [`entries::iput_signal`].
pub(super) unsafe extern "C" fn iput_signal(
    contexts: *mut c_void,
    context: c_int,
    source_offset: u64,
    source: *mut c_void,
    size: usize,
    target_offset: u64,
    target: *mut c_void,
    rank: u32,
    signal_offset: u64,
    signal: *mut c_void,
    value: u64,
    operation: u32,
    strong: bool,
    request: *mut *mut c_void,
) -> Status {
    // SAFETY: as for this function.
    unsafe {
        entries::iput_signal(
            contexts,
            context,
            source_offset,
            source,
            size,
            target_offset,
            target,
            rank,
            signal_offset,
            signal,
            value,
            operation,
            strong,
            0,
            request,
        )
    }
}

/// # Safety
/// As [`entries::iget`].
pub(super) unsafe extern "C" fn iget(
    contexts: *mut c_void,
    context: c_int,
    remote_offset: u64,
    remote: *mut c_void,
    size: usize,
    local_offset: u64,
    local: *mut c_void,
    rank: u32,
    request: *mut *mut c_void,
) -> Status {
    // SAFETY: as for this function.
    unsafe {
        entries::iget(
            contexts,
            context,
            remote_offset,
            remote,
            size,
            local_offset,
            local,
            rank,
            0,
            request,
        )
    }
}
