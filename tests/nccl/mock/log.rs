//! The plugin's lines to NCCL's logger.
//!
//! NCCL's logger is variadic, which no function of stable Rust can be. This one takes one argument
//! after the format, since the plugin passes `"%s"` and its whole line: on x86-64 (System V) and
//! AArch64 (AAPCS64) a variadic call puts six such arguments into the same registers as any other
//! call. Another format is a fault, and its argument is not read.

use std::ffi::{CStr, c_char, c_int, c_ulong};
use std::sync::{Mutex, PoisonError};

use nvshmem_transport_libfabric::nccl::abi::Logger;

#[derive(Clone, Debug)]
pub(crate) struct Line {
    /// See [`nvshmem_transport_libfabric::nccl::abi::level`].
    pub(crate) level: c_int,
    /// See [`nvshmem_transport_libfabric::nccl::abi::subsystem`].
    pub(crate) subsystems: c_ulong,
    pub(crate) text: String,
}

static LINES: Mutex<Vec<Line>> = Mutex::new(Vec::new());

pub(crate) fn logger() -> Logger {
    type Fixed =
        unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, *const c_char);
    let function: Fixed = take;
    // SAFETY: see the module: with one pointer after the format, calls of both are the same.
    Some(unsafe {
        std::mem::transmute::<
            Fixed,
            unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, ...),
        >(function)
    })
}

unsafe extern "C" fn take(
    level: c_int,
    subsystems: c_ulong,
    _file: *const c_char,
    _line: c_int,
    format: *const c_char,
    text: *const c_char,
) {
    // SAFETY: the format is a string.
    let format = unsafe { CStr::from_ptr(format) };
    let text = if format == c"%s" {
        // SAFETY: which this format says of its argument.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    } else {
        format!("the format is {format:?}")
    };
    lock().push(Line { level, subsystems, text });
}

fn lock() -> std::sync::MutexGuard<'static, Vec<Line>> {
    LINES.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn lines() -> Vec<Line> {
    lock().clone()
}

pub(crate) fn warnings() -> Vec<String> {
    let is_warning =
        |line: &Line| line.level <= nvshmem_transport_libfabric::nccl::abi::level::WARN;
    lines().into_iter().filter(is_warning).map(|line| line.text).collect()
}
