//! The part of CUDA's runtime library that a libfabric with CUDA asks for, which finds this library
//! under that name as well: `libcudart.so`.
//!
//! It stands on the driver's calls, in the context that is bound, or the primary one of device 0
//! where none is. A copy says that it was made: a transport that must not wait for kernels makes
//! none.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int};

use super::context::{cuCtxPushCurrent_v2, cuDevicePrimaryCtxRetain};
use super::copy::{Way, copy_now};
use super::device::{cuDeviceGetCount, cuInit};
use super::memory::{allocate, free};
use crate::state::context::bound;
use crate::state::pages::Kind;
use crate::state::status::{NOT_SUPPORTED, Out, Outcome, SUCCESS, Status, name_of, text_of};

thread_local! {
    static DEVICE: Cell<c_int> = const { Cell::new(0) };
}

fn done(status: Status) -> Outcome {
    if status == SUCCESS { Ok(()) } else { Err(status) }
}

/// Binds the primary context of the thread's device, where the program has bound none.
fn ready() -> Outcome {
    done(cuInit(0))?;
    if bound().is_none() {
        let mut context = std::ptr::null();
        done(cuDevicePrimaryCtxRetain(Out::to(&mut context), DEVICE.get()))?;
        done(cuCtxPushCurrent_v2(context))?;
    }
    Ok(())
}

calls! {
    fn cudaMalloc(into: Out<usize>, len: usize) {
        ready()?;
        into.put(allocate(len, Kind::Device)?)
    }

    fn cudaFree(base: usize) {
        ready()?;
        free(base)
    }

    fn cudaMemcpy(to: usize, from: usize, len: usize, _kind: c_int) {
        eprintln!("fake-cuda: cudaMemcpy of {len} bytes");
        ready()?;
        copy_now(from, to, len, Way::Any)
    }

    fn cudaGetDeviceCount(into: Out<c_int>) {
        done(cuInit(0))?;
        done(cuDeviceGetCount(into))
    }

    fn cudaGetDevice(into: Out<c_int>) {
        into.put(DEVICE.get())
    }

    fn cudaSetDevice(number: c_int) {
        DEVICE.set(number);
        Ok(())
    }
}

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
    cudaHostRegister(usize, usize, u32);
    cudaHostUnregister(usize);
    cudaIpcGetMemHandle(usize, usize);
    cudaIpcOpenMemHandle(usize, IpcHandle, u32);
    cudaIpcCloseMemHandle(usize);
}

#[repr(C)]
struct IpcHandle([u64; 8]);

const UNKNOWN: &CStr = c"an unknown error";

#[unsafe(no_mangle)]
extern "C" fn cudaGetErrorName(code: Status) -> *const c_char {
    name_of(code).unwrap_or(UNKNOWN).as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn cudaGetErrorString(code: Status) -> *const c_char {
    text_of(code).unwrap_or(UNKNOWN).as_ptr()
}
