//! The part of CUDA's runtime library that a libfabric with CUDA asks for, loaded under its name:
//! `libcudart.so`.
//!
//! It stands on the driver's calls, in the context that is bound, or the primary one of the
//! thread's device where none is. A copy says that it was made: a transport that must not wait for
//! kernels makes none.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

use libloading::Library;

/// A `CUresult`, which a `cudaError_t` is as well, as far as it is looked at.
type Status = u32;

type Outcome = Result<(), Status>;

const NOT_SUPPORTED: Status = 801;

thread_local! {
    static DEVICE: Cell<c_int> = const { Cell::new(0) };
}

fn driver() -> &'static Library {
    static DRIVER: OnceLock<Library> = OnceLock::new();
    DRIVER.get_or_init(|| {
        // SAFETY: the program has loaded it before, or it runs no code of consequence.
        unsafe { Library::new("libcuda.so.1") }.expect("a driver")
    })
}

/// Calls a function of the driver's: each argument is followed by its type.
macro_rules! call {
    ($name:ident($($argument:expr => $type:ty),*)) => {{
        type Function = unsafe extern "C" fn($($type),*) -> Status;
        // SAFETY: its type in CUDA's header; the arguments are as the caller of C has them.
        let status = unsafe {
            let name = stringify!($name).as_bytes();
            driver().get::<Function>(name).expect("a function")($($argument),*)
        };
        if status == 0 { Ok(()) } else { Err(status) }
    }};
}

/// Binds the primary context of the thread's device, where the program has bound none.
fn ready() -> Outcome {
    call!(cuInit(0 => u32))?;
    let mut context = ptr::null_mut();
    call!(cuCtxGetCurrent(&raw mut context => *mut *mut c_void))?;
    if context.is_null() {
        call!(cuDevicePrimaryCtxRetain(
            &raw mut context => *mut *mut c_void, DEVICE.get() => c_int))?;
        call!(cuCtxPushCurrent_v2(context => *mut c_void))?;
    }
    Ok(())
}

fn answer(call: impl FnOnce() -> Outcome) -> Status {
    call().err().unwrap_or(0)
}

macro_rules! calls {
    ($(fn $name:ident($($argument:ident: $type:ty),*) $body:block)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name($($argument: $type),*) -> Status {
                answer(move || $body)
            }
        )*
    };
}

calls! {
    fn cudaMalloc(into: *mut usize, len: usize) {
        ready()?;
        call!(cuMemAlloc_v2(into => *mut usize, len => usize))
    }

    fn cudaFree(base: usize) {
        ready()?;
        call!(cuMemFree_v2(base => usize))
    }

    fn cudaMemcpy(to: usize, from: usize, len: usize, _kind: c_int) {
        eprintln!("cudart-lab: cudaMemcpy of {len} bytes");
        ready()?;
        call!(cuMemcpy(to => usize, from => usize, len => usize))
    }

    fn cudaGetDeviceCount(into: *mut c_int) {
        call!(cuInit(0 => u32))?;
        call!(cuDeviceGetCount(into => *mut c_int))
    }

    fn cudaGetDevice(into: *mut c_int) {
        // SAFETY: a place, as C promises.
        unsafe { into.write(DEVICE.get()) };
        Ok(())
    }

    fn cudaSetDevice(number: c_int) {
        DEVICE.set(number);
        Ok(())
    }

    fn cudaDeviceSynchronize() { Err(NOT_SUPPORTED) }
    fn cudaHostRegister(_base: usize, _len: usize, _flags: u32) { Err(NOT_SUPPORTED) }
    fn cudaHostUnregister(_base: usize) { Err(NOT_SUPPORTED) }
    fn cudaIpcGetMemHandle(_into: usize, _base: usize) { Err(NOT_SUPPORTED) }
    fn cudaIpcOpenMemHandle(_into: usize, _handle: IpcHandle, _flags: u32) { Err(NOT_SUPPORTED) }
    fn cudaIpcCloseMemHandle(_base: usize) { Err(NOT_SUPPORTED) }
}

#[repr(C)]
struct IpcHandle([u64; 8]);

/// The driver's name or text for a result.
macro_rules! texts {
    ($($name:ident = $of_driver:ident;)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name(code: Status) -> *const c_char {
                const UNKNOWN: &CStr = c"an unknown error";
                let mut text = ptr::null();
                let found = call!($of_driver(code => Status, &raw mut text => *mut *const c_char));
                if found.is_ok() { text } else { UNKNOWN.as_ptr() }
            }
        )*
    };
}

texts! {
    cudaGetErrorName = cuGetErrorName;
    cudaGetErrorString = cuGetErrorString;
}
