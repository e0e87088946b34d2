//! Results of calls: the numbers of `CUresult`, with their names.

use std::ffi::{CStr, c_char};

/// A `CUresult`.
pub(crate) type Status = u32;

/// What a call inside this crate ends with.
pub(crate) type Outcome = Result<(), Status>;

macro_rules! statuses {
    ($($($name:ident =)? $code:literal, $full:literal, $text:literal;)*) => {
        $($(pub(crate) const $name: Status = $code;)?)*

        fn known(code: Status) -> Option<(&'static CStr, &'static CStr)> {
            match code {
                $($code => Some(($full, $text)),)*
                _ => None,
            }
        }
    };
}

statuses! {
    SUCCESS = 0, c"CUDA_SUCCESS", c"done";
    INVALID_VALUE = 1, c"CUDA_ERROR_INVALID_VALUE", c"fake: an argument is not allowed";
    OUT_OF_MEMORY = 2, c"CUDA_ERROR_OUT_OF_MEMORY", c"fake: no memory is left";
    NOT_INITIALIZED = 3, c"CUDA_ERROR_NOT_INITIALIZED", c"fake: cuInit was not called";
    46, c"CUDA_ERROR_DEVICE_UNAVAILABLE", c"fake: the device is busy or gone";
    INVALID_DEVICE = 101, c"CUDA_ERROR_INVALID_DEVICE", c"fake: no device has this number";
    INVALID_CONTEXT = 201, c"CUDA_ERROR_INVALID_CONTEXT", c"fake: no context is bound here";
    214, c"CUDA_ERROR_ECC_UNCORRECTABLE", c"fake: memory was damaged";
    217, c"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", c"fake: devices do not reach one another";
    INVALID_HANDLE = 400, c"CUDA_ERROR_INVALID_HANDLE", c"fake: not a handle of this driver";
    NOT_READY = 600, c"CUDA_ERROR_NOT_READY", c"fake: still under way";
    700, c"CUDA_ERROR_ILLEGAL_ADDRESS", c"fake: the device met a bad address";
    CONTEXT_IS_DESTROYED = 709, c"CUDA_ERROR_CONTEXT_IS_DESTROYED", c"fake: the context is gone";
    ALREADY_REGISTERED = 712, c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", c"fake: registered before";
    NOT_REGISTERED = 713, c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", c"fake: not registered";
    719, c"CUDA_ERROR_LAUNCH_FAILED", c"fake: the device stopped";
    CAPTURE_UNSUPPORTED = 900, c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", c"fake: not while capturing";
    CAPTURE_INVALIDATED = 901, c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", c"fake: a call has spoilt it";
    NOT_SUPPORTED = 801, c"CUDA_ERROR_NOT_SUPPORTED", c"fake: not supported here";
}

pub(crate) fn answer(outcome: Outcome) -> Status {
    outcome.err().unwrap_or(SUCCESS)
}

fn look_up(code: Status, into: *mut *const c_char, text: bool) -> Status {
    if into.is_null() {
        return INVALID_VALUE;
    }
    let found = known(code).map(|(name, words)| if text { words } else { name });
    // SAFETY: not null; the caller promises a valid place.
    unsafe { *into = found.map_or(std::ptr::null(), CStr::as_ptr) };
    if found.is_some() { SUCCESS } else { INVALID_VALUE }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuGetErrorName(code: Status, name: *mut *const c_char) -> Status {
    look_up(code, name, false)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuGetErrorString(code: Status, text: *mut *const c_char) -> Status {
    look_up(code, text, true)
}

/// Writes a result through a pointer of the caller's.
///
/// # Safety
/// `into` is null or a valid place for a value.
pub(crate) unsafe fn put<T>(into: *mut T, value: T) -> Outcome {
    if into.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, and valid by the caller's promise.
    unsafe { into.write(value) };
    Ok(())
}
