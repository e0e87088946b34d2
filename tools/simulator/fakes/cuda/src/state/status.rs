//! Results of calls: the numbers of `CUresult`, with their names. And pointers of C's.

use std::ffi::CStr;

pub(crate) type Status = u32;

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

pub(crate) fn answer(call: impl FnOnce() -> Outcome) -> Status {
    call().err().unwrap_or(SUCCESS)
}

pub(crate) fn name_of(code: Status) -> Option<&'static CStr> {
    known(code).map(|(name, _)| name)
}

pub(crate) fn text_of(code: Status) -> Option<&'static CStr> {
    known(code).map(|(_, text)| text)
}

/// A pointer that C has given for a result: null, or to a place of the type.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    pub(crate) fn at(&self, number: usize) -> Self {
        Self(self.0.wrapping_add(number))
    }

    pub(crate) fn of<U>(&self) -> Out<U> {
        Out(self.0.cast())
    }

    pub(crate) fn put(&self, value: T) -> Outcome {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, so a place of the type, as C promises.
        unsafe { self.0.write(value) };
        Ok(())
    }

    pub(crate) fn replace(&self, value: T) -> Result<T, Status> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: as above; C has put something there.
        Ok(unsafe { self.0.replace(value) })
    }
}

/// A pointer that C has given to be read: null, or to one or several of the type.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct In<T>(*const T);

impl<T> In<T> {
    pub(crate) fn get(&self) -> Result<&T, Status> {
        // SAFETY: null, or one of the type, as C promises.
        unsafe { self.0.as_ref() }.ok_or(INVALID_VALUE)
    }

    pub(crate) fn list(&self, count: usize) -> Result<&[T], Status> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, so as many as C says.
        Ok(unsafe { std::slice::from_raw_parts(self.0, count) })
    }
}
