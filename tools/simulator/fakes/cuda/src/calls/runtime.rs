//! The part of CUDA's runtime library that a libfabric with CUDA asks for, which finds this library
//! under that name as well: `libcudart.so`.
//!
//! It stands on the driver's calls, in the context that is bound, or the primary one of device 0
//! where none is. A copy says that it was made: a transport that must not wait for kernels makes
//! none.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use super::context::{cuCtxPushCurrent_v2, cuDevicePrimaryCtxRetain};
use super::copy::cuMemcpy;
use super::device::{cuDeviceGetCount, cuInit};
use super::memory::{cuMemAlloc_v2, cuMemFree_v2};
use crate::state::context::bound;
use crate::state::status::{NOT_SUPPORTED, SUCCESS, Status, cuGetErrorName, cuGetErrorString};

thread_local! {
    static DEVICE: Cell<c_int> = const { Cell::new(0) };
}

/// Binds the primary context of the thread's device, where the program has bound none.
fn ready() -> Status {
    cuInit(0);
    if bound().is_some() {
        return SUCCESS;
    }
    let mut context = ptr::null();
    // SAFETY: a place of ours.
    match unsafe { cuDevicePrimaryCtxRetain(&raw mut context, DEVICE.get()) } {
        SUCCESS => cuCtxPushCurrent_v2(context),
        failed => failed,
    }
}

fn in_context(call: impl FnOnce() -> Status) -> Status {
    match ready() {
        SUCCESS => call(),
        failed => failed,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudaMalloc(into: *mut usize, len: usize) -> Status {
    // SAFETY: the caller's promise.
    in_context(|| unsafe { cuMemAlloc_v2(into, len) })
}

#[unsafe(no_mangle)]
extern "C" fn cudaFree(base: usize) -> Status {
    in_context(|| cuMemFree_v2(base))
}

#[unsafe(no_mangle)]
extern "C" fn cudaMemcpy(to: usize, from: usize, len: usize, _kind: c_int) -> Status {
    eprintln!("fake-cuda: cudaMemcpy of {len} bytes");
    in_context(|| cuMemcpy(to, from, len))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudaGetDeviceCount(into: *mut c_int) -> Status {
    cuInit(0);
    // SAFETY: the caller's promise.
    unsafe { cuDeviceGetCount(into) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudaGetDevice(into: *mut c_int) -> Status {
    // SAFETY: the caller's promise.
    unsafe { *into = DEVICE.get() };
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cudaSetDevice(number: c_int) -> Status {
    DEVICE.set(number);
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cudaGetErrorName(code: Status) -> *const c_char {
    text(code, cuGetErrorName)
}

#[unsafe(no_mangle)]
extern "C" fn cudaGetErrorString(code: Status) -> *const c_char {
    text(code, cuGetErrorString)
}

fn text(
    code: Status,
    ask: unsafe extern "C" fn(Status, *mut *const c_char) -> Status,
) -> *const c_char {
    const UNKNOWN: &CStr = c"an unknown error";
    let mut text = UNKNOWN.as_ptr();
    // SAFETY: a place of ours.
    if unsafe { ask(code, &raw mut text) } == SUCCESS { text } else { UNKNOWN.as_ptr() }
}

/// Functions that are not offered.
macro_rules! refused {
    ($($name:ident($($argument:ty),*);)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name($(_: $argument),*) -> Status {
                NOT_SUPPORTED
            }
        )*
    };
}

refused! {
    cudaDeviceSynchronize();
    cudaHostRegister(*mut c_void, usize, u32);
    cudaHostUnregister(*mut c_void);
    cudaIpcGetMemHandle(*mut c_void, *mut c_void);
    cudaIpcCloseMemHandle(*mut c_void);
}

#[repr(C)]
struct IpcHandle([u64; 8]);

#[unsafe(no_mangle)]
extern "C" fn cudaIpcOpenMemHandle(_: *mut *mut c_void, _: IpcHandle, _: u32) -> Status {
    NOT_SUPPORTED
}
