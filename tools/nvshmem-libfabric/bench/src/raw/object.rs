//! Parts that all of libfabric's objects have in common: an owner, and errors in its words.

use std::ptr::NonNull;

use libfabric_sys as fi;
use libfabric_sys::Library;

/// A call that failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("raw libfabric: {call} failed: {text}")]
pub(crate) struct RawError {
    call: &'static str,
    text: String,
}

/// An error of ours about a call.
pub(super) fn refused(call: &'static str, text: impl Into<String>) -> RawError {
    RawError { call, text: text.into() }
}

/// Owner of any libfabric object: all of them begin with a `fid`.
#[derive(Debug)]
pub(super) struct Object<T>(NonNull<T>);

impl<T> Object<T> {
    pub(super) fn new(
        library: &Library,
        call: &'static str,
        code: i32,
        raw: *mut T,
    ) -> Result<Self, RawError> {
        check(library, call, code.into())?;
        NonNull::new(raw).map(Self).ok_or_else(|| refused(call, "success without an object"))
    }

    pub(super) fn as_ptr(&self) -> *mut T {
        self.0.as_ptr()
    }

    pub(super) fn as_fid(&self) -> *mut fi::fid {
        self.0.as_ptr().cast()
    }
}

impl<T> Drop for Object<T> {
    fn drop(&mut self) {
        // SAFETY: open, and closed once. `Raw` drops its fields in the order libfabric asks for.
        // A failure leaves the object open until the process ends, soon after.
        let _ = unsafe { fi::fi_close(self.as_fid()) };
    }
}

/// A return code below zero as an error, in libfabric's words.
pub(super) fn check(library: &Library, call: &'static str, code: i64) -> Result<(), RawError> {
    if code < 0 {
        return Err(refused(call, format!("{} ({code})", library.strerror(code as i32))));
    }
    Ok(())
}
